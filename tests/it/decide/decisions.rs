//! Promises "all or nothing" and "statuses", on every store and by every API: the scenarios of the tables. What needs more than
//! calls and answers is a test of its own, here or beside.

mod apis;

use self::apis::Api;
use crate::support::{
    calls::descriptors,
    fleet::{STORES, Store},
    overrides::{end, try_set_in},
    prelude::*,
    scenarios::{Scenario, Step, on_all_stores, run, scenarios},
    service::json_of,
    stores::one,
};

/// The first describes their form.
const TABLES: [&str; 3] = [
    include_str!("decisions.txt"),
    include_str!("decisions/matching.txt"),
    include_str!("decisions/quotas.txt"),
];

fn can_send(api: Api, scenario: &Scenario) -> bool {
    let is_call = |(step, answer): &&Step| answer.is_some() && !step.starts_with("counter ");
    let mut calls = scenario.steps.iter().filter(is_call);
    calls.all(|(step, _)| api.can_send(&call(step).descriptors))
}

/// A call in no domain.
fn call(step: &str) -> RateLimitRequest {
    let (hits_addend, call) = step.split_once(" hits: ").unwrap_or(("0", step));
    RateLimitRequest { hits_addend: hits_addend.parse().unwrap(), ..request("", descriptors(call)) }
}

/// A scenario on a service, in a domain of its own.
struct Running<'a> {
    service: &'a Service,
    client: RateLimitServiceClient<Channel>,
    api: Api,
    domain: String,
    /// What operators have set for descriptors.
    set: HashMap<String, Value>,
}

impl Running<'_> {
    fn administer(&mut self, step: &str) {
        match step.split_once(' ').unwrap() {
            ("set", set) => {
                let (descriptor, action) = set.split_once(' ').expect(step);
                let action = serde_json::from_str(action).expect(step);
                let (status, mut answer) =
                    try_set_in(self.service, &self.domain, descriptor, action, "10m");
                assert_eq!(status, 200, "{step}: {answer}");
                self.set.insert(descriptor.to_owned(), answer["override"].take());
            }
            ("end", descriptor) => end(self.service, &self.set[descriptor]),
            _ => panic!("{step}"),
        }
    }

    /// What an operator sees of a counter.
    fn counter(&self, descriptor: &str) -> String {
        let path = format!("/counters?domain={}&descriptor={descriptor}", self.domain);
        let counter = &self.service.admin("GET", &path).1["counters"][0];
        let limit = counter["limit"].as_str().unwrap();
        format!("{} used of {limit}, {} left", counter["used"], counter["remaining"])
    }

    async fn answer(&mut self, step: &str) -> String {
        let call = RateLimitRequest { domain: self.domain.clone(), ..call(step) };
        if self.api != Api::Envoy {
            return self.api.code(self.service, &call).await;
        }
        let answer = self.client.should_rate_limit(call).await;
        let answer = answer.unwrap_or_else(|status| panic!("{step}: {status}")).into_inner();
        let mut metadata = answer.dynamic_metadata.clone().unwrap_or_default();
        metadata.fields.retain(|name, _| ["metadata", "passedBackends"].contains(&&**name));
        match metadata.fields.is_empty() {
            true => spell(&answer),
            false => format!("{}; {}", spell(&answer), json_of(&metadata)),
        }
    }

    /// Runs the steps, and returns those that have other answers. By other APIs than Envoy's, only codes are compared.
    async fn differences(mut self, scenario: &Scenario) -> Vec<String> {
        let mut differences = Vec::new();
        for (step, expected) in &scenario.steps {
            let Some(expected) = expected else {
                self.administer(step);
                continue;
            };
            let found = match step.strip_prefix("counter ") {
                Some(descriptor) => self.counter(descriptor),
                None => self.answer(step).await,
            };
            let is_of_code = self.api != Api::Envoy || !expected.contains(' ');
            let is_same = found == *expected || is_of_code && code(&found) == code(expected);
            if !is_same {
                differences.push(format!("{step} = {found}, not {expected}"));
            }
        }
        differences
    }
}

fn code(answer: &str) -> &str {
    answer.split_once(':').map_or(answer, |(code, _)| code)
}

/// Runs all scenarios on a store that can run by an API.
async fn run_by(api: Api, store: &Store) {
    let scenarios: Vec<_> = TABLES.into_iter().flat_map(scenarios).collect();
    let can_run = scenarios.into_iter().filter(|one| can_send(api, one)).collect();
    run(store, &format!("{api:?}"), can_run, async |service, domain, scenario| {
        let (client, set) = (service.client().await, HashMap::new());
        Running { service, client, api, domain, set }.differences(scenario).await
    })
    .await;
}

#[test]
fn every_scenario_has_its_answers_on_every_store() {
    on_all_stores(async |store| run_by(Api::Envoy, store).await);
}

#[tokio::test]
async fn every_scenario_has_its_codes_by_every_api() {
    join_all([Api::Json, Api::V1, Api::Check].map(|api| run_by(api, &STORES[0]))).await;
}

#[tokio::test]
async fn the_multiplier_of_a_rule_or_of_a_call_is_in_the_answer() {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, unit_multiplier: 50, requests_per_unit: 5 } }
";
    let service = Service::with(rules).start();
    for (call, multiplier) in [("user=a", 50), ("user=a(;5/YEAR*100)", 100)] {
        let answer = service.ask(shop(call)).await.unwrap();
        assert_eq!(spell(&answer), "OK: OK 4/5 YEAR");
        let status = &answer.statuses[0];
        assert_eq!(status.current_limit.as_ref().unwrap().unit_multiplier, Some(multiplier));
        assert!(status.duration_until_reset.unwrap().seconds > 365 * 86_400);
    }
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
            let used = || service.counter("shop", &format!("{key}=a"))["used"].as_u64().unwrap();
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
async fn a_refused_debit_of_a_rule_that_gets_checks_is_logged_once_and_counted() {
    let service = Service::shop().start();
    let logged = || service.log().matches("`count_denied: true`").count();
    let over = "OVER_LIMIT: OVER_LIMIT 0/1000 YEAR";
    assert_eq!(service.answer("work=a(1001)").await, over);
    assert_eq!(logged(), 0, "the rule has had no check");
    assert_eq!(service.answer("work=a(0)").await, "OK: OK 1000/1000 YEAR");
    for _ in 0..2 {
        assert_eq!(service.answer("work=a(1001)").await, over);
    }
    wait_until("the refused debit is logged", || logged() > 0);
    let metrics = service.get("/metrics");
    assert_eq!(logged(), 1, "{}", service.log());
    assert!(metrics.contains(r#"ratelimit_debits_refused_total{rule="work"} 2"#), "{metrics}");
}
