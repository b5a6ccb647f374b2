//! What a domain asks of its calls. `decisions/quotas.txt` has which calls pass then.

use crate::support::{
    overrides::{send, set},
    prelude::*,
};

const REQUIRED: &str = "
domain: shop
require: [user, plan]
descriptors:
- { key: path, rate_limit: { unit: year, requests_per_unit: 3 } }
- key: user
  descriptors: [{ key: plan, rate_limit: { unit: year, requests_per_unit: 5 } }]
- { key: tokens, rate_limit: { unit: year, requests_per_unit: 9, count_denied: true } }
";

#[tokio::test]
async fn calls_without_the_required_entries_are_counted_logged_once_and_pass_if_they_are_only_reported()
 {
    let denying = Service::with(REQUIRED).start();
    let service = Service::with(&(REQUIRED.to_owned() + "require_mode: report\n")).start();
    for (service, mode, expected) in [
        (&denying, "deny", ["OVER_LIMIT: OK 3/3 YEAR"; 2]),
        (&service, "report", ["OK: OK 2/3 YEAR", "OK: OK 1/3 YEAR"]),
    ] {
        for expected in expected {
            assert_eq!(service.answer("path=/").await, expected);
        }
        let counted =
            format!(r#"ratelimit_calls_incomplete_total{{domain="shop",mode="{mode}"}} 2"#);
        service.assert_metric(&counted);
        let logged = service.log().matches("has the entries that `require` names").count();
        assert_eq!(logged, 1, "{mode}: {}", service.log());
    }
    let (_, _, explained) = service.exchange_at(
        service.admin,
        "POST",
        "/explain",
        br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "path", "value": "/"}]}]}"#,
    );
    let expected = "no descriptor has the entries that `require` names (user, plan): report";
    assert!(explained.contains(expected), "{explained}");
}

/// Envoy takes an error for "allow".
#[tokio::test]
async fn a_call_without_the_required_entries_is_denied_while_the_store_is_gone() {
    let redis = Redis::start();
    let url = redis.url();
    let service = Service::with(REQUIRED).on(&url).flags(&["--decision-budget", "100ms"]).start();
    drop(redis);
    let denied = service.answer("tokens=t(4) path=/").await;
    assert!(denied.starts_with("OVER_LIMIT: "), "{denied}");
    assert_eq!(service.answer("user=alice,plan=gold").await, "Unavailable");
}

#[tokio::test]
async fn calls_without_descriptors_are_counted_by_their_peer_and_logged_once_a_minute() {
    let service = Service::shop().start();
    for _ in 0..3 {
        let refusal = service.ask(request("shop", vec![])).await.unwrap_err();
        assert_eq!(refusal.message(), "descriptors: must have at least 1 item");
    }
    let expected = r#"ratelimit_empty_calls_total{peer="127.0.0.1"} 3"#;
    service.assert_metric(expected);
    let log = service.log();
    assert_eq!(log.matches("a call has no descriptors").count(), 1, "{log}");
}

#[tokio::test]
async fn a_rule_with_holds_by_counter_moves_the_counters_of_no_other_rule() {
    let before = "domain: shop
descriptors:
- { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }
";
    let hold = "{ for: 10m, by: counter, estimate: 2 }";
    let route = format!(
        "- {{ key: route, rate_limit: {{ unit: year, requests_per_unit: 10, hold: {hold} }} }}\n"
    );
    let redis = Redis::start();
    let cluster = Cluster::start();
    for store in ["memory://", &redis.url(), &cluster.url()] {
        let service = Service::with(before).on(store).ready();
        assert_eq!(service.answer("user=a").await, "OK: OK 9/10 YEAR");
        service.reload(&(before.to_owned() + &route));
        assert_eq!(service.answer("user=a").await, "OK: OK 8/10 YEAR");
        assert_eq!(service.answer("route=r(0)").await, "OK: OK 8/10 YEAR");
    }
}

#[tokio::test]
async fn hits_that_are_not_drawn_are_in_no_list_of_keys() {
    let rules = "
domain: shop
draw: first
descriptors:
  - { key: plan, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: credits, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 4 } }
";
    let service = Service::with(rules).flags(&["--top-keys", "values"]).start();
    set(&service, "plan=exempt", json!({ "action": "allow" }));
    service.answer("plan=a(2) credits=a(2)").await;
    service.answer("plan=exempt(2) credits=exempt(2)").await;
    let (_, top) = send(&service, "GET", "/top", "");
    let keys: Vec<_> = top["hottest"].as_array().unwrap().iter().map(|key| &key["key"]).collect();
    assert_eq!(keys, ["plan=a"], "{top}");
}
