//! Measures what a decision costs by each algorithm: in memory, and on a private redis-server.

use std::{
    error::Error,
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use redis::ConnectionLike as _;
use tollkeeper::{
    engine::{
        key::Counter,
        ledger::Charge,
        request::{Entry, Hits},
        rule::{Algorithm, Limit, Unit},
        time::Timestamp,
    },
    store::{
        memory::MemoryStore,
        redis::script::{self, KeyDeclaration, ledger::LedgerRun},
        system_clock,
    },
};

const USERS: u64 = 1000;
const CALLS: u64 = 100_000;
/// Calls in one write, as in the batches of a busy service.
const PIPELINED: u64 = 50;

/// A redis-server that is killed when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Prints the table of docs/algorithms.md.
pub(crate) fn measure() -> Result<(), Box<dyn Error>> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let _server = Server(
        Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .stdout(Stdio::null())
            .spawn()?,
    );
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let began = Instant::now();
    let mut redis = loop {
        match client.get_connection() {
            Ok(connection) => break connection,
            Err(error) if began.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    let hash: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script::ledger(script::CLOCK, KeyDeclaration::Declared))
        .query(&mut redis)?;

    println!("| algorithm | memory store, ns | Redis CPU, us | Redis memory of a key, bytes |");
    println!("| --- | --- | --- | --- |");
    for (algorithm, requests, what) in [
        (Algorithm::FixedWindow, 1_000_000, "fixed_window"),
        (Algorithm::FirstHitWindow { idle_ms: None }, 1_000_000, "first_hit_window"),
        (Algorithm::SlidingWindow, 1_000_000, "sliding_window"),
        (Algorithm::TokenBucket { burst: 100_000 }, 100_000, "token_bucket"),
        (Algorithm::SlidingLog { remember: None }, 100, "sliding_log of 100, full"),
        (Algorithm::SlidingLog { remember: None }, 10_000, "sliding_log of 10,000, full"),
    ] {
        redis::cmd("FLUSHALL").exec(&mut redis)?;
        let limit = Limit::new(requests, Unit::Day, 1).map(|limit| Limit { algorithm, ..limit });
        let limit = Arc::new(limit.ok_or("a day is a window")?);
        let users = if requests == 10_000 { 10 } else { USERS };
        let full = matches!(limit.algorithm, Algorithm::SlidingLog { .. });
        let hits_before = if full { requests - CALLS / users / 10 } else { 1 };
        for user in 0..users {
            for _ in 0..hits_before {
                ledger_run(user, &limit)
                    .command("EVALSHA", &hash, KeyDeclaration::Declared)
                    .exec(&mut redis)?;
            }
        }
        let cpu = on_redis(&mut redis, &hash, &limit, users)?;
        let key: String = redis::cmd("RANDOMKEY").query(&mut redis)?;
        let bytes: u64 =
            redis::cmd("MEMORY").arg("USAGE").arg(&key).arg("SAMPLES").arg(0).query(&mut redis)?;
        println!("| {what} | {:.0} | {cpu:.1} | {bytes} |", in_memory(&limit, users));
    }
    Ok(())
}

fn charge(user: u64, limit: &Arc<Limit>) -> Charge {
    let entries = [Entry { key: "user".into(), value: format!("user-{user:08}").into() }];
    let counter = Counter::new("shop", &entries, Arc::clone(limit));
    Charge::new(counter, Hits::Charge(1))
}

fn ledger_run(user: u64, limit: &Arc<Limit>) -> LedgerRun {
    let mut run = LedgerRun::default();
    run.add(&[charge(user, limit)].into(), system_clock(), "");
    run
}

/// Nanoseconds per decision.
fn in_memory(limit: &Arc<Limit>, users: u64) -> f64 {
    let store = MemoryStore::new(system_clock);
    let charges: Vec<[Charge; 1]> = (0..users).map(|user| [charge(user, limit)]).collect();
    let begin = Timestamp::from_secs(1_795_219_200);
    let mut began = Instant::now();
    for (number, charges) in (0..2 * CALLS).zip(charges.iter().cycle()) {
        // The first half only warms up.
        if number == CALLS {
            began = Instant::now();
        }
        store.charge_at(charges, begin.plus_millis(number / 1000));
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(CALLS).unwrap_or(u32::MAX))
}

/// Microseconds of Redis's processor time per decision.
fn on_redis(
    redis: &mut redis::Connection,
    hash: &str,
    limit: &Arc<Limit>,
    users: u64,
) -> Result<f64, Box<dyn Error>> {
    let before = cpu_seconds(redis)?;
    let calls = CALLS / 10;
    for batch in 0..calls / PIPELINED {
        let mut commands = Vec::new();
        for number in 0..PIPELINED {
            let user = (batch * PIPELINED + number) % users;
            ledger_run(user, limit)
                .command("EVALSHA", hash, KeyDeclaration::Declared)
                .write_packed_command(&mut commands);
        }
        redis.req_packed_commands(&commands, 0, usize::try_from(PIPELINED)?)?;
    }
    let calls = f64::from(u32::try_from(calls)?);
    Ok((cpu_seconds(redis)? - before) * 1e6 / calls)
}

fn cpu_seconds(redis: &mut redis::Connection) -> Result<f64, Box<dyn Error>> {
    let info: String = redis::cmd("INFO").arg("cpu").query(redis)?;
    let mut sum = 0.0;
    for name in ["used_cpu_user:", "used_cpu_sys:"] {
        let seconds = info.lines().find_map(|line| line.strip_prefix(name));
        sum += seconds.ok_or_else(|| format!("INFO cpu has no {name}"))?.trim().parse::<f64>()?;
    }
    Ok(sum)
}
