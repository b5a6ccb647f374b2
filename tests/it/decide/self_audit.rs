//! The self-audit: what was answered in a window is compared with the limit, over all replicas.

use crate::support::{overrides, prelude::*};

const RULES: &str = "
domain: shop
descriptors:
  - { key: exact, rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5 } }
  - { key: deleted, rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5 } }
  - { key: raised, rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5 } }
  - { key: planted, rate_limit: { unit: second, unit_multiplier: 8, requests_per_unit: 100000 } }
  - { key: reset, rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5 } }
  - { key: refunded, rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5 } }
  - { key: unused, rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5 } }
  - { key: changed, rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5 } }
  - key: allowed
    rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5, on_store_failure: allow }
  - key: done
    rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 5, count_denied: true }
  - { key: long, rate_limit: { unit: year, requests_per_unit: 1000000 } }
";

/// A value whose counter lives for 7.9 s after its window of 8 s, so that it is still there when it is compared.
const CANARY: &str = "canary-7d1e-24";

fn start(store: &str, flags: &[&str]) -> Service {
    Service::with(RULES).on(store).flags(&[&["--audit-one-in", "1"], flags].concat()).start()
}

async fn ask(service: &Service, key: &str, count: u64) {
    let call = request("shop", vec![hits(descriptor(&[(key, CANARY)]), count)]);
    drop(service.ask(call).await);
}

/// The sum of a metric of a rule with this label, over replicas.
fn metric(services: &[Service], name: &str, rule: &str, label: &str) -> f64 {
    let begin = format!("ratelimit_audit_{name}{{");
    let labels = [&*format!("rule=\"{rule}\""), &*format!("=\"{label}\"")];
    services.iter().map(|service| service.metric_with(&begin, &labels)).sum()
}

fn windows(services: &[Service], rule: &str, outcome: &str) -> f64 {
    metric(services, "windows_total", rule, outcome)
}

/// The keys of the counters of this rule.
fn counters(redis: &Redis, rule: &str) -> Vec<String> {
    let part = format!("|{rule}=");
    let is_counter = |key: &String| key.starts_with("tk1:fw:") && key.contains(&part);
    redis.keys().into_iter().filter(is_counter).collect()
}

#[tokio::test]
async fn planted_faults_show_as_planted_and_what_is_legitimate_does_not() {
    let redis = Redis::start();
    let services = [(); 2].map(|()| start(&redis.url_with_minimal_rights(), &[]));
    let began = Instant::now();
    let deadline = began + PATIENCE;
    overrides::set(&services[0], "changed=*", json!({ "limit": 50 }));
    loop {
        for service in &services {
            for key in
                ["exact", "deleted", "raised", "planted", "reset", "refunded", "changed", "done"]
            {
                ask(service, key, 1).await;
            }
            let refund = refund(descriptor(&[("refunded", CANARY)]), 1);
            service.ask(request("shop", vec![refund])).await.unwrap();
        }
        for key in counters(&redis, "deleted") {
            redis.query::<()>(&["DEL", &key]);
        }
        for key in counters(&redis, "raised") {
            redis.query::<redis::Value>(&["SET", &key, "5", "XX", "KEEPTTL"]);
        }
        for key in counters(&redis, "planted") {
            redis.query::<redis::Value>(&["EVAL", ADD_ONE, "1", &key]);
        }
        for change in [
            format!("reset?domain=shop&descriptor=reset%3D{CANARY}"),
            "reset?domain=shop&descriptor=unused%3Da".to_owned(),
            "set?domain=shop&descriptor=unused%3Db&used=1".to_owned(),
        ] {
            let change = format!("/counters/{change}");
            services[1].exchange_at(services[1].admin, "POST", &change, b"");
        }
        let found = [
            ("exact", "exact"),
            ("deleted", "over"),
            ("raised", "denied_early"),
            ("planted", "stranded"),
            ("reset", "skipped"),
            ("unused", "skipped"),
            ("refunded", "skipped"),
            ("changed", "skipped"),
        ];
        if found.iter().all(|(rule, outcome)| windows(&services, rule, outcome) > 0.0) {
            break;
        }
        assert!(Instant::now() < deadline, "{}", services[0].get("/metrics"));
    }
    for (rule, outcomes) in [
        ("exact", &["over", "denied_early", "stranded"][..]),
        ("raised", &["over"]),
        ("planted", &["over", "denied_early"]),
        ("reset", &["over", "denied_early", "stranded"]),
        ("override", &["skipped"]),
        ("refunded", &["over", "denied_early", "stranded"]),
        ("changed", &["over", "denied_early", "stranded"]),
        ("done", &["over", "denied_early", "stranded", "exact", "skipped"]),
    ] {
        for outcome in outcomes {
            let count = windows(&services, rule, outcome);
            assert_eq!(count, 0.0, "{rule} {outcome}: {}", services[0].get("/metrics"));
        }
    }
    assert!(metric(&services, "over_ratio", "deleted", "unknown") > 0.0);
    assert_eq!(metric(&services, "over_ratio", "exact", "unknown"), 0.0);
    let passed = began.elapsed().as_secs_f64();
    let all: f64 =
        ["exact", "skipped"].map(|outcome| windows(&services, "exact", outcome)).iter().sum();
    assert!(all <= passed / 2.0 + 1.0, "{all} windows of two replicas in {passed} s");
    // The log of changes has the descriptors that operators name.
    let is_shown = |line: &&str| line.contains("self_audit") || line.contains("ratelimit_");
    let texts = services.iter().map(|service| service.log() + &service.get("/metrics"));
    let shown: String = texts
        .flat_map(|text| text.lines().filter(is_shown).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    for line in ["more hits passed in a window than", "a call was denied that would have fitted"] {
        assert!(shown.contains(line), "no `{line}` in {shown}");
    }
    assert!(!shown.contains(CANARY), "a value in {shown}");
    redis.assert_no_key_leaks();
}

/// Adds a hit to a counter that is there.
const ADD_ONE: &str = "return redis.call('EXISTS', KEYS[1]) == 1 and redis.call('INCR', KEYS[1])";

#[tokio::test]
async fn a_refund_through_a_replica_without_room_for_its_window_makes_no_excess() {
    let redis = Redis::start();
    let services = [(); 2].map(|()| start(&redis.url_with_minimal_rights(), &[]));
    for call in 0..100 {
        let key = |number: usize| descriptor(&[("planted", &format!("{call}-{number}"))]);
        services[0].ask(request("shop", (0..60).map(key).collect())).await.unwrap();
    }
    assert!(services[0].get("/metrics").contains("ratelimit_audit_left_out_total"), "no room");
    let deadline = Instant::now() + PATIENCE;
    while windows(&services, "refunded", "skipped") < 3.0 {
        ask(&services[1], "refunded", 5).await;
        let refund = refund(descriptor(&[("refunded", CANARY)]), 5);
        services[0].ask(request("shop", vec![refund])).await.unwrap();
        assert!(Instant::now() < deadline, "{}", services[1].get("/metrics"));
    }
    assert_eq!(windows(&services, "refunded", "over"), 0.0);
}

#[tokio::test]
async fn calls_that_pass_in_an_outage_are_over_the_limit_by_a_cause_of_their_own() {
    let mut redis = Redis::start();
    let services = [start(&redis.url(), &["--decision-budget", "100ms"])];
    services[0].wait_until_ready();
    redis.stop();
    let deadline = Instant::now() + PATIENCE;
    while windows(&services, "allowed", "over") < 2.0 {
        ask(&services[0], "allowed", 1).await;
        assert!(Instant::now() < deadline, "{}", services[0].get("/metrics"));
    }
    assert!(metric(&services, "over_ratio", "allowed", "outage") > 0.0);
    assert_eq!(metric(&services, "over_ratio", "allowed", "unknown"), 0.0);
}

#[tokio::test]
async fn a_replica_that_ends_leaves_its_sum_to_the_others_as_a_part() {
    let redis = Redis::start();
    let mut services = [(); 2].map(|()| start(&redis.url(), &[]));
    for service in &services {
        ask(service, "long", 7).await;
    }
    let sums = || {
        let keys = redis.keys();
        let key = keys.iter().find(|key| key.starts_with("tk1:au:") && key.contains("|long="))?;
        let sums: HashMap<String, String> = redis.query(&["HGETALL", key]);
        Some(sums.into_values().collect::<Vec<_>>())
    };
    eventually("both are registered", || (sums()?.len() == 2).then_some(()));
    ask(&services[0], "long", 5).await;
    services[0].end();
    let sums = sums().unwrap();
    let of_ended: Vec<_> = sums.iter().filter(|sum| sum.contains("\"hits\":12")).collect();
    assert_eq!(of_ended.len(), 1, "{sums:?}");
    redis.assert_no_key_leaks();
}
