//! Mode LEASE: hits that a caller spends itself. `holds.txt` has what is leased, and what is given back.

use super::{call, check_each, commit, decide, spell};
use crate::support::prelude::*;
use tollkeeper_proto::v1::{Commit, Verdict};

const RULES: &str = "
domain: llm
descriptors:
  - { key: hot, rate_limit: { unit: year, requests_per_unit: 1000, lease: auto } }
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 400, lease: auto, on_store_failure: allow } }
  - { key: local, rate_limit: { unit: year, requests_per_unit: 50, lease: auto, on_store_failure: local } }
  - { key: second, rate_limit: { unit: second, requests_per_unit: 100000, lease: auto } }
  - key: double
    rate_limits:
      - { unit: year, requests_per_unit: 1000, lease: auto }
      - { unit: year, unit_multiplier: 2, requests_per_unit: 1000, lease: auto }
";

async fn lease_of(service: &Service, text: &str) -> Verdict {
    decide(service, "llm", vec![call(&format!("{text} LEASE"))]).await.unwrap().remove(0)
}

async fn give_back(service: &Service, lease: &Verdict, used: u64) -> String {
    let hold = lease.hold.clone();
    commit(service, "llm", vec![Commit { hold, used: Some(used), ..Commit::default() }])
        .await
        .remove(0)
}

async fn on_both_stores(scenario: impl AsyncFn(&Service)) {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        scenario(&Service::with(RULES).on(store).start()).await;
    }
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn hits_that_are_lent_and_given_back_are_counted() {
    on_both_stores(async |service| {
        let lease = lease_of(service, "hot=d tenant=d 8").await;
        assert_eq!(give_back(service, &lease, 5).await, "APPLIED 5/8, APPLIED 5/8");
        let metrics = service.get("/metrics");
        for line in ["lent\"} 16", "given_back\"} 6"] {
            let line = format!(
                "ratelimit_lease_hits_total{{event=\"{line}
"
            );
            assert!(metrics.contains(&line), "{line} {metrics}");
        }
        let free = lease_of(service, "free=x nothing=x 7").await;
        assert!(free.spend_within.is_some());
    })
    .await;
}

#[tokio::test]
async fn a_lease_ends_after_200_ms_or_2_ms_before_its_window() {
    on_both_stores(async |service| {
        for turn in 0..40 {
            let lease = lease_of(service, &format!("hot=t{turn} second=a 5")).await;
            let millis = |time: Option<prost_types::Duration>| {
                Duration::try_from(time.unwrap()).unwrap().as_millis()
            };
            let until_end = millis(lease.statuses[1].duration_until_reset);
            let life = millis(lease.spend_within);
            assert_eq!(life, until_end.saturating_sub(2).min(200), "{until_end} ms are left");
            tokio::time::sleep(Duration::from_millis(27)).await;
        }
    })
    .await;
}

/// What callers spend in their own processes, and what others take meanwhile, is never more than the limit.
#[tokio::test]
async fn leases_of_callers_that_compete_never_exceed_the_limit() {
    on_both_stores(async |service| {
        let caller = async |_| {
            let mut spent = 0;
            for turn in 0..12 {
                let lease = lease_of(service, "hot=all 40").await;
                let used = lease.hits * (turn % 4) / 3;
                spent += used;
                if used < lease.hits {
                    give_back(service, &lease, used).await;
                }
                let taken = decide(service, "llm", vec![call("hot=all")]).await.unwrap().remove(0);
                spent += u64::from(taken.code == 1);
            }
            spent
        };
        let spent: u64 = join_all((0..16).map(caller)).await.into_iter().sum();
        let read = decide(service, "llm", vec![call("hot=all READ")]).await.unwrap();
        assert_eq!(read[0].statuses[0].used, Some(spent));
        assert!((950..=1000).contains(&spent), "{spent}");
    })
    .await;
}

#[tokio::test]
async fn nothing_is_leased_without_the_store_although_its_calls_pass() {
    let redis = Redis::absent();
    let flags = &["--decision-budget", "100ms"];
    let service = Service::with(RULES).on(&redis.url()).flags(flags).start();
    let lease = lease_of(&service, "tenant=a 5").await;
    assert!(spell(&lease).starts_with("Unavailable: calls[0]: "), "{lease:?}");
    assert_eq!(lease.hits, 0);
    check_each(&service, "llm", &[("tenant=a 5", "OK: OK tenant 400/400")]).await;
    // A limit by replica is not used up by leases that nobody got.
    for _ in 0..9 {
        let lease = lease_of(&service, "local=a 2").await;
        assert!(spell(&lease).starts_with("Unavailable: calls[0]: "), "{lease:?}");
    }
    check_each(&service, "llm", &[("local=a", "OK: OK local 49/50")]).await;
}

/// Starts Redis again without its data, and makes a call of 30 hits.
async fn start_again(redis: &mut Redis, service: &Service) {
    redis.start_again();
    while decide(service, "llm", vec![call("hot=a 30")]).await.unwrap()[0].code == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_is_left_of_a_lease_does_not_go_back_to_a_counter_that_was_lost() {
    let mut redis = Redis::start();
    let service = Service::with(RULES).on(&redis.url()).start();
    let lost = lease_of(&service, "hot=a 50").await;
    redis.stop();
    start_again(&mut redis, &service).await;
    assert_eq!(give_back(&service, &lost, 10).await, "LATE 10/50");
    check_each(&service, "llm", &[("hot=a READ", "OK: OK hot 970/1000 used 30")]).await;
}

/// The commit is the first to reach the next run of the server.
#[tokio::test]
async fn a_commit_that_meets_a_restart_of_the_store_gives_nothing_back_and_is_no_error() {
    let mut redis = Redis::start();
    let store = &redis.url();
    let services =
        [(); 2].map(|()| Service::start(Options { rules: RULES, store, ..Options::default() }));
    let [service, other] = &services;
    let lost = lease_of(service, "hot=a 50").await;
    redis.stop();
    start_again(&mut redis, other).await;
    assert_eq!(give_back(service, &lost, 10).await, "LATE 10/50");
    check_each(service, "llm", &[("hot=a READ", "OK: OK hot 970/1000 used 30")]).await;
}

/// A give-back that was kept while the server was away is not sent to the next run of it.
#[tokio::test]
async fn what_is_given_back_while_the_store_is_away_does_not_go_back_to_a_counter_that_was_lost() {
    let mut redis = Redis::start();
    let service = Service::with(RULES).on(&redis.url()).start();
    let lost = lease_of(&service, "hot=a 50").await;
    redis.stop();
    assert!(!give_back(&service, &lost, 10).await.starts_with("APPLIED"));
    start_again(&mut redis, &service).await;
    // Nothing else is kept.
    let line = "ratelimit_commits_queued 0";
    wait_until("it is not kept any more", || service.get("/metrics").contains(line));
    check_each(&service, "llm", &[("hot=a READ", "OK: OK hot 970/1000 used 30")]).await;
}

#[tokio::test]
async fn a_lease_whose_charges_no_token_can_name_is_refused() {
    on_both_stores(async |service| {
        let lease = |count, value: &str| {
            let descriptors = (0..count).map(|number| format!("double={number}{value} "));
            descriptors.collect::<String>() + "LEASE"
        };
        let (many, long) = (lease(33, ""), lease(30, &"x".repeat(120)));
        let error = "InvalidArgument: calls[0].descriptors: with mode LEASE, they must make at most 64 charges, \
                     whose names fit a token of 8192 characters";
        check_each(service, "llm", &[(&*many, error), (&*long, error)]).await;
        assert_eq!(lease_of(service, &lease(32, "")).await.hits, 1);
    })
    .await;
}

#[tokio::test]
async fn what_is_left_of_a_lease_does_not_undo_what_is_set_after_its_limit_leases_no_more() {
    on_both_stores(async |service| {
        let before = lease_of(service, "hot=s 50").await;
        service.reload(&RULES.replace(", lease: auto", ""));
        let path = "/counters/set?domain=llm&descriptor=hot%3Ds&used=100";
        assert_eq!(service.exchange_at(service.admin, "POST", path, b"").0, 200);
        give_back(service, &before, 0).await;
        check_each(service, "llm", &[("hot=s READ", "OK: OK hot 900/1000 used 100")]).await;
    })
    .await;
}

#[tokio::test]
async fn a_lease_in_json_is_that_of_grpc() {
    let service = Service::with(RULES).start();
    let body = json!({ "domain": "llm", "calls": [
        { "mode": "LEASE", "hits": 5, "descriptors": [{ "entries": [{ "key": "hot", "value": "j" }] }] },
    ] });
    let (_, _, answer) = service.exchange("POST", "/v1/decide", body.to_string().as_bytes());
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let verdict = &answer["verdicts"][0];
    assert_eq!((&verdict["hits"], &verdict["spendWithin"]), (&json!(5), &json!("0.200s")));
    let commit = json!({ "domain": "llm", "commits": [{ "hold": verdict["hold"], "used": 2 }] });
    let (_, _, answer) = service.exchange("POST", "/v1/commit", commit.to_string().as_bytes());
    let expected =
        json!({ "results": [{ "charges": [{ "outcome": "APPLIED", "held": 5, "used": 2 }] }] });
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), expected);
}
