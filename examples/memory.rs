//! What counters in memory cost, in bytes and in time: `cargo run --release --example memory`.

use std::{error::Error, fs, sync::Arc, thread, time::Instant};

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
/// Far apart, so that neighbours in time are none in memory; a prime, so that every counter has its turn.
const STRIDE: usize = 7919;

fn main() -> Result<(), Box<dyn Error>> {
    let limit = Arc::new(Limit::new(u32::MAX, Unit::Year, 1).ok_or("a year is a window")?);
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

/// Prints what the process grows by for each counter, beyond the length of its key.
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

/// What the process holds of the machine's memory.
fn resident_bytes() -> Result<usize, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
    Ok(line.ok_or("no VmRSS here")?.trim().parse::<usize>()? * 1024)
}

/// Nanoseconds from one decision to the next, all threads together: the median of some rounds.
fn decide(charges: &[Charge], of_a_call: usize, threads: usize) -> f64 {
    let store = MemoryStore::new(system_clock);
    let now = Timestamp::from_secs(1_795_219_200);
    let charge = |number: usize| charges.get(number * STRIDE % charges.len()).cloned();
    let calls: Vec<Vec<Charge>> = (0..charges.len().max(CALLS / 10))
        .map(|call| (0..of_a_call).filter_map(|number| charge(call + number)).collect())
        .collect();
    calls.iter().for_each(|call| drop(store.charge_at(call, now)));
    let round = |_| {
        let began = Instant::now();
        thread::scope(|scope| {
            for part in 0..threads {
                let calls = calls.iter().cycle().skip(part * calls.len() / threads);
                let calls = calls.take(CALLS / threads);
                let store = &store;
                scope.spawn(move || calls.for_each(|call| drop(store.charge_at(call, now))));
            }
        });
        began.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(CALLS).unwrap_or(u32::MAX))
    };
    let mut times: Vec<f64> = (0..ROUNDS).map(round).collect();
    times.sort_by(f64::total_cmp);
    times.get(ROUNDS / 2).copied().unwrap_or(f64::NAN)
}

fn charge(user: usize, limit: &Arc<Limit>) -> Charge {
    let entries = [Entry { key: "user".into(), value: format!("user-{user:08}").into() }];
    let counter = Counter::new("shop", &entries, Arc::clone(limit));
    Charge { counter, hits: Hits::Charge(1), caller: None }
}
