//! The shapes that Envoy Gateway 1.9 and AI Gateway generate, and the verdicts for the calls that their Envoys send.

use super::{accepted, ask, start};
use crate::support::{ads::FakeAds, prelude::*};

const ROUTE: &str = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example";
const DOMAIN: &str = "default/eg/http";

pub fn entry(key: &str, value: &str, more: &Value) -> Value {
    let mut entry = json!({ "key": key, "value": value });
    let more = more.as_object().unwrap().clone();
    entry.as_object_mut().unwrap().extend(more);
    entry
}

/// Key and value alike, as most are.
fn same(key: &str, more: &Value) -> Value {
    entry(key, key, more)
}

fn limit_of(requests: u32) -> Value {
    json!({ "rateLimit": { "unit": "YEAR", "requestsPerUnit": requests } })
}

fn config(domain: &str, descriptors: Vec<Value>) -> Value {
    json!({ "name": domain, "domain": domain, "descriptors": descriptors })
}

/// A route's own rules.
fn route(rules: Vec<Value>) -> Value {
    config(DOMAIN, vec![same(ROUTE, &json!({ "descriptors": rules }))])
}

/// Asks several times with the entries behind the route's own, and returns the overall codes.
async fn codes(service: &Service, domain: &str, path: &str, times: usize) -> String {
    let mut codes = Vec::new();
    for _ in 0..times {
        let answer = ask(service, domain, path).await;
        let over = answer.starts_with("OVER_LIMIT");
        codes.push(if over { "429" } else { "200" });
    }
    codes.join(" ")
}

async fn codes_of_route(service: &Service, rule: &str) -> String {
    codes(service, DOMAIN, &format!("{ROUTE}={ROUTE},{rule}"), 5).await
}

const THREE: &str = "200 200 200 429 429";

#[tokio::test]
async fn a_route_without_a_selector_is_limited_as_a_whole() {
    let (_ads, service) = accepted(&[route(vec![same("rule-0-match--1", &limit_of(3))])]);
    assert_eq!(codes_of_route(&service, "rule-0-match--1=rule-0-match--1").await, THREE);
    assert_eq!(
        codes_of_route(&service, "rule-1-match--1=rule-1-match--1").await.matches("200").count(),
        5
    );
}

#[tokio::test]
async fn a_header_is_limited_by_match_and_each_of_its_values_when_distinct() {
    let distinct = entry("rule-0-match-1", "", &limit_of(3));
    let exact = same("rule-0-match-0", &json!({ "descriptors": [distinct] }));
    let (_ads, service) = accepted(&[route(vec![exact])]);
    for user in ["one", "two"] {
        let rule = format!("rule-0-match-0=rule-0-match-0,rule-0-match-1={user}");
        assert_eq!(codes_of_route(&service, &rule).await, THREE, "{user}");
    }
    // A match of the first header alone has no limit.
    assert_eq!(
        codes_of_route(&service, "rule-0-match-0=rule-0-match-0").await.matches("200").count(),
        5
    );
}

#[tokio::test]
async fn an_address_range_is_limited_as_a_whole_and_each_address_when_distinct() {
    let address = entry("remote_address", "", &limit_of(3));
    let whole = entry("masked_remote_address", "10.0.0.0/8", &limit_of(3));
    let each =
        entry("masked_remote_address", "192.168.0.0/16", &json!({ "descriptors": [address] }));
    let inverted = entry("masked_remote_address", "invert:172.16.0.0/12", &limit_of(3));
    let (_ads, service) = accepted(&[route(vec![whole, each, inverted])]);
    assert_eq!(codes_of_route(&service, "masked_remote_address=10.0.0.0/8").await, THREE);
    assert_eq!(codes_of_route(&service, "masked_remote_address=invert:172.16.0.0/12").await, THREE);
    for address in ["192.168.0.1", "192.168.0.2"] {
        let rule = format!("masked_remote_address=192.168.0.0/16,remote_address={address}");
        assert_eq!(codes_of_route(&service, &rule).await, THREE, "{address}");
    }
}

#[tokio::test]
async fn methods_paths_and_query_parameters_are_limited() {
    let rules = ["rule-0-method", "rule-1-path", "rule-2-query"];
    let (_ads, service) =
        accepted(&[route(rules.iter().map(|rule| same(rule, &limit_of(3))).collect())]);
    for rule in rules {
        assert_eq!(codes_of_route(&service, &format!("{rule}={rule}")).await, THREE, "{rule}");
    }
}

#[tokio::test]
async fn routes_with_a_shared_rule_have_one_budget() {
    let (domain, rule) = ("default/policy", "default/policy/rule/0");
    let shared = same(rule, &json!({ "descriptors": [same("rule-0-match--1", &limit_of(3))] }));
    let own = same("rule-0-match--1", &limit_of(3));
    let (_ads, service) = accepted(&[config(domain, vec![shared]), route(vec![own])]);
    let path = format!("{rule}={rule},rule-0-match--1=rule-0-match--1");
    assert_eq!(codes(&service, domain, &path, 4).await, "200 200 200 429");
    assert_eq!(codes(&service, domain, &path, 1).await, "429");
    assert_eq!(codes_of_route(&service, "rule-0-match--1=rule-0-match--1").await, THREE, "its own");
}

#[tokio::test]
async fn a_limit_of_0_denies_and_a_shadow_never_does() {
    let ban = same("rule-0-match-0", &json!({ "rateLimit": { "unit": "YEAR" } }));
    let shadow = same(
        "rule-1-match-0",
        &json!({ "rateLimit": { "unit": "YEAR", "requestsPerUnit": 1 }, "shadowMode": true }),
    );
    let (_ads, service) = accepted(&[route(vec![ban, shadow])]);
    assert_eq!(
        codes_of_route(&service, "rule-0-match-0=rule-0-match-0").await,
        "429 429 429 429 429"
    );
    assert_eq!(
        codes_of_route(&service, "rule-1-match-0=rule-1-match-0").await,
        "200 200 200 200 200"
    );
}

/// Envoy Gateway's own test: 21 tokens, 10 for each response. Envoy checks with 0 hits, and debits afterwards.
#[tokio::test]
async fn a_cost_that_is_known_afterwards_is_charged_whether_or_not_it_fits() {
    let (_ads, service) = accepted(&[route(vec![same("rule-0-match--1", &limit_of(21))])]);
    let path = [(ROUTE, ROUTE), ("rule-0-match--1", "rule-0-match--1")];
    let ask = async |count| {
        let call = request(DOMAIN, vec![hits(descriptor(&path), count)]);
        spell(&service.ask(call).await.unwrap())
    };
    for left in ["21", "11", "1"] {
        assert_eq!(ask(0).await, format!("OK: OK {left}/21 YEAR"));
        ask(10).await;
    }
    assert_eq!(ask(0).await, "OVER_LIMIT: OVER_LIMIT 0/21 YEAR");
}

#[tokio::test]
async fn denied_calls_are_charged_unless_the_flag_or_the_rule_says_otherwise() {
    let counted = route(vec![same("rule-0-match--1", &limit_of(21))]);
    let free = json!({ "metadata": { "tollkeeper": { "count_denied": false } }, "rateLimit": { "unit": "YEAR", "requestsPerUnit": 21 } });
    let free = route(vec![same("rule-0-match--1", &free)]);
    for (config, flags, expected) in [
        (&counted, &[][..], "OVER_LIMIT"),
        (&counted, &["--count-denied=off"], "OK"),
        (&free, &[], "OK"),
    ] {
        let ads = FakeAds::start();
        let service = start(&ads.url(), flags);
        ads.request();
        ads.respond("1", "n1", std::slice::from_ref(config));
        ads.request();
        let path = [(ROUTE, ROUTE), ("rule-0-match--1", "rule-0-match--1")];
        let debit = request(DOMAIN, vec![hits(descriptor(&path), 22)]);
        service.ask(debit).await.unwrap();
        let no_hits = request(DOMAIN, vec![hits(descriptor(&path), 0)]);
        let answer = spell(&service.ask(no_hits).await.unwrap());
        assert!(answer.starts_with(expected), "{flags:?}: {answer}");
    }
}

/// A model with a rule for a plan and a default bucket.
fn quotas() -> Value {
    let quota = |requests: u32| json!({ "rateLimit": { "unit": "DAY", "requestsPerUnit": requests }, "quotaMode": true });
    let buckets = [same(GOLD, &quota(2)), same("rule-1-match--1", &quota(10))];
    let model = entry("model_name_override", "gpt", &json!({ "descriptors": buckets }));
    let backend = entry("backend_name", "default/openai", &json!({ "descriptors": [model] }));
    config("ai-gateway-quota", vec![backend])
}

const GOLD: &str = "rule-0-x-plan|gold-match-0";

/// What Envoy asks for a request of that plan.
async fn ask_quotas(service: &Service, count: u64) -> String {
    let of = |bucket| {
        let path =
            [("backend_name", "default/openai"), ("model_name_override", "gpt"), (bucket, bucket)];
        hits(descriptor(&path), count)
    };
    let call = request("ai-gateway-quota", vec![of(GOLD), of("rule-1-match--1")]);
    spell(&service.ask(call).await.unwrap())
}

#[tokio::test]
async fn the_quotas_of_ai_gateway_deny_when_none_has_room() {
    let (_ads, service) = accepted(&[quotas()]);
    assert_eq!(ask_quotas(&service, 0).await, "OK: OK 2/2 DAY, OK 10/10 DAY");
    ask_quotas(&service, 5).await;
    assert_eq!(ask_quotas(&service, 0).await, "OK: OVER_LIMIT 0/2 DAY, OK 5/10 DAY");
    ask_quotas(&service, 20).await;
    let denied = "OVER_LIMIT: OVER_LIMIT 0/2 DAY, OVER_LIMIT 0/10 DAY";
    assert_eq!(ask_quotas(&service, 0).await, denied);
}

#[tokio::test]
async fn with_the_overlay_of_the_page_a_plan_is_limited_beside_the_default_bucket() {
    let (ads, folder) = (FakeAds::start(), TempDir::new().unwrap());
    let page = page("ai-gateway.md");
    let overlay = blocks(&page, "text").into_iter().find(|block| block.starts_with("domain:"));
    let file = folder.path().join("overlay.yaml");
    // The limit is below its model.
    fs::write(&file, overlay.unwrap().replace("        rate_limit: { scale: 1000 }", "")).unwrap();
    let service = start(&ads.url(), &["--rules-overlay", file.to_str().unwrap()]);
    ads.request();
    ads.respond("1", "n1", &[quotas()]);
    assert_eq!(ads.request().error, None);
    ask_quotas(&service, 5).await;
    assert_eq!(ask_quotas(&service, 0).await, "OVER_LIMIT: OVER_LIMIT 0/2 DAY, OK 5/10 DAY");
    assert!(!service.log().contains("no rule matches"));
}
