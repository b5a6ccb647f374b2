//! Decides calls of one tenant as fast as it can for ten seconds, as a busy server would, and prints what each second had. The
//! rule of `tenant` needs `lease: auto`, such as `{ unit: second, requests_per_unit: 10000000, lease: auto }`:
//!
//! `cargo run --release --example limiter -- localhost:8081 shop`

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{env, error::Error, sync::Arc, thread::available_parallelism, time::Duration};

use tokio::{task::JoinSet, task::yield_now, time::Instant, time::sleep};
use tollkeeper_client::{Client, Limiter, Options, on};

const SECONDS: u64 = 10;

#[derive(Default)]
struct Counts {
    allowed: AtomicU64,
    denied: AtomicU64,
    requests: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [address, domain] = arguments.as_slice() else {
        return Err("usage: limiter HOST:PORT DOMAIN".into());
    };
    let counts = Arc::<Counts>::default();
    let counted = Arc::clone(&counts);
    let options = Options::new(domain)
        .remember_denials(Duration::from_millis(100))
        .on_call(move |_, _, _| _ = counted.requests.fetch_add(1, Relaxed));
    let client = Client::new(address, options)?;
    let (call, began) = (Limiter::new(&client).prepare(on("tenant", "acme"))?, Instant::now());
    let mut workers = JoinSet::new();
    for _ in 0..available_parallelism()?.get() {
        let (call, counts) = (call.clone(), Arc::clone(&counts));
        workers.spawn(async move {
            while began.elapsed() < Duration::from_secs(SECONDS) {
                // What a request does besides; a worker that never waits would keep the others from running.
                yield_now().await;
                for _ in 0..100 {
                    let decision = call.decide().await?;
                    let count = if decision.allowed { &counts.allowed } else { &counts.denied };
                    count.fetch_add(1, Relaxed);
                }
            }
            Ok::<_, tollkeeper_client::Error>(())
        });
    }
    for _ in 0..SECONDS {
        sleep(Duration::from_secs(1)).await;
        let [allowed, denied, requests] =
            [&counts.allowed, &counts.denied, &counts.requests].map(|count| count.swap(0, Relaxed));
        println!("{allowed} allowed, {denied} denied, {requests} requests");
    }
    workers.join_all().await.into_iter().collect::<Result<(), _>>()?;
    client.close().await;
    Ok(())
}
