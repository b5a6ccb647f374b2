//! Promise "exactly the limit": it is admitted, with any number of replicas and clients.

use tokio::task::JoinSet;
use tonic::Code as Status;

use crate::support::{
    cluster_calls::{ALGORITHMS, rules},
    cluster_load::Load,
    prelude::*,
    sentinels::Sentinels,
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1000 } }
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 100000 } }
";

#[tokio::test(flavor = "multi_thread")]
async fn four_replicas_and_64_clients_admit_exactly_the_limit_and_charge_the_sibling_the_same() {
    let redis = Redis::start();
    four_replicas_admit_exactly_the_limit(&redis.url(), &redis).await;
    let sentinels = Sentinels::start();
    four_replicas_admit_exactly_the_limit(&sentinels.url(), sentinels.master()).await;
}

async fn four_replicas_admit_exactly_the_limit(store: &str, redis: &Redis) {
    let start = || Service::with(RULES).on(store).start();
    let services = [start(), start(), start(), start()];
    let user = ("user", "everyone".to_owned());
    let call = vec![("tenant", "acme".to_owned()), user.clone()];
    let ledger = Load::start(&services.each_ref(), 64, vec![call], 5_000).await.end().await;

    assert_eq!((ledger.admitted[&user], ledger.failed), (1000, Vec::new()));
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("user=everyone")]), 1000);
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("tenant=acme")]), 1000);
    redis.assert_no_key_leaks();
}

/// On every algorithm: the number of admitted hits is exactly the limit, and exactly the
/// count of each counter. `EXACT_CALLS` sets the number of calls; docs/internals/correctness.md has a long run.
#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_admit_exactly_each_limit_of_every_algorithm() {
    const KEYS: usize = 100;
    let calls = number("EXACT_CALLS", 20_000) as usize;
    // Ten times as many calls as may pass.
    let limit = (calls / KEYS / 10) as u64;
    let began = Instant::now();
    let redis = Redis::start();
    let start = |_| Service::with(&rules(limit, &[])).on(&redis.url()).start();
    let services: Vec<Service> = (0..8).map(start).collect();
    let services: Vec<_> = services.iter().collect();
    let key = |number: usize| (ALGORITHMS[number % 5], format!("key{}", number / 5));
    // Seven calls in a row have the same key, so that several clients charge it at once.
    let in_turn: Vec<_> = (0..KEYS).flat_map(|number| vec![vec![key(number)]; 7]).collect();
    let rounds = calls.div_ceil(in_turn.len());
    let ledger = Load::start(&services, 64, in_turn, rounds).await.end().await;

    assert_eq!(ledger.failed, []);
    for key in (0..KEYS).map(key) {
        let used = services[0].counter("shop", &format!("{}={}", key.0, key.1))["used"].clone();
        assert_eq!((ledger.admitted[&key], used), (limit, limit.into()), "{key:?}");
    }
    redis.assert_no_key_leaks();
    println!(
        "{} calls to 8 processes: {limit} on each of {KEYS} keys; {:.0?}",
        ledger.calls,
        began.elapsed()
    );
}

/// 100 calls in a second, and then 1,500 in the next, none of which waits for another one. Also prints how many
/// were decided a second, and how many 64 clients get decided that wait for each answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_surge_of_fifteen_times_the_load_admits_exactly_the_limit_and_every_call_is_answered() {
    const PACED: u32 = 100;
    const SURGE: u32 = 15 * PACED;
    const LIMIT: usize = 1000;
    let redis = Redis::start();
    let flags = &["--decision-budget", "1s"];
    let service = Service::with(RULES).on(&redis.url()).flags(flags).ready();
    let client = service.client().await;
    let ask = |key: &'static str| {
        let mut client = client.clone();
        async move { client.should_rate_limit(request("shop", vec![descriptor(&[(key, "all")])])).await }
    };

    let mut calls = JoinSet::new();
    let began = Instant::now();
    for (count, start) in [(PACED, 0), (SURGE, 1)] {
        for number in 0..count {
            let at = began + Duration::from_secs(start) + Duration::from_secs(1) * number / count;
            tokio::time::sleep_until(at.into()).await;
            calls.spawn(ask("user"));
        }
    }
    let (mut passed, mut denied, mut failed) = (0, 0, 0);
    while let Some(answer) = calls.join_next().await {
        match answer.unwrap() {
            Ok(answer) if answer.get_ref().overall_code() == Code::Ok => passed += 1,
            Ok(_) => denied += 1,
            // The rule's `on_store_failure` is `error`.
            Err(status) if status.code() == Status::Unavailable => failed += 1,
            Err(status) => panic!("{status}"),
        }
    }
    let took = began.elapsed() - Duration::from_secs(1);
    let surge = f64::from(SURGE - failed) / took.as_secs_f64();

    let (began, mut peak) = (Instant::now(), JoinSet::new());
    for _ in 0..64 {
        let mut calls = Vec::from_iter((0..20).map(|_| ask("tenant")));
        peak.spawn(async move {
            while let Some(call) = calls.pop() {
                call.await.unwrap();
            }
        });
    }
    peak.join_all().await;
    let peak = 64.0 * 20.0 / began.elapsed().as_secs_f64();
    println!(
        "{passed} passed, {denied} denied, {failed} failed; {surge:.0}/s, at most {peak:.0}/s"
    );
    assert_eq!(passed, LIMIT);
    assert_eq!(redis.query::<usize>(&["GET", &redis.key("user=all")]), LIMIT);
}
