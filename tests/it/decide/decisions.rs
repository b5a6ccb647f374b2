//! Promises "all or nothing" and "statuses", on every store: hits, overrides, and descriptors without
//! a limit.

use std::cell::RefCell;

use crate::support::{
    calls::descriptors,
    fleet::{Scenario, on_every_store},
    overrides::send,
    prelude::*,
    service::{of_bytes, with_limit},
    stores::one,
};

#[track_caller]
fn same(actual: &str, expected: &str) {
    assert_eq!(actual, expected);
}

async fn check(scenario: &Scenario<'_>, descriptors: Vec<RateLimitDescriptor>, expected: &str) {
    same(&spell(&scenario.ask(descriptors).await), expected);
}

fn user(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name)])
}

/// All scenarios of `decisions.txt`, with whatever differs.
#[tokio::test]
async fn every_call_of_the_table_has_its_answer_on_every_store() {
    let differences = RefCell::new(Vec::new());
    for scenario in include_str!("decisions.txt").split("\n\n").skip(1) {
        let (name, steps) = scenario.split_once('\n').expect(scenario);
        on_every_store(async |scenario| {
            for step in steps.lines().filter(|line| !line.starts_with('#')) {
                let (call, expected) = step.split_once(" = ").expect(step);
                let found = spell(&scenario.ask(descriptors(call)).await);
                if found != expected {
                    let on = scenario.store;
                    let different = format!("{name}: {call} = {found} on {on}, not {expected}");
                    differences.borrow_mut().push(different);
                }
            }
        })
        .await;
    }
    let differences = differences.take();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test]
async fn the_hits_of_the_request_apply_to_descriptors_without_their_own() {
    on_every_store(async |scenario| {
        for (hits_addend, call, expected) in [
            (u32::MAX, "user=a", "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
            (3, "user=a user=b(2) user=c(0)", "OK: OK 7/10 YEAR, OK 8/10 YEAR, OK 10/10 YEAR"),
        ] {
            let call = RateLimitRequest { hits_addend, ..scenario.request(descriptors(call)) };
            same(&spell(&scenario.service.ask(call).await.unwrap()), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn in_an_unknown_domain_nothing_is_limited_not_even_by_an_override() {
    on_every_store(async |scenario| {
        let call = request("unknown", descriptors("user=a no=rule(;5/YEAR)"));
        same(&spell(&scenario.service.ask(call).await.unwrap()), "OK: OK -, OK -");
    })
    .await;
}

/// An override with a unit of any number.
fn with_unit(unit: i32) -> RateLimitDescriptor {
    let mut overridden = with_limit(user("a"), 1, RateLimitUnit::Second);
    overridden.limit.as_mut().unwrap().unit = unit;
    overridden
}

#[tokio::test]
async fn an_invalid_override_is_ignored_and_counted() {
    on_every_store(async |scenario| {
        check(scenario, vec![with_unit(0)], "OK: OK 9/10 YEAR").await;
        check(scenario, vec![with_unit(99)], "OK: OK 8/10 YEAR").await;
        check(scenario, vec![with_unit(-1)], "OK: OK 7/10 YEAR").await;
        let mut absurd = with_limit(user("a"), 1, RateLimitUnit::Year);
        for multiplier in [0, 101, u32::MAX] {
            absurd.limit.as_mut().unwrap().unit_multiplier = Some(multiplier);
            scenario.ask(vec![absurd.clone()]).await;
        }
        check(scenario, vec![user("a")], "OK: OK 3/10 YEAR").await;
        // No other scenario sends one.
        scenario.service.assert_metric("ratelimit_overrides_invalid_total 6");
    })
    .await;
}

#[tokio::test]
async fn the_multiplier_of_an_override_makes_its_window_longer() {
    on_every_store(async |scenario| {
        let mut descriptor = with_limit(user("a"), 5, RateLimitUnit::Year);
        descriptor.limit.as_mut().unwrap().unit_multiplier = Some(100);
        let response = scenario.ask(vec![descriptor]).await;
        let status = &response.statuses[0];
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!(limit.unit_multiplier, Some(100));
        assert!(status.duration_until_reset.unwrap().seconds > 365 * 86_400);
        // The rule has another window, and so another counter.
        check(scenario, vec![user("a")], "OK: OK 9/10 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn values_that_differ_in_any_byte_have_separate_counters() {
    on_every_store(async |scenario| {
        let long = vec![b'x'; 60_000];
        let mut longer = long.clone();
        longer[59_999] = b'y';
        let values: [&[u8]; 14] = [
            b"",
            b"_",
            b"{}",
            b"{a}",
            b"}",
            b"\0",
            b"\n",
            b"a\nb",
            b"\xff",
            b"\xff\xfe",
            b"%FF",
            "é".as_bytes(),
            &long,
            &longer,
        ];
        for value in values {
            check(scenario, vec![of_bytes(&[(b"user", value)])], "OK: OK 9/10 YEAR").await;
        }
        for value in values {
            check(scenario, vec![of_bytes(&[(b"user", value)])], "OK: OK 8/10 YEAR").await;
        }
    })
    .await;
}

#[tokio::test]
async fn keys_of_entries_may_be_any_bytes() {
    on_every_store(async |scenario| {
        for key in [&b"a_b"[..], b"{}", b"\0", b"\xff", b"a\nb"] {
            let descriptor = with_limit(of_bytes(&[(key, b"x")]), 5, RateLimitUnit::Year);
            check(scenario, vec![descriptor], "OK: OK 4/5 YEAR").await;
        }
        let split = with_limit(descriptor(&[("a", "b_c")]), 5, RateLimitUnit::Year);
        let joined = with_limit(descriptor(&[("a_b", "c")]), 5, RateLimitUnit::Year);
        check(scenario, vec![split, joined], "OK: OK 4/5 YEAR, OK 4/5 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn five_values_of_60_kb_are_limited_and_not_refused() {
    on_every_store(async |scenario| {
        let value = "v".repeat(60_000);
        let five: Vec<_> = (0..5).map(|n| user(&format!("{n}{value}"))).collect();
        let ok = "OK 9/10 YEAR";
        check(scenario, five, &format!("OK: {}", [ok; 5].join(", "))).await;
    })
    .await;
}

#[tokio::test]
async fn the_multiplier_of_a_rule_makes_its_window_longer() {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, unit_multiplier: 50, requests_per_unit: 5 } }
";
    let service = Service::with(rules).start();
    let answer = service.ask(request("shop", vec![user("a")])).await.unwrap();
    same(&spell(&answer), "OK: OK 4/5 YEAR");
    let status = &answer.statuses[0];
    assert_eq!(status.current_limit.as_ref().unwrap().unit_multiplier, Some(50));
    assert!(service.get("/rules").contains("5 per 50 years"));
}

/// Calls of a steady client that are denied would keep it out for good; Envoy's debits still count in full.
#[tokio::test]
async fn on_a_bucket_and_a_sliding_window_only_debits_are_charged_when_denied() {
    let rules = "
domain: shop
descriptors:
  - { key: bucket, rate_limit: { unit: year, requests_per_unit: 5, algorithm: token_bucket, count_denied: true } }
  - { key: sliding, rate_limit: { unit: year, requests_per_unit: 5, algorithm: sliding_window, count_denied: true } }
  - { key: quota, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 5, algorithm: token_bucket } }
  - { key: fixed, rate_limit: { unit: year, requests_per_unit: 5, count_denied: true } }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(rules).on(store).start();
        for (key, used_by_calls) in [("bucket", 5), ("sliding", 5), ("quota", 5), ("fixed", 9)] {
            for number in 0..9 {
                let answer = service.ask(shop(&format!("{key}=a"))).await.unwrap();
                let denied = answer.overall_code() == Code::OverLimit;
                assert_eq!(denied, number >= 5, "{key}");
            }
            let used = || {
                let path = format!("/counters?domain=shop&descriptor={key}%3Da");
                send(&service, "GET", &path, "").1["counters"][0]["used"].as_u64().unwrap()
            };
            assert_eq!(used(), used_by_calls, "{key}");
            service.ask(request("shop", vec![hits(one(key, "a"), 3)])).await.unwrap();
            assert_eq!(used(), used_by_calls + 3, "{key}: a debit");
            // A proxy that calls before each request is such a client too.
            service.exchange("POST", &format!("/check?domain=shop&d={key}=a"), b"");
            let counted = u64::from(key == "fixed");
            assert_eq!(used(), used_by_calls + 3 + counted, "{key}: a check by a proxy");
        }
    }
}

#[tokio::test]
async fn the_count_denied_setting_applies_to_all_rules_and_overrides() {
    let service = &Service::shop().flags(&["--count-denied"]).start();
    let scenario = &Scenario { service, domain: "shop".to_owned(), store: "memory" };
    check(scenario, vec![hits(user("two"), 3)], "OVER_LIMIT: OVER_LIMIT 0/2 YEAR").await;
    check(scenario, vec![hits(user("two"), 0)], "OVER_LIMIT: OVER_LIMIT 0/2 YEAR").await;
    let own = || with_limit(user("x"), 5, RateLimitUnit::Year);
    check(scenario, vec![hits(own(), 6)], "OVER_LIMIT: OVER_LIMIT 0/5 YEAR").await;
    check(scenario, vec![own()], "OVER_LIMIT: OVER_LIMIT 0/5 YEAR").await;
}

#[tokio::test]
async fn a_refused_debit_of_a_rule_that_gets_checks_is_logged_once_and_counted() {
    let service = &Service::shop().start();
    let scenario = &Scenario { service, domain: "shop".to_owned(), store: "memory" };
    let work = |count| vec![hits(descriptor(&[("work", "a")]), count)];
    let logged = || service.log().matches("`count_denied: true`").count();
    let over = "OVER_LIMIT: OVER_LIMIT 0/1000 YEAR";
    check(scenario, work(1001), over).await;
    assert_eq!(logged(), 0, "the rule has had no check");
    check(scenario, work(0), "OK: OK 1000/1000 YEAR").await;
    for _ in 0..2 {
        check(scenario, work(1001), over).await;
    }
    wait_until("the refused debit is logged", || logged() > 0);
    let metrics = service.get("/metrics");
    assert_eq!(logged(), 1, "{}", service.log());
    assert!(metrics.contains(r#"ratelimit_debits_refused_total{rule="work"} 2"#), "{metrics}");
}
