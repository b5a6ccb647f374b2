//! Measures counters in memory, in bytes and in time: `cargo run --release --example memory`.

use std::{
    error::Error,
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tollkeeper::{
    engine::{
        key::Counter,
        ledger::Charge,
        request::{Entry, Hits},
        rule::{Limit, Unit},
        time::Timestamp,
    },
    store::{memory::MemoryStore, system_clock},
};

const CALLS: usize = 2_000_000;
const COUNTERS: usize = 1_000_000;
const ROUNDS: usize = 5;
/// Consecutive charges are this far apart, so that they do not share cache lines. It is a prime, so that
/// every counter is used.
const STRIDE: usize = 7919;

fn main() -> Result<(), Box<dyn Error>> {
    let limit = Arc::new(Limit::new(u32::MAX.into(), Unit::Year, 1).ok_or("a year is a window")?);
    bytes(&limit)?;
    println!("\n| counters | charges of a call | threads | ns of a decision |");
    println!("| --- | --- | --- | --- |");
    for counters in [1, 10_000, COUNTERS] {
        let charges: Vec<Charge> = (0..counters).map(|user| charge(user, &limit)).collect();
        for (of_a_call, threads) in [(1, 1), (1, 2), (3, 1), (3, 2)] {
            let ns = decide(&charges, of_a_call, threads);
            println!("| {counters} | {of_a_call} | {threads} | {ns:.0} |");
        }
    }
    Ok(())
}

/// Prints the growth of the process per counter, without the length of its key.
fn bytes(limit: &Arc<Limit>) -> Result<(), Box<dyn Error>> {
    let (store, now) = (MemoryStore::new(system_clock), system_clock());
    let before = resident_bytes()?;
    let mut keys = 0;
    for user in 0..COUNTERS {
        let charge = charge(user, limit);
        keys += charge.counter.key(limit.window.at(now).start).len();
        store.charge_at(&[charge], now);
    }
    let counters = store.counters();
    let (grown, key) = ((resident_bytes()? - before) / counters, keys / COUNTERS);
    println!("{counters} counters: {} bytes each, and {key} of its key", grown.saturating_sub(key));
    Ok(())
}

/// Resident memory of the process.
fn resident_bytes() -> Result<usize, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
    Ok(line.ok_or("no VmRSS here")?.trim().parse::<usize>()? * 1024)
}

/// Nanoseconds per decision, over all threads: the median of the rounds.
fn decide(charges: &[Charge], of_a_call: usize, threads: usize) -> f64 {
    let store = MemoryStore::new(system_clock);
    let now = Timestamp::from_secs(1_795_219_200);
    let calls: Vec<Vec<Charge>> =
        (0..charges.len().max(CALLS / 10)).map(|first| call(charges, first, of_a_call)).collect();
    for call in &calls {
        store.charge_at(call, now);
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let took = round(&store, &calls, now, threads).as_secs_f64();
        times.push(took * 1e9 / f64::from(u32::try_from(CALLS).unwrap_or(u32::MAX)));
    }
    times.sort_by(f64::total_cmp);
    times.get(ROUNDS / 2).copied().unwrap_or(f64::NAN)
}

fn call(charges: &[Charge], first: usize, count: usize) -> Vec<Charge> {
    let indexes = (first..first + count).map(|number| number * STRIDE % charges.len());
    indexes.filter_map(|index| charges.get(index).cloned()).collect()
}

/// Makes all calls, each thread its part of them.
fn round(store: &MemoryStore, calls: &[Vec<Charge>], now: Timestamp, threads: usize) -> Duration {
    let began = Instant::now();
    thread::scope(|scope| {
        for part in 0..threads {
            let calls = calls.iter().cycle().skip(part * calls.len() / threads);
            let calls = calls.take(CALLS / threads);
            scope.spawn(move || {
                for call in calls {
                    store.charge_at(call, now);
                }
            });
        }
    });
    began.elapsed()
}

fn charge(user: usize, limit: &Arc<Limit>) -> Charge {
    let entries = [Entry { key: "user".into(), value: format!("user-{user:08}").into() }];
    let counter = Counter::new("shop", &entries, Arc::clone(limit));
    Charge::new(counter, Hits::Charge(1))
}
