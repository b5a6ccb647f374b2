//! Calls that are heavier than a full batch, and what they may cost others, on a Redis that takes time for what it runs.

use std::{cell::Cell, ops::AsyncFnOnce, rc::Rc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    runtime::Builder,
    task::LocalSet,
    time::{self, Instant},
};
use tollkeeper::{
    engine::request::{Hits, Request},
    store::guard::Arrival,
};
use tollkeeper_sim::{
    dice::Dice,
    network::{Host, Network},
    redis::server::Server,
};

use super::{
    BEGIN_US, Plan,
    clients::descriptor,
    replica::{self, Replica},
};

/// Then a heavy call takes Redis 25 ms, as if it was short of CPU: longer than a call may take, and less than two.
const NS_PER_BYTE: u64 = 1060;

/// Runs a test with one replica on one Redis, in virtual time.
fn with_replica(test: impl AsyncFnOnce(&Host, &Replica)) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        replica::begin();
        let began = Instant::now();
        let clock = Rc::new(move || BEGIN_US + began.elapsed().as_micros() as u64);
        let host = Host::new(Server::new(clock), Dice::new(1));
        let network = Network::start([("redis".to_owned(), Rc::clone(&host))].into());
        let of_one_redis = Plan {
            has_cluster: false,
            has_sentinels: false,
            connections_max: 16,
            leases: false,
            ..Plan::of_seed(1)
        };
        let replica = Replica::start(0, &of_one_redis, &network);
        while !replica.is_ready() {
            time::sleep(Duration::from_millis(1)).await;
        }
        // Redis knows the script then.
        assert!(heavy(&replica, 400).await.0);
        host.ns_per_byte.set(NS_PER_BYTE);
        test(&host, &replica).await;
        replica.end_at_once();
    });
}

/// Makes a call with this many descriptors of a rule. Returns whether Redis has decided it, and after which time.
async fn call(
    replica: &Replica,
    rule: &str,
    descriptors: u64,
    timeout_ms: u64,
) -> (bool, Duration) {
    thread_local!(static USERS: Cell<u64> = const { Cell::new(0) });
    let user = || USERS.replace(USERS.get() + 1);
    let descriptors =
        (0..descriptors).map(|_| descriptor(&format!("{rule}=u{}", user()), Hits::Charge(1), &[]));
    let request = Request { domain: "shop".to_owned(), descriptors: descriptors.collect() };
    let began = Instant::now();
    let arrival = Arrival { at: began, timeout: Some(Duration::from_millis(timeout_ms)) };
    let decided = replica.limiter.decide(&request, arrival).await.unwrap();
    (decided.at.is_some(), began.elapsed())
}

/// 128 charges: a batch has 96.
async fn heavy(replica: &Replica, timeout_ms: u64) -> (bool, Duration) {
    call(replica, "nested", 64, timeout_ms).await
}

#[test]
fn heavy_calls_of_one_client_do_not_open_the_breaker_for_others() {
    for timeout_ms in [4, 20, 100] {
        with_replica(async |_, replica| {
            let ends = Instant::now() + Duration::from_millis(500);
            let heavy = async || {
                while Instant::now() < ends {
                    heavy(replica, timeout_ms).await;
                    // So that time passes for one that is answered at once.
                    time::sleep(Duration::from_millis(1)).await;
                }
            };
            let light = async || {
                while Instant::now() < ends {
                    let (is_decided, took) = call(replica, "work", 1, 100).await;
                    assert!(is_decided, "after {took:?}, beside calls of {timeout_ms} ms");
                    time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::join!(join_all((0..8).map(|_| heavy())), join_all((0..4).map(|_| light())));
        });
    }
}

#[test]
fn heavy_calls_that_wait_long_open_it_too() {
    with_replica(async |host, replica| {
        host.stop(Duration::from_secs(10));
        let calls = (0..8).map(|_| heavy(replica, 1000));
        for (is_decided, took) in join_all(calls).await {
            assert!(!is_decided && took <= 3 * 2 * Duration::from_millis(15), "{took:?}");
        }
    });
}

#[test]
fn heavy_calls_alone_open_the_breaker_of_a_redis_that_stands_still() {
    with_replica(async |host, replica| {
        host.stop(Duration::from_secs(10));
        let stopped = Instant::now();
        // Three in a row, each of which has twice the time of others.
        while stopped.elapsed() < 3 * 2 * Duration::from_millis(15) {
            assert!(!heavy(replica, 20).await.0);
            time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..100 {
            assert_eq!(heavy(replica, 20).await, (false, Duration::ZERO));
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}
