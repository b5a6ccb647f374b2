//! Promises "an answer in time" and "corrupt counters": decisions while Redis does not answer, or for corrupt counters.

use crate::support::prelude::*;

const RULES: &str = "
domain: shop
descriptors:
  - { key: error, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: held, rate_limit: { unit: year, requests_per_unit: 10, hold: { for: 1h, by: id } } }
  - { key: deny, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: deny } }
  - { key: allow, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: allow } }
  - { key: local, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: local } }
  - key: bucket
    rate_limit:
      { unit: year, requests_per_unit: 9, algorithm: token_bucket, on_store_failure: local }
  - { key: work, rate_limit: { unit: year, requests_per_unit: 10, count_denied: true } }
  - { key: free, rate_limit: { unlimited: true } }
  - key: log
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: sliding_log, on_store_failure: deny }
  - key: first
    rate_limit:
      { unit: year, requests_per_unit: 10, algorithm: first_hit_window, on_store_failure: deny }
  - key: sliding
    rate_limit:
      { unit: year, requests_per_unit: 10, algorithm: sliding_window, on_store_failure: deny }
  - key: gcra
    rate_limit:
      { unit: year, requests_per_unit: 10, algorithm: token_bucket, on_store_failure: deny }
";

#[tokio::test]
async fn without_redis_the_strictest_failure_mode_of_the_call_decides() {
    let redis = Redis::absent();
    let flags = &["--decision-budget", "50ms"];
    let service = Service::with(RULES).on(&redis.url()).flags(flags).start();
    assert_eq!(service.answer("error=x").await, "Unavailable");
    assert_eq!(service.answer("free=x").await, "OK: OK unlimited", "it needs no Redis");
    assert_eq!(service.answer("deny=x").await, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR");
    assert_eq!(service.answer("allow=x").await, "OK: OK 10/10 YEAR");
    assert_eq!(service.answer("local=x").await, "OK: OK 9/10 YEAR");
    assert_eq!(service.answer("local=x allow=x").await, "OK: OK 8/10 YEAR, OK 10/10 YEAR");
    assert_eq!(service.answer("local=x error=x").await, "Unavailable");
    let denied = "OVER_LIMIT: OK 10/10 YEAR, OVER_LIMIT 0/10 YEAR";
    assert_eq!(service.answer("error=x deny=x").await, denied);
    assert_eq!(service.answer("local=x deny=x").await, denied);
    assert_eq!(service.answer("local=x(0)").await, "OK: OK 8/10 YEAR");
    assert_eq!(service.answer("local=x(-1)").await, "OK: OK 9/10 YEAR");
    assert_eq!(service.answer("deny=x(-1)").await, "Unavailable");
    assert_eq!(service.answer("allow=x(-1)").await, "OK: OK 10/10 YEAR");
    assert_eq!(service.answer("local=x(10)").await, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR");
    // A commit waits for Redis, whatever becomes of its call.
    let commit = "held=x,hold.id=job,hold.used=3";
    assert_eq!(service.answer(commit).await, "Unavailable");
    let answer = service.answer(&format!("{commit} allow=x")).await;
    assert_eq!(answer, "OK: OK 10/10 YEAR, OK 10/10 YEAR");
}

#[tokio::test]
async fn each_replica_counts_its_share_of_the_limit() {
    let redis = Redis::absent();
    let flags = &["--decision-budget", "50ms", "--replicas", "4"];
    let service = Service::with(RULES).on(&redis.url()).flags(flags).start();
    // A quarter of ten, rounded up; the answer has the whole limit.
    assert_eq!(service.answer("local=x(3)").await, "OK: OK 0/10 YEAR");
    assert_eq!(service.answer("local=x").await, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR");
    assert_eq!(service.answer("bucket=x(3)").await, "OK: OK 0/9 YEAR");
    assert_eq!(service.answer("bucket=x").await, "OVER_LIMIT: OVER_LIMIT 0/9 YEAR");
}

#[tokio::test]
async fn the_setting_applies_to_limits_without_on_store_failure() {
    let redis = Redis::absent();
    let flags = &["--decision-budget", "50ms", "--on-store-failure", "allow"];
    let service = Service::with(RULES).on(&redis.url()).flags(flags).start();
    assert_eq!(service.answer("error=x").await, "OK: OK 10/10 YEAR");
    assert_eq!(service.answer("deny=x").await, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR");
}

#[tokio::test]
async fn metrics_show_an_outage_by_server_and_what_was_decided_without_it_by_rule_and_mode() {
    let redis = Redis::start();
    let service = Service::with(RULES).on(&redis.url()).ready();
    let server = format!("{{server=\"127.0.0.1:{}\"}}", redis.port);
    let shows = |name: &str, value: u64| {
        service.wait_for_metric(&format!("ratelimit_store_{name}{server} {value}\n"));
    };
    shows("up", 1);
    redis.signal("STOP");
    while !service.get("/metrics").contains(&format!("ratelimit_store_breaker_open{server} 1")) {
        for key in ["error", "deny", "allow", "local"] {
            drop(service.ask(shop(&format!("{key}=x"))).await);
        }
    }
    shows("up", 0);
    let metrics = service.get("/metrics");
    for mode in ["error", "deny", "allow", "local"] {
        let series = format!("ratelimit_fallbacks_total{{mode=\"{mode}\",rule=\"{mode}\"}}");
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
    redis.signal("CONT");
    // The probe finds that out, without a call.
    shows("breaker_open", 0);
    shows("up", 1);
    assert_eq!(service.log().matches("answers again").count(), 1, "{}", service.log());
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn with_ready_needs_store_the_service_is_ready_only_while_the_store_answers() {
    let mut redis = Redis::start();
    let start = |flags: &[&str]| Service::with(RULES).flags(flags).on(&redis.url()).start();
    let (follows, stays) = (start(&["--ready-needs-store"]), start(&[]));
    let is = |service: &Service, status: u16| {
        wait_until("readiness changes", || service.exchange("GET", "/readyz", b"").0 == status);
    };
    is(&follows, 200);
    is(&stays, 200);
    redis.stop();
    for service in [&follows, &stays] {
        drop(service.ask(shop("error=x")).await);
    }
    is(&follows, 503);
    is(&stays, 200);
    redis.start_again();
    is(&follows, 200);
}

#[tokio::test]
async fn a_caller_who_waits_less_than_the_budget_gets_the_answer_of_the_failure_mode_in_time() {
    let redis = Redis::start();
    let flags = &["--decision-budget", "30s"];
    let service = Service::with(RULES).on(&redis.url()).flags(flags).ready();
    redis.signal("STOP");
    let mut call = tonic::Request::new(shop("deny=x"));
    call.set_timeout(Duration::from_secs(4));
    let answer = service.client().await.should_rate_limit(call).await.unwrap();
    assert_eq!(spell(answer.get_ref()), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR");
    redis.signal("CONT");
}

/// Overwrites the counters of these rules with text.
fn plant(redis: &Redis, names: &[&str]) {
    for name in names {
        redis.query::<()>(&["SET", &redis.key(&format!("|{name}=")), "planted", "KEEPTTL"]);
    }
}

#[tokio::test]
async fn the_failure_mode_decides_for_a_corrupt_counter_and_siblings_are_judged_as_usual() {
    let redis = Redis::start();
    // Every call must reach Redis.
    let service = Service::with(RULES).on(&redis.url()).flags(&["--over-limit-cache", "0"]).start();
    for name in ["error", "deny", "allow", "local"] {
        assert_eq!(service.answer(&format!("{name}=x")).await, "OK: OK 9/10 YEAR");
    }
    plant(&redis, &["error", "deny", "allow", "local"]);
    assert_eq!(service.answer("error=sibling(1) error=x").await, "Unavailable");
    assert_eq!(
        service.answer("error=sibling(1) deny=x").await,
        "OVER_LIMIT: OK 10/10 YEAR, OVER_LIMIT 0/10 YEAR"
    );
    assert_eq!(service.answer("error=sibling(1) allow=x").await, "OK: OK 9/10 YEAR, OK 10/10 YEAR");
    assert_eq!(service.answer("local=x error=sibling(1)").await, "OK: OK 9/10 YEAR, OK 8/10 YEAR");
    assert_eq!(service.answer("error=sibling(0)").await, "OK: OK 8/10 YEAR");

    // A sibling that is over denies the call; the call fails only if no other charge denies it.
    let over = "OVER_LIMIT: OVER_LIMIT 0/10 YEAR";
    assert_eq!(service.answer("error=sibling(9) error=x").await, format!("{over}, OK 10/10 YEAR"));
    // A charge that memory admitted is refunded if a sibling denies the call.
    assert_eq!(service.answer("error=sibling(9) local=x").await, format!("{over}, OK 8/10 YEAR"));
    assert_eq!(service.answer("local=x(0)").await, "OK: OK 9/10 YEAR");
    assert_eq!(
        service.answer("local=x(10) error=sibling(1)").await,
        format!("{over}, OK 8/10 YEAR")
    );
    // Refunds and `count_denied` charges apply even in a call that the corrupt counter denies.
    let expected = "OVER_LIMIT: OK 9/10 YEAR, OK 9/10 YEAR, OVER_LIMIT 0/10 YEAR";
    assert_eq!(service.answer("work=x error=sibling(-1) deny=x").await, expected);
    assert_eq!(service.answer("work=x error=sibling(-1) error=x").await, "Unavailable");
    assert_eq!(
        service.answer("work=x(0) error=sibling(0)").await,
        "OK: OK 9/10 YEAR, OK 9/10 YEAR"
    );

    let metrics = service.get("/metrics");
    for rule in ["error", "deny", "allow", "local"] {
        let series = format!(r#"ratelimit_counters_corrupt_total{{rule="{rule}"}}"#);
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
    let log = service.log();
    assert!(!log.contains("is unusable") && !log.contains("planted"), "{log}");
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn each_rule_whose_counter_is_corrupt_is_logged_and_a_call_asks_redis_twice_at_most() {
    let (redis, service) = Service::with(RULES).on_redis();
    assert_eq!(
        service.answer("error=x deny=x local=x").await,
        "OK: OK 9/10 YEAR, OK 9/10 YEAR, OK 9/10 YEAR"
    );
    plant(&redis, &["error", "deny", "local"]);
    for (name, expected) in [
        ("error", "Unavailable"),
        ("deny", "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("local", "OK: OK 9/10 YEAR"),
    ] {
        assert_eq!(service.answer(&format!("{name}=x")).await, expected);
        service.wait_for_log(&format!("holds something other than a count rule=\"{name}\""));
    }
    let before = redis.runs_of("evalsha");
    assert_eq!(
        service.answer("deny=x error=x").await,
        "OVER_LIMIT: OVER_LIMIT 0/10 YEAR, OK 10/10 YEAR"
    );
    assert_eq!(
        redis.runs_of("evalsha") - before,
        2,
        "the script for fixed windows, then the other"
    );
}

#[tokio::test]
async fn every_algorithm_treats_values_that_it_never_writes_as_corrupt() {
    let (redis, service) = Service::with(RULES).on_redis();
    for name in ["deny", "first", "log", "sliding", "gcra"] {
        assert_eq!(service.answer(&format!("{name}=x")).await, "OK: OK 9/10 YEAR");
        let key = redis.key(&format!("|{name}="));
        let mut plants: Vec<Vec<&str>> =
            vec![vec!["HSET", &key, "x", "1"], vec!["SADD", &key, "1"]];
        match name {
            "log" => {
                plants.push(vec!["SET", &key, "5"]);
                plants.extend(
                    [
                        "",
                        "x",
                        "1 2",
                        "1 2 x",
                        "9007199254740992 1 1",
                        "1 5 100",
                        "1 5 0",
                        "9007199254740991 5 5",
                        "4102444800000 9007199254740991 1",
                        "4102444800000 5 5\nevil",
                    ]
                    .map(|entry| vec!["RPUSH", &key, entry]),
                );
            }
            _ => {
                plants.push(vec!["RPUSH", &key, "1"]);
                plants.extend(
                    [
                        "",
                        "x",
                        "-1",
                        "1.5",
                        "1e3",
                        "9007199254740992",
                        "9223372036854775807",
                        "1 2 3 4",
                        "1 9007199254740992",
                    ]
                    .map(|value| vec!["SET", &key, value]),
                );
            }
        }
        for plant in &plants {
            redis.query::<i64>(&["DEL", &key]);
            redis.query::<redis::Value>(plant);
            let expected = "OVER_LIMIT: OVER_LIMIT 0/10 YEAR, OK 10/10 YEAR";
            assert_eq!(
                service.answer(&format!("{name}=x work={name}(0)")).await,
                expected,
                "{plant:?}"
            );
        }
        let count = plants.len();
        let counted = format!("ratelimit_counters_corrupt_total{{rule=\"{name}\"}} {count}\n");
        service.assert_metric(&counted);
    }
}

/// Logs whose entries contradict each other: a script that reads only some of the entries may miss that.
#[tokio::test]
async fn a_refund_on_a_corrupt_log_is_not_an_outage_and_admits_no_more() {
    let (redis, service) = Service::with(RULES).on_redis();
    assert_eq!(service.answer("log=x").await, "OK: OK 9/10 YEAR");
    let key = redis.key("|log=");
    let now = redis.query::<Vec<u64>>(&["TIME"])[0] * 1000;
    for entries in [["5 5", "1000 0"], ["100 1", "5 1"], ["5 5", "6 6"], ["1 1", "x"]] {
        redis.query::<i64>(&["DEL", &key]);
        for entry in entries {
            redis.query::<i64>(&["RPUSH", &key, &format!("{now} {entry}")]);
        }
        redis.query::<i64>(&["EXPIRE", &key, "1000"]);
        service.answer("log=x(-100) work=x(0)").await;
        // Whatever the log holds, more than the limit must not pass.
        assert!(!service.answer("log=x(11)").await.starts_with("OK"));
    }
    assert!(!service.log().contains("is unusable"), "{}", service.log());
}

#[tokio::test]
async fn a_reset_fits_into_its_message_and_a_key_lives_at_most_a_hundred_years() {
    let rules = "
domain: shop
descriptors:
  - key: tokens
    rate_limit: { unit: hour, requests_per_unit: 10, algorithm: token_bucket, count_denied: true }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(rules).on(store).start();
        let answer = service.ask(shop(&format!("tokens=x({})", u64::MAX))).await.unwrap();
        let reset = answer.statuses[0].duration_until_reset.unwrap().seconds;
        assert!((1..=315_576_000_000).contains(&reset), "{reset}");
    }
    let ttl: i64 = redis.query(&["TTL", &redis.key("tokens")]);
    assert!((1..=3_153_600_000).contains(&ttl), "{ttl}");
}

/// A bucket that refills more slowly after a reload still owes the same hits.
#[tokio::test]
async fn a_bucket_whose_rate_is_lowered_keeps_its_debt() {
    let rules = "domain: shop\ndescriptors: [{ key: k, rate_limit: { unit: hour, requests_per_unit: 108000, burst: 30, algorithm: token_bucket } }]";
    let (redis, service) = Service::with(rules).on_redis();
    assert_eq!(service.answer("k=x(30)").await, "OK: OK 0/108000 HOUR");
    // The bucket refills within a second, and yet its key stays for an hour more.
    let ttl: i64 = redis.query(&["TTL", &redis.key("|k=")]);
    assert!((3590..=3602).contains(&ttl), "{ttl}");
}
