//! The CPU time of a call, beside the generated client on a channel of tonic. Both make the same calls in turns, against a
//! service with any rules:
//!
//! `cargo bench --package tollkeeper-client --bench cost -- localhost:8081 example`
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "it may panic")]

use std::{env, fs};

use tokio::task::JoinSet;
use tollkeeper_client::{Call, Client, Descriptor, Options, on};
use tonic::transport::{Channel, Endpoint};

#[allow(dead_code, unreachable_pub, clippy::all, clippy::pedantic, reason = "it is generated")]
mod v1 {
    include!("../src/generated/tollkeeper.v1.rs");
}

use v1::{DecideRequest, descriptor::Entry, tollkeeper_client::TollkeeperClient};

const ROUNDS: usize = 21;

/// Calls in a request, requests at a time, and requests in a round.
const LOADS: [(usize, usize, usize); 3] = [(1, 1, 2_000), (1, 64, 10_000), (100, 1, 200)];

#[derive(Clone)]
enum Asking {
    Tonic(TollkeeperClient<Channel>, String),
    Tollkeeper(Client),
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<_> = env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let [address, domain] = arguments.as_slice() else { panic!("usage: cost HOST:PORT DOMAIN") };
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
        let [tonic, ours] = costs.map(|mut costs| {
            costs.sort_by(f64::total_cmp);
            costs[ROUNDS / 2]
        });
        println!("{calls}, {at_a_time} | {tonic:.2} µs | {ours:.2} µs | {:.2}", ours / tonic);
    }
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
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}
