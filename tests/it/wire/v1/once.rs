//! Calls with an id, which may be repeated.

use tokio::time::sleep;
use tollkeeper_proto::v1::{Call, Verdict};

use super::{HOLDS, call, check, client, commit, decide, post, renew, spell, used};
use crate::support::{
    cluster_calls::{masters, serve},
    fault_proxy::Cut,
    prelude::*,
    sentinels::{NAME, sentinel_of},
    service::{RULES, service_at},
};

fn named(id: &str, text: &str) -> Call {
    Call { id: id.to_owned(), ..call(text) }
}

async fn ask(service: &Service, id: &str, text: &str) -> Verdict {
    decide(service, "shop", vec![named(id, text)]).await.unwrap().remove(0)
}

const UNANSWERED: &str = "Unavailable: calls[0]: the first call with this id is not decided yet, or its verdict was lost";
const ANOTHER: &str =
    "InvalidArgument: calls[0].id: another call had the same id within the last 60 s";

/// Repeats calls, and compares what is charged in the end.
async fn repeat(service: &Service) {
    for (id, text) in
        [("take", "user=a 3"), ("debit", "user=b 3 DEBIT"), ("part", "user=two 3 PART")]
    {
        let first = ask(service, id, text).await;
        assert_eq!(first.code, 1, "{text}: {first:?}");
        assert_eq!(ask(service, id, text).await, first, "{text}");
        assert_eq!(spell(&ask(service, id, "user=a 4").await), ANOTHER, "{text}");
        assert_eq!(ask(service, id, text).await, first, "{text}");
    }
    // A denied call charges nothing, and is not judged again.
    let denied = ask(service, "denied", "user=c 11").await;
    assert_eq!(spell(&denied), "OVER_LIMIT: OVER_LIMIT user 0/10");
    assert_eq!(ask(service, "denied", "user=c 11").await, denied);
    // Escaped in the key, and other than the ids above.
    assert_eq!(spell(&ask(service, "ta ke|%{\u{e9}", "user=a").await), "OK: OK user 6/10");
    let reads = vec![call("user=a READ"), call("user=b READ"), call("user=two READ")];
    let expected = [
        ("", "OK: OK user 6/10 used 4"),
        ("", "OK: OK user 7/10 used 3"),
        ("", "OK: OVER_LIMIT user=two 0/2 used 2"),
    ];
    check(decide(service, "shop", reads).await, &expected);
}

#[tokio::test]
async fn a_repeated_call_gets_the_first_verdict_and_charges_nothing_more() {
    on_every_store(RULES, &[], repeat).await;
    let redis = Redis::start_version(Version::Redis6);
    let sentinel = sentinel_of(&redis);
    let sentinel = format!("redis+sentinel://127.0.0.1:{}/{NAME}", sentinel.port);
    for store in [sentinel, redis.url_with_minimal_rights()] {
        redis.query::<()>(&["FLUSHALL"]);
        repeat(&Service::shop().on(&store).start()).await;
        redis.assert_no_key_leaks();
    }
    let cluster = masters(Version::Redis7);
    repeat(&serve(&cluster, RULES, &[])).await;
    cluster.assert_no_key_leaks();
}

/// So that an id takes little memory.
#[tokio::test]
async fn a_long_verdict_is_repeated_without_its_statuses() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).start();
    let users: Vec<String> = (0..60).map(|user| format!("user=u{user}")).collect();
    let first = ask(&service, "long", &users.join(" ")).await;
    assert_eq!((first.code, first.statuses.len()), (1, 60));
    let short = Verdict { statuses: Vec::new(), ..first };
    assert_eq!(ask(&service, "long", &users.join(" ")).await, short);
    let bytes: usize = redis.query(&["MEMORY", "USAGE", &redis.key("hold.once")]);
    assert!(bytes < 1024, "{bytes} bytes");
}

#[tokio::test]
async fn a_hold_of_a_repeated_call_is_the_first_one() {
    let service = Service::with(HOLDS).start();
    let ask = async || {
        let answer = decide(&service, "llm", vec![named("x", "user=a 300")]).await;
        answer.unwrap().remove(0).hold
    };
    let (first, again) = (ask().await, ask().await);
    assert!(!first.is_empty() && first == again, "{first} {again}");
    let commits = vec![used(&first, 42), used(&again, 42)];
    assert_eq!(commit(&service, "llm", commits).await, ["APPLIED 42/300", "REPEATED 42/300"]);
    let (_, refused) = renew(&service, "llm", used(&first, 1), named("x", "user=a")).await;
    let expected = "InvalidArgument: renewals[0].call.id: must be absent in a renewal";
    assert_eq!(spell(&refused), expected);
}

#[tokio::test]
async fn an_id_is_one_of_a_domain_in_json_and_grpc() {
    let service = Service::shop().start();
    assert_eq!(spell(&ask(&service, "x", "user=").await), "OK: OK user 9/10");
    let other = decide(&service, "mail", vec![named("x", "user=")]).await;
    check(other, &[("", "OK: OK -, domain unknown")]);
    let body = r#"{"domain":"shop","calls":[{"id":"y","hits":"3","descriptors":[{"entries":[{"key":"user","value":"j"}]}]}]}"#;
    let (_, first) = post(&service, "/v1/decide", body);
    assert_eq!(first["verdicts"][0]["statuses"][0]["limitRemaining"], 7);
    assert_eq!(post(&service, "/v1/decide", body).1, first);
    assert_eq!(spell(&ask(&service, "y", "user=j 3").await), "OK: OK user 7/10");
    assert_eq!(spell(&ask(&service, "y", "user=j 3 DEBIT").await), ANOTHER);
}

#[tokio::test]
async fn of_a_hundred_attempts_at_once_one_is_charged() {
    on_every_store(RULES, &[], async |service| {
        let mut client = client(service).await;
        let attempts = (0..100).map(|_| {
            let calls = vec![named("x", "work=w 5")];
            let request = tollkeeper_proto::v1::DecideRequest { domain: "shop".to_owned(), calls };
            let mut client = client.clone();
            async move { client.decide(request).await.unwrap().into_inner().verdicts.remove(0) }
        });
        let mut decided = 0;
        for verdict in join_all(attempts).await {
            match &*spell(&verdict) {
                "OK: OK work 995/1000" => decided += 1,
                other => assert_eq!(other, UNANSWERED),
            }
        }
        assert!(decided > 0);
        let repeated = decide(service, "shop", vec![named("x", "work=w 5")]).await;
        check(repeated, &[("", "OK: OK work 995/1000")]);
        let request = tollkeeper_proto::v1::DecideRequest {
            domain: "shop".to_owned(),
            calls: vec![call("work=w READ")],
        };
        let read = client.decide(request).await.unwrap().into_inner().verdicts;
        assert_eq!(read[0].statuses[0].used, Some(5));
    })
    .await;
}

#[tokio::test]
async fn another_replica_and_a_restarted_service_know_the_first_verdict() {
    let redis = Redis::start();
    let store = &redis.url();
    let first = {
        let service = Service::shop().on(store).start();
        ask(&service, "x", "user=a 3").await
    };
    let service = Service::shop().on(store).start();
    assert_eq!(ask(&service, "x", "user=a 3").await, first);
    assert_eq!(spell(&ask(&service, "", "user=a READ").await), "OK: OK user 7/10 used 3");

    // Somebody else has written to the record.
    let record = redis.key("hold.once");
    redis.query::<()>(&["SET", &record, "x", "PX", "60000"]);
    assert_eq!(spell(&ask(&service, "x", "user=a 3").await), UNANSWERED);
    assert!(!service.get("/metrics").contains("ratelimit_counters_corrupt_total{"));
}

/// In Redis, sixty seconds are taken from the time of both hits of the record.
#[tokio::test]
async fn an_id_is_forgotten_after_60_s() {
    let redis = Redis::start();
    // A denial that is remembered knows nothing of the time that is taken.
    let service = Service::shop().on(&redis.url()).flags(&["--over-limit-cache", "0"]).start();
    let left =
        async |service: &Service| ask(service, "x", "work=w").await.statuses[0].limit_remaining;
    assert_eq!([left(&service).await, left(&service).await], [999, 999]);
    let key = redis.key("hold.once");
    let ttl: i64 = redis.query(&["PTTL", &key]);
    assert!((50_000..=60_000).contains(&ttl), "{ttl}");
    for (by, expected) in [(59_000, 999), (1_000, 998)] {
        for index in ["0", "1"] {
            let hit: String = redis.query(&["LINDEX", &key, index]);
            let (at, rest) = hit.split_once(' ').unwrap();
            let at = at.parse::<i64>().unwrap() - by;
            redis.query::<()>(&["LSET", &key, index, &format!("{at} {rest}")]);
        }
        assert_eq!(left(&service).await, expected, "{by}");
    }

    // Its clock runs twenty times as fast.
    let began = Instant::now();
    let service = service_at("+0 x20", RULES, "memory://", &[]);
    loop {
        match &*spell(&ask(&service, "x", "work=w").await) {
            "OK: OK work 998/1000" => break,
            // The record ends between two looks at it.
            UNANSWERED | "OK: OK work 999/1000" => {}
            other => panic!("{other}"),
        }
        assert!(began.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(spell(&ask(&service, "x", "work=w").await), "OK: OK work 998/1000");
}

/// The charge runs, and its reply is lost.
#[tokio::test]
async fn a_call_whose_outcome_is_lost_is_never_charged_again() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.port, 1);
    let service = Service::shop().on(&proxy.url).flags(&["--decision-budget", "300ms"]).start();
    service.wait_until_ready();
    // Now Redis knows the scripts.
    assert_eq!(spell(&ask(&service, "warm", "work=w").await), "OK: OK work 999/1000");
    proxy.step();
    let first = async {
        // Begin.
        proxy.request().await;
        proxy.pass();
        proxy.request().await;
        proxy.set(Faults { requests: Flow::Step, replies: Flow::Drop, ..Faults::default() });
        proxy.pass();
    };
    let (verdict, ()) = tokio::join!(ask(&service, "x", "work=w 5"), first);
    let error = verdict.error.expect("its outcome is lost").message;
    assert!(error.starts_with("calls[0]: store unavailable"), "{error}");
    proxy.heal();
    proxy.cut(Cut::Rst);
    let deadline = Instant::now() + PATIENCE;
    while spell(&ask(&service, "x", "work=w 5").await) != UNANSWERED {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(spell(&ask(&service, "", "work=w READ").await), "OK: OK work 994/1000 used 6");
}

/// A debit is not kept either: its caller may send it again.
#[tokio::test]
async fn while_the_store_is_away_calls_with_an_id_are_answered_and_never_sent() {
    let rules = "
domain: shop
descriptors:
  - { key: fails, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: passes, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: allow } }
  - { key: denied, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: deny } }
";
    let mut redis = Redis::start();
    let flags = &["--decision-budget", "300ms"];
    let service = Service::with(rules).on(&redis.url()).flags(flags).start();
    service.wait_until_ready();
    redis.stop();
    for mode in ["TAKE", "DEBIT", "PART"] {
        for (id, key, code) in [("f", "fails", 0), ("p", "passes", 1), ("d", "denied", 2)] {
            // Nobody would repeat a debit that seems to be decided.
            let expected = if mode == "DEBIT" { 0 } else { code };
            for _ in 0..2 {
                let verdict =
                    ask(&service, &format!("{id}{mode}"), &format!("{key}=a {mode}")).await;
                assert_eq!(verdict.code, expected, "{mode}: {verdict:?}");
            }
        }
    }
    let kept = || service.metric("ratelimit_commits_queued ");
    assert_eq!(kept(), 0.0);
    ask(&service, "", "denied=c DEBIT").await;
    assert_eq!(kept(), 1.0, "without an id, a debit is kept");
    redis.start_again();
    let deadline = Instant::now() + PATIENCE;
    while ask(&service, "", "fails=b").await.error.is_some() {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(20)).await;
    }
    let reads = ["fails=a READ", "passes=a READ", "denied=a READ"].map(call);
    let expected = ["fails", "passes", "denied"].map(|key| format!("OK: OK {key} 10/10 used 0"));
    let expected = expected.each_ref().map(|verdict| ("", &**verdict));
    check(decide(&service, "shop", reads.into()).await, &expected);
}

#[tokio::test]
async fn a_full_redis_denies_calls_with_an_id_that_are_over_their_limit() {
    let rules = "{ domain: shop, descriptors: [{ key: user, rate_limit: \
        { unit: year, requests_per_unit: 3, on_store_failure: allow } }] }";
    let (redis, service) = Service::with(rules).on_redis();
    assert_eq!(spell(&ask(&service, "a", "user=a 3").await), "OK: OK user 0/3");
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(spell(&ask(&service, "b", "user=a").await), "OVER_LIMIT: OVER_LIMIT user 0/3");
    assert_eq!(ask(&service, "c", "user=b").await.code, 1, "the failure mode lets it pass");
}
