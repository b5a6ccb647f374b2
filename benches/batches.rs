//! What a decision costs in a batch of `tollkeeper.v1`, beside single calls, and what others notice of batches.
//! `cargo bench --bench batches` prints a table.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark")]

#[path = "compare/batch_load.rs"]
mod batch_load;
#[path = "compare/cpu.rs"]
mod cpu;
#[path = "compare/process.rs"]
#[allow(dead_code, reason = "compare uses the rest")]
mod process;

use std::{
    cell::RefCell,
    fs,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use batch_load::{after, connect, load, send};
use process::{Process, Result, Service};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

const SPAN: Duration = Duration::from_secs(4);
const RULES: &str = "
domain: compare
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000000000 }
";

fn main() -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    println!("store,calls in a message,in flight,decisions/s,service us,Redis us");
    for store in ["memory", "redis"] {
        let folders = [TempDir::new()?, TempDir::new()?];
        let [(service, redis), (other, _other_redis)] =
            [start(&folders[0], store)?, start(&folders[1], store)?];
        let redis = redis.as_ref().map(Process::id);
        for (size, in_flight) in [(1000, 1), (1000, 4), (100, 8), (1, 64), (0, 64)] {
            runtime.block_on(measure(&service, redis, store, size, in_flight))?;
        }
        beside(&runtime, [&service, &other], store)?;
    }
    Ok(())
}

/// A service, and the Redis of its own that it uses.
fn start(folder: &TempDir, store: &str) -> Result<(Service, Option<Process>)> {
    let redis = if store == "redis" { Some(redis(folder)?) } else { None };
    let url = redis.as_ref().map_or("memory://", |(_, url)| url);
    let rules = folder.path().join("rules.yaml");
    fs::write(&rules, RULES)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollkeeper"));
    command.args(["serve", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"]);
    command.args(["--admin-addr", "127.0.0.1:0", "--store", url, "--rules"]).arg(&rules);
    command.args(["--decision-budget", "1s"]).stderr(Stdio::null());
    Ok((Service::start(command)?, redis.map(|(process, _)| process)))
}

/// A Redis on a socket of its own.
fn redis(folder: &TempDir) -> Result<(Process, String)> {
    let socket = folder.path().join("redis.sock");
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
    let mut process = Process(command.stdout(Stdio::null()).spawn()?);
    process.wait_until(|| fs::metadata(&socket).map(drop))?;
    Ok((process, format!("redis+unix://{}", socket.display())))
}

async fn measure(
    service: &Service,
    redis: Option<u32>,
    store: &str,
    size: usize,
    in_flight: usize,
) -> Result<()> {
    let channel = connect(&service.addr).await?;
    for span in [SPAN / 4, SPAN] {
        let (began, ended) = (Instant::now(), AtomicBool::new(false));
        let latencies = RefCell::default();
        let before = (cpu::used(service.process.id())?, redis.map(cpu::used).transpose()?);
        let (sent, ()) =
            tokio::join!(load(&channel, size, in_flight, &ended, &latencies), after(span, &ended));
        let decisions = sent as f64;
        let us = |before: u64, now: u64| (now - before) as f64 / 1000.0 / decisions;
        let service_us = us(before.0, cpu::used(service.process.id())?);
        let redis_us = match (redis, before.1) {
            (Some(redis), Some(before)) => us(before, cpu::used(redis)?),
            _ => 0.0,
        };
        let rate = decisions / began.elapsed().as_secs_f64();
        if span == SPAN {
            println!("{store},{size},{in_flight},{rate:.0},{service_us:.2},{redis_us:.2}");
        }
    }
    Ok(())
}

/// The latency of single calls at a fixed rate: alone, while a client on another thread sends batches to another instance
/// (the cost of sharing the machine), and while it sends them to the same instance.
fn beside(runtime: &Runtime, [service, other]: [&Service; 2], store: &str) -> Result<()> {
    let single = runtime.block_on(connect(&service.addr))?;
    let [to_other, small, large] = [(other, 1000), (service, 100), (service, 1000)].map(Some);
    for batches in [None, to_other, small, large].repeat(3) {
        let (ended, mut latencies) = (AtomicBool::new(false), Vec::new());
        let probe = async {
            while !ended.load(Relaxed) {
                let began = Instant::now();
                send(single.clone(), 0, latencies.len()).await;
                latencies.push(began.elapsed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        thread::scope(|scope| {
            let ended = &ended;
            if let Some((to, size)) = batches {
                scope.spawn(move || send_batches(&to.addr, size, ended).unwrap());
            }
            runtime.block_on(async { tokio::join!(probe, after(SPAN, ended)) });
        });
        latencies.sort_unstable();
        let at = |part: usize| latencies[(latencies.len() - 1) * part / 100].as_micros();
        let beside = batches.map_or("alone".to_owned(), |(to, size)| {
            let to = if to.addr == other.addr { " to another instance" } else { "" };
            format!("beside batches of {size}{to}")
        });
        println!("{store},single calls {beside},p50 {} us,p99 {} us", at(50), at(99));
    }
    Ok(())
}

/// Sends about as many decisions a second in small batches as in large ones.
#[tokio::main(flavor = "current_thread")]
async fn send_batches(addr: &str, size: usize, ended: &AtomicBool) -> Result<()> {
    let (channel, mut turn) = (connect(addr).await?, 0);
    while !ended.load(Relaxed) {
        send(channel.clone(), size, turn).await;
        turn += 1;
        tokio::time::sleep(Duration::from_micros(20 * size as u64)).await;
    }
    Ok(())
}
