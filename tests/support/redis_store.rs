//! The service's Redis stores, without the service.

use tokio::time::Instant;
use tollkeeper::{
    settings::{StoreUrl, TopologyKind},
    store::{
        Clock, StoreError,
        metrics::StoreMetrics,
        redis::{
            RedisStore,
            node::{NodeOptions, unsent::Unsent},
            topology::{discovery::Finder, sentinel::Monitored},
            wire::{
                endpoint::Server,
                server_info::{Expected, ServerMode},
            },
        },
    },
};

use super::{backends::memory, charges::prelude::*, prelude::*};

/// Far longer than any call takes.
pub const PATIENT: Duration = Duration::from_secs(20);

/// When a patient caller gives up.
pub fn soon() -> Instant {
    Instant::now() + PATIENT
}

/// The answer to a call of a patient caller.
pub async fn answer(
    store: &RedisStore,
    charges: impl AsRef<[Charge]>,
) -> Result<Verdict, StoreError> {
    store.charge(charges.as_ref(), soon()).await
}

/// The answers to calls that patient callers make at once.
pub async fn answers(
    store: &RedisStore,
    calls: impl IntoIterator<Item: AsRef<[Charge]>>,
) -> Vec<Result<Verdict, StoreError>> {
    join_all(calls.into_iter().map(|call| answer(store, call))).await
}

/// A store that waits as long as a patient caller.
pub fn patient(url: &str) -> RedisStore {
    store(url, 0, system_clock, PATIENT)
}

/// A store for this number of workers, with at most 16 connections to a server, or 2 without workers.
pub fn store(url: &str, workers: usize, clock: Clock, timeout: Duration) -> RedisStore {
    let connections_max = if workers == 0 { 2 } else { 16 };
    let (options, finder) = options(url, connections_max, workers, clock, timeout);
    RedisStore::new(options, finder)
}

/// A patient store for a Redis that runs no scripts, on one connection.
pub fn transactions(url: &str) -> RedisStore {
    let (mut options, finder) = options(url, 1, 0, system_clock, PATIENT);
    options.expected.runs_scripts = false;
    RedisStore::new(options, finder)
}

/// Limits of every algorithm and mode, in windows so long that no time passes in them during a test.
pub fn long_limits() -> Vec<Arc<Limit>> {
    let mut limits = Vec::new();
    for algorithm in Algorithm::of_time(7, None) {
        let per = |requests, years| Limit {
            algorithm: algorithm.clone(),
            ..Limit::new(requests, Unit::Year, years).unwrap()
        };
        limits.extend([per(7, 1), Limit { mode: Mode::Shadow, ..per(5, 2) }]);
        if algorithm != LOG {
            let counted = WhenDenied::Counted;
            limits.extend([
                Limit { when_denied: counted, ..per(6, 3) },
                Limit { mode: Mode::Quota, ..per(4, 4) },
                Limit { mode: Mode::Quota, ..per(8, 5) },
                Limit { mode: Mode::Shadow, when_denied: counted, ..per(5, 6) },
            ]);
        }
    }
    let per = |requests| Limit::new(requests, Unit::Year, 7).unwrap();
    limits.extend([per(0), Limit { when_denied: WhenDenied::Counted, ..per(Hits::MAX) }]);
    limits.into_iter().map(Arc::new).collect()
}

fn any_call(dice: &mut Dice, limits: &[Arc<Limit>], hits_max: u64, round: u64) -> Vec<Charge> {
    let count = 1 + dice.below(4);
    let charge = |_| {
        let limit = &limits[dice.below(limits.len() as u64) as usize];
        let user = format!("{}{round}", ["a", "b", "c", "d", "e", "f"][dice.below(6) as usize]);
        // A hit of a log is an entry.
        let most = if limit.algorithm == LOG { 9 } else { hits_max };
        let hits = match dice.below(20) {
            0..=12 => Hits::Charge(1 + dice.below(2)),
            13 => Hits::Charge(1 + dice.below(9)),
            14 => Hits::Charge(most),
            15..=16 => Hits::Check,
            17..=18 => Hits::Refund(dice.below(4)),
            _ => Hits::Refund(most),
        };
        charge(&user, hits, limit)
    };
    (0..count).map(charge).collect()
}

/// Resets may differ by the time that passes between the two. Where a store reserves, the reset of a quota that is over its
/// limit may also differ by the hits that were reserved.
fn same(charge: &Charge, ours: &Tally, theirs: &Tally) -> bool {
    let is_over_quota = charge.counter.limit.mode == Mode::Quota && theirs.fit == Fit::Over;
    let is_reset_same = ours.reset.abs_diff(theirs.reset) < PATIENT;
    let rest = |tally: &Tally| Tally { reset: Duration::ZERO, ..*tally };
    rest(ours) == rest(theirs) && (is_over_quota || is_reset_same)
}

/// Promise "the same on every store": makes the same calls one after the other on a store and in memory, on new counters from
/// time to time. `STORE_CALLS` is how many, from the seed `SEED`.
pub async fn judges_as_memory(store: &RedisStore, limits: &[Arc<Limit>], hits_max: u64) {
    let (calls, seed) = (number("STORE_CALLS", 3_000), number("SEED", 1));
    let (mut dice, memory) = (Dice(seed), memory());
    for number in 0..calls {
        let call = any_call(&mut dice, limits, hits_max, number / 200);
        let theirs = memory.charge_at(&call, system_clock());
        let ours = answer(store, &call).await.expect("an answer");
        let is_same = ours.denied == theirs.denied
            && (call.iter().zip(&ours.tallies).zip(&theirs.tallies))
                .all(|((charge, ours), theirs)| same(charge, ours, theirs));
        assert!(
            is_same,
            "step {number} of seed {seed}: the store says {ours:?}, and memory {theirs:?}: {call:?}"
        );
    }
}

fn options(
    url: &str,
    connections_max: u32,
    workers: usize,
    clock: Clock,
    timeout: Duration,
) -> (NodeOptions, Finder) {
    let StoreUrl::Redis(url) = url.parse().unwrap() else { panic!("{url}") };
    let server = |address: &_| Server::new(Clone::clone(address), Arc::clone(&url.access));
    let (mode, finder) = match &url.topology {
        TopologyKind::Single => (ServerMode::Single, Finder::Given(server(url.address()))),
        TopologyKind::Cluster => {
            (ServerMode::Cluster, Finder::Cluster(url.addresses.iter().map(server).collect()))
        }
        TopologyKind::Sentinel { master } => {
            let sentinel =
                |address: &_| Server::new(Clone::clone(address), Arc::clone(&url.sentinel_access));
            let monitored = Monitored {
                name: master.clone(),
                sentinels: url.addresses.iter().map(sentinel).collect(),
                access: Arc::clone(&url.access),
            };
            (ServerMode::Single, Finder::Sentinel(monitored))
        }
    };
    let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
    let options = NodeOptions {
        expected: Expected { mode, clients: connections_max.into(), runs_scripts: true },
        connections_max,
        workers,
        timeout,
        clock,
        metrics: metrics.clone(),
        key_prefix: String::new(),
        wait_replicas: 0,
        unsent: Arc::new(Unsent::new(1000, metrics)),
    };
    (options, finder)
}
