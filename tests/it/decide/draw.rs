//! `draw: first`: of several quotas, the first that fits is charged, and no other.

use crate::support::{overrides::*, prelude::*};

const RULES: &str = "
domain: shop
draw: first
descriptors:
  - { key: plan, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: credits, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 4 } }
  - key: both
    quota_mode: true
    rate_limits:
      - { unit: year, requests_per_unit: 3 }
      - { unit: year, requests_per_unit: 4, algorithm: fixed_window, unit_multiplier: 2 }
  - key: done
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 3, count_denied: true }
  - { key: cap, rate_limit: { unit: year, requests_per_unit: 6 } }
";

async fn check(service: &Service, keys: &[&str], user: &str, count: u64, expected: &str) {
    let one = |key: &&str| hits(descriptor(&[(key, user)]), count);
    let answer = service.ask(request("shop", keys.iter().map(one).collect())).await.unwrap();
    assert_eq!(spell(&answer), expected, "{keys:?} of {user}, {count} hits");
}

async fn draws(service: &Service) {
    let both = &["plan", "credits"];
    check(service, both, "a", 2, "OK: OK 1/3 YEAR, OK 4/4 YEAR").await;
    // What is left of the plan is too little for two hits, and remains.
    check(service, both, "a", 2, "OK: OVER_LIMIT 0/3 YEAR, OK 2/4 YEAR").await;
    check(service, both, "a", 1, "OK: OK 0/3 YEAR, OK 2/4 YEAR").await;
    check(service, both, "a", 3, "OVER_LIMIT: OVER_LIMIT 0/3 YEAR, OVER_LIMIT 0/4 YEAR").await;
    check(service, both, "a", 2, "OK: OVER_LIMIT 0/3 YEAR, OK 0/4 YEAR").await;
    check(service, both, "a", 1, "OVER_LIMIT: OVER_LIMIT 0/3 YEAR, OVER_LIMIT 0/4 YEAR").await;
    // The order is the order of the call.
    check(service, &["credits", "plan"], "b", 3, "OK: OK 1/4 YEAR, OK 3/3 YEAR").await;
    check(service, &["credits", "plan"], "b", 3, "OK: OVER_LIMIT 0/4 YEAR, OK 0/3 YEAR").await;
    // An enforced limit that denies the call leaves both.
    let all = &["plan", "credits", "cap"];
    check(service, all, "c", 3, "OK: OK 0/3 YEAR, OK 4/4 YEAR, OK 3/6 YEAR").await;
    let denied = "OVER_LIMIT: OVER_LIMIT 0/3 YEAR, OK 4/4 YEAR, OVER_LIMIT 0/6 YEAR";
    check(service, all, "c", 4, denied).await;
    check(service, both, "c", 0, "OK: OVER_LIMIT 0/3 YEAR, OK 4/4 YEAR").await;
    // Work that is done is charged to the last if it fits none.
    let done = &["plan", "done"];
    check(service, done, "d", 5, "OVER_LIMIT: OVER_LIMIT 0/3 YEAR, OVER_LIMIT 0/3 YEAR").await;
    check(service, done, "d", 0, "OK: OK 3/3 YEAR, OVER_LIMIT 0/3 YEAR").await;
}

#[tokio::test]
async fn the_first_quota_that_fits_is_charged_and_no_other() {
    on_every_store(RULES, &[], draws).await;
    // Most of these calls are on several nodes.
    let cluster = Cluster::start();
    draws(&Service::with(RULES).on(&cluster.url()).start()).await;
}

#[tokio::test]
async fn the_limits_of_a_rule_are_drawn_in_their_order() {
    on_every_store(RULES, &[], async |service| {
        for (count, code) in [(3, "OK"), (2, "OK"), (3, "OVER_LIMIT"), (2, "OK"), (1, "OVER_LIMIT")]
        {
            let asked = vec![hits(descriptor(&[("both", "a")]), count)];
            let answer = service.ask(request("shop", asked)).await.unwrap();
            assert_eq!(spell(&answer).split(':').next(), Some(code), "{count} hits");
        }
    })
    .await;
}

async fn draws_with_overrides(service: &Service) {
    let both = &["plan", "credits"];
    set(service, "plan=exempt", json!({ "action": "allow" }));
    set(service, "credits=later", json!({ "action": "allow" }));
    set(service, "plan=shadow", json!({ "action": "shadow" }));
    set(service, "plan=times", json!({ "times": 2 }));
    set(service, "credits=banned", json!({ "action": "ban" }));
    // Credits are not spent on calls that the plan lets pass.
    check(service, both, "exempt", 4, "OK: OK unlimited, OK 4/4 YEAR").await;
    check(service, both, "exempt", 3, "OK: OK unlimited, OK 4/4 YEAR").await;
    check(service, &["plan"], "exempt", 9, "OK: OK unlimited").await;
    let last = "OK: OK 3/3 YEAR, OK unlimited, OK 4/4 YEAR";
    check(service, &["done", "plan", "credits"], "exempt", 0, last).await;
    // The plan comes first as long as it lasts.
    check(service, both, "later", 2, "OK: OK 1/3 YEAR, OK unlimited").await;
    check(service, both, "later", 2, "OK: OVER_LIMIT 0/3 YEAR, OK unlimited").await;
    check(service, both, "later", 1, "OK: OK 0/3 YEAR, OK unlimited").await;
    check(service, both, "later", 1, "OK: OVER_LIMIT 0/3 YEAR, OK unlimited").await;
    // An enforced limit is still one.
    let denied = "OVER_LIMIT: OVER_LIMIT 0/3 YEAR, OK unlimited, OVER_LIMIT 0/6 YEAR";
    check(service, &["plan", "credits", "cap"], "later", 7, denied).await;
    check(service, both, "shadow", 3, "OK: OK 0/3 YEAR, OK 4/4 YEAR").await;
    check(service, both, "shadow", 1, "OK: OK 0/3 YEAR, OK 4/4 YEAR").await;
    check(service, both, "times", 4, "OK: OK 2/6 YEAR, OK 4/4 YEAR").await;
    check(service, both, "times", 3, "OK: OVER_LIMIT 0/6 YEAR, OK 1/4 YEAR").await;
    check(service, both, "banned", 1, "OVER_LIMIT: OK -, OVER_LIMIT 0/0 YEAR").await;
    check(service, &["plan"], "banned", 0, "OK: OK 3/3 YEAR").await;
}

#[tokio::test]
async fn an_override_changes_what_is_drawn() {
    on_every_store(RULES, &[], draws_with_overrides).await;
    let cluster = Cluster::start();
    let service = Service::with(RULES).on(&cluster.url()).ready();
    draws_with_overrides(&service).await;
}

#[tokio::test]
async fn in_shadow_mode_the_quotas_are_drawn_as_they_would_be() {
    on_every_store(RULES, &["--shadow-mode"], async |service| {
        let both = &["plan", "credits"];
        check(service, both, "a", 3, "OK: OK 0/3 YEAR, OK 4/4 YEAR").await;
        check(service, both, "a", 3, "OK: OVER_LIMIT 0/3 YEAR, OK 1/4 YEAR").await;
        check(service, both, "a", 3, "OK: OVER_LIMIT 0/3 YEAR, OVER_LIMIT 0/4 YEAR").await;
        check(service, both, "a", 1, "OK: OVER_LIMIT 0/3 YEAR, OK 0/4 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn hits_that_are_not_drawn_are_in_no_list_of_keys() {
    let service = Service::with(RULES).flags(&["--top-keys", "values"][..]).start();
    set(&service, "plan=exempt", json!({ "action": "allow" }));
    check(&service, &["plan", "credits"], "a", 2, "OK: OK 1/3 YEAR, OK 4/4 YEAR").await;
    let exempt = "OK: OK unlimited, OK 4/4 YEAR";
    check(&service, &["plan", "credits"], "exempt", 2, exempt).await;
    let (_, top) = send(&service, "GET", "/top", "");
    let keys: Vec<_> = top["hottest"].as_array().unwrap().iter().map(|key| &key["key"]).collect();
    assert_eq!(keys, ["plan=a"], "{top}");
}
