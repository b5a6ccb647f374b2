//! The CPU time of a call, beside the generated client on a channel of tonic. Both make the same calls in turns, against a
//! service with any rules:
//!
//! `cargo bench --package tollkeeper-client --bench cost -- localhost:8081 example`
//!
//! Without a service, it is only the time of a decision in this process, beside the one of governor, whose limit is local.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "it may panic")]
#![allow(clippy::disallowed_methods, reason = "it reads clocks")]

use std::{env, hint::black_box, num::NonZeroU32};

use governor::{Quota, RateLimiter};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::{JoinSet, yield_now};
use tollkeeper_client::{Call, Client, Descriptor, Fake, Limiter, Options, on};
use tonic::transport::{Channel, Endpoint};

#[allow(dead_code, unreachable_pub, clippy::all, clippy::pedantic, reason = "it is generated")]
mod v1 {
    include!("../src/generated/tollkeeper.v1.rs");
}

use v1::{DecideRequest, descriptor::Entry, tollkeeper_client::TollkeeperClient};

const ROUNDS: usize = 21;

/// Calls in a request, requests at a time, and requests in a round.
const LOADS: [(usize, usize, usize); 3] = [(1, 1, 2_000), (1, 64, 10_000), (100, 1, 200)];

/// Rounds of decisions in this process, and decisions in a round.
const LOCAL_ROUNDS: usize = 201;
const LOCAL: usize = 100_000;

#[derive(Clone)]
enum Asking {
    Tonic(TollkeeperClient<Channel>, String),
    Tollkeeper(Client),
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<_> = env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    in_process().await;
    let [address, domain] = match arguments.as_slice() {
        [] => return,
        [address, domain] => [address, domain],
        _ => panic!("usage: cost [HOST:PORT DOMAIN]"),
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let tonic = TollkeeperClient::new(endpoint.connect().await.unwrap());
    let options = Options::new(domain).timeout(std::time::Duration::from_secs(10));
    let client = Client::new(address, options).unwrap();
    let both = [Asking::Tonic(tonic, domain.clone()), Asking::Tollkeeper(client)];
    println!("calls in a request, requests at a time | tonic | tollkeeper-client | ratio");
    for (calls, at_a_time, number) in LOADS {
        let mut costs = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for (asking, costs) in both.iter().zip(&mut costs) {
                costs.push(round(asking, calls, at_a_time, number).await);
            }
        }
        let [tonic, ours] = costs.map(median);
        println!("{calls}, {at_a_time} | {tonic:.2} µs | {ours:.2} µs | {:.2}", ours / tonic);
    }
}

fn median(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

/// Decisions of a hot key: one that is ready, and one whose text is made for each, as in a server. The work for leases is in the
/// time of the Limiter.
async fn in_process() {
    let governor = RateLimiter::dashmap(Quota::per_second(NonZeroU32::MAX));
    let (fake, user) = (Fake::default(), || on("path", "/login").and("user", black_box("alice")));
    let key = || ["path=/login,user=", black_box("alice")].concat();
    fake.limit(user(), 1 << 53);
    let client = fake.client(Options::new("example")).unwrap();
    let limiter = Limiter::new(&client);
    let (ready, prepared) = (key(), limiter.prepare(user()).unwrap());
    let mut costs = [const { Vec::new() }; 4];
    for _ in 0..LOCAL_ROUNDS {
        let mut times = vec![cpu_ns()];
        for _ in 0..LOCAL {
            governor.check_key(black_box(&ready)).unwrap();
        }
        times.push(cpu_ns());
        for call in 0..LOCAL {
            assert!(prepared.decide().await.unwrap().allowed);
            if call % 1000 == 0 {
                yield_now().await;
            }
        }
        times.push(cpu_ns());
        for _ in 0..LOCAL {
            governor.check_key(&key()).unwrap();
        }
        times.push(cpu_ns());
        for call in 0..LOCAL {
            assert!(limiter.decide(user()).await.unwrap().allowed);
            if call % 1000 == 0 {
                yield_now().await;
            }
        }
        times.push(cpu_ns());
        for (times, costs) in times.windows(2).zip(&mut costs) {
            costs.push((times[1] - times[0]) / LOCAL as f64);
        }
    }
    println!("a decision in this process | governor | Limiter | ratio");
    let costs = costs.map(median);
    for (kind, costs) in
        ["of a key that is ready", "with a key made for it"].iter().zip(costs.chunks(2))
    {
        println!("{kind} | {:.0} ns | {:.0} ns | {:.2}", costs[0], costs[1], costs[1] / costs[0]);
    }
    println!(
        "{} requests for {} decisions of the Limiter",
        fake.calls().len(),
        2 * LOCAL_ROUNDS * LOCAL
    );
}

/// Microseconds of CPU time for a request.
async fn round(asking: &Asking, calls: usize, at_a_time: usize, number: usize) -> f64 {
    let (before, mut tasks) = (cpu_ns(), JoinSet::new());
    for _ in 0..at_a_time {
        let mut asking = asking.clone();
        tasks.spawn(async move {
            for _ in 0..number / at_a_time {
                asking.ask(calls).await;
            }
        });
    }
    tasks.join_all().await;
    (cpu_ns() - before) / 1_000.0 / (number / at_a_time * at_a_time) as f64
}

impl Asking {
    async fn ask(&mut self, calls: usize) {
        match self {
            Self::Tonic(client, domain) => {
                let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
                let user = || v1::Descriptor {
                    entries: vec![entry("path", "/login"), entry("user", "alice")],
                    ..v1::Descriptor::default()
                };
                let call =
                    || v1::Call { descriptors: vec![user()], hits: Some(1), ..v1::Call::default() };
                let calls = (0..calls).map(|_| call()).collect();
                let mut request =
                    tonic::Request::new(DecideRequest { domain: domain.clone(), calls });
                request.set_timeout(std::time::Duration::from_secs(10));
                client.decide(request).await.unwrap();
            }
            Self::Tollkeeper(client) => {
                let user = || -> Descriptor { on("path", "/login").and("user", "alice") };
                let calls = (0..calls).map(|_| Call::take(1, user()));
                let decisions = client.decide_all(calls).await.unwrap();
                assert!(decisions.iter().all(|decision| !decision.failed()));
            }
        }
    }
}

/// Of this thread, on which all calls run.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
