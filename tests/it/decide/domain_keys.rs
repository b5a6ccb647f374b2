//! What a domain asks of its calls, and how it groups their quotas: `require` and `quota_group`, on every store.

use crate::support::{prelude::*, stores::one};

const QUOTAS: &str = "
domain: ai
quota_group: [backend, model]
descriptors:
- key: backend
  descriptors:
  - key: model
    quota_mode: true
    metadata: { bucket: default }
    rate_limit: { unit: year, requests_per_unit: 100 }
    descriptors:
    - key: tenant
      quota_mode: true
      metadata: { bucket: tenant }
      rate_limit: { unit: year, requests_per_unit: 3 }
- { key: user, rate_limit: { unit: year, requests_per_unit: 12 } }
- { key: other, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
";

/// The default bucket and a tenant's bucket of a backend.
fn quotas(backend: &str, tenant: &str) -> Vec<RateLimitDescriptor> {
    let entries = [("backend", backend), ("model", "gpt"), ("tenant", tenant)];
    vec![descriptor(&entries[..2]), descriptor(&entries)]
}

async fn ask(service: &Service, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    service.ask(request("ai", descriptors)).await.unwrap()
}

/// The overall code, the backends with room, and the metadata of rules.
fn read(answer: &RateLimitResponse) -> (String, Value, Value) {
    let metadata = answer.dynamic_metadata.as_ref().expect("--dynamic-metadata");
    let get = |name| metadata.fields.get(name).map_or(Value::Null, in_json);
    (answer.overall_code().as_str_name().to_owned(), get("passedBackends"), get("metadata"))
}

fn in_json(value: &prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match value.kind.as_ref().unwrap() {
        Kind::StringValue(text) => json!(text),
        Kind::ListValue(list) => list.values.iter().map(in_json).collect(),
        Kind::StructValue(map) => {
            map.fields.iter().map(|(name, value)| (name.clone(), in_json(value))).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn passed(backends: &[&str]) -> Value {
    backends.iter().map(|backend| json!({ "backend": backend, "model": "gpt" })).collect()
}

async fn a_group_is_over_with_one_of_its_quotas(service: &Service) {
    let both = || [quotas("a", "x"), quotas("b", "x")].concat();
    let ok = |passed, bucket: &str| ("OK".to_owned(), passed, json!({ "bucket": bucket }));
    // The tenant's bucket of `a` is used up, though the default bucket has room.
    for _ in 0..3 {
        let answer = ask(service, quotas("a", "x")).await;
        assert_eq!(read(&answer), ok(passed(&["a"]), "default"));
    }
    let answer = ask(service, quotas("a", "x")).await;
    assert_eq!(read(&answer), ("OVER_LIMIT".to_owned(), passed(&[]), Value::Null));
    assert_eq!(spell(&answer), "OVER_LIMIT: OK 96/100 YEAR, OVER_LIMIT 0/3 YEAR");
    assert_eq!(read(&ask(service, quotas("a", "y")).await), ok(passed(&["a"]), "default"));
    // A call that may use either passes by the one with room.
    for _ in 0..3 {
        assert_eq!(read(&ask(service, both()).await), ok(passed(&["b"]), "default"));
    }
    let answer = ask(service, both()).await;
    assert_eq!(read(&answer), ("OVER_LIMIT".to_owned(), passed(&[]), Value::Null));
    // Entries that group nothing: a quota of its own, which has no name in the answer.
    let alone = [both(), vec![one("other", "z")]].concat();
    assert_eq!(read(&ask(service, alone.clone()).await), ("OK".into(), passed(&[]), Value::Null));
    assert_eq!(spell(&ask(service, alone).await).split(':').next(), Some("OK"));
    // A limit outside of the quotas denies alone, and then no quota is charged.
    let with_user = || [quotas("c", "x"), vec![hits(one("user", "u"), 7)]].concat();
    assert_eq!(read(&ask(service, with_user()).await).0, "OK");
    let denied = "OVER_LIMIT: OK 99/100 YEAR, OK 2/3 YEAR, OVER_LIMIT 0/12 YEAR";
    let answer = ask(service, with_user()).await;
    assert_eq!(spell(&answer), denied);
    assert_eq!(read(&answer).1, passed(&["c"]));
}

#[tokio::test]
async fn quotas_of_a_group_have_room_together() {
    let flags = ["--dynamic-metadata"];
    on_every_store(QUOTAS, &flags, a_group_is_over_with_one_of_its_quotas).await;
    let cluster = Cluster::start();
    let service = Service::with(QUOTAS).on(&cluster.url()).flags(&flags).start();
    a_group_is_over_with_one_of_its_quotas(&service).await;
}

#[tokio::test]
async fn without_a_group_each_quota_admits_alone_and_the_answer_names_none() {
    let rules = QUOTAS.replace("quota_group: [backend, model]", "");
    on_every_store(&rules, &["--dynamic-metadata"], async |service: &Service| {
        for _ in 0..4 {
            let (code, passed, _) = read(&ask(service, quotas("a", "x")).await);
            assert_eq!((code.as_str(), passed), ("OK", Value::Null));
        }
    })
    .await;
}

const REQUIRED: &str = "
domain: ai
require: [user, plan]
descriptors:
- { key: path, rate_limit: { unit: year, requests_per_unit: 3 } }
- key: user
  descriptors: [{ key: plan, rate_limit: { unit: year, requests_per_unit: 5 } }]
- { key: tokens, rate_limit: { unit: year, requests_per_unit: 9, count_denied: true } }
";

#[tokio::test]
async fn a_call_without_the_required_entries_is_denied_and_charges_only_work_that_is_done() {
    on_every_store(REQUIRED, &[], async |service: &Service| {
        let all = || descriptor(&[("user", "alice"), ("plan", "gold")]);
        let spelled = |answer: RateLimitResponse| spell(&answer);
        for lacking in [vec![one("path", "/")], vec![one("path", "/"), one("user", "alice")]] {
            let denied = spelled(ask(service, lacking).await);
            assert!(denied.starts_with("OVER_LIMIT: OK 3/3 YEAR"), "{denied}");
        }
        let apart = vec![one("user", "alice"), one("plan", "gold")];
        assert_eq!(spelled(ask(service, apart).await), "OVER_LIMIT: OK -, OK -");
        let debit = vec![hits(one("tokens", "t"), 4), one("path", "/")];
        assert_eq!(spelled(ask(service, debit).await), "OVER_LIMIT: OK 5/9 YEAR, OK 3/3 YEAR");
        let good = vec![one("path", "/"), all()];
        assert_eq!(spelled(ask(service, good).await), "OK: OK 2/3 YEAR, OK 4/5 YEAR");
        let expected = r#"ratelimit_calls_incomplete_total{domain="ai",mode="deny"} 4"#;
        service.assert_metric(expected);
        assert_eq!(service.log().matches("has the entries that `require` names").count(), 1);
    })
    .await;
}

#[tokio::test]
async fn reported_calls_without_the_required_entries_pass() {
    let service = Service::with(&(REQUIRED.to_owned() + "require_mode: report\n")).start();
    assert_eq!(spell(&ask(&service, vec![one("path", "/")]).await), "OK: OK 2/3 YEAR");
    let expected = r#"ratelimit_calls_incomplete_total{domain="ai",mode="report"} 1"#;
    service.assert_metric(expected);
    let (_, _, explained) = service.exchange_at(
        service.admin,
        "POST",
        "/explain",
        br#"{"domain": "ai", "descriptors": [{"entries": [{"key": "path", "value": "/"}]}]}"#,
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
    let debit = vec![hits(one("tokens", "t"), 4), one("path", "/")];
    let denied = spell(&ask(&service, debit).await);
    assert!(denied.starts_with("OVER_LIMIT: "), "{denied}");
    let entries = descriptor(&[("user", "alice"), ("plan", "gold")]);
    service.ask(request("ai", vec![entries])).await.unwrap_err();
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
    let before = "domain: ai
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
        assert_eq!(spell(&ask(&service, vec![one("user", "a")]).await), "OK: OK 9/10 YEAR");
        service.reload(&(before.to_owned() + &route));
        assert_eq!(spell(&ask(&service, vec![one("user", "a")]).await), "OK: OK 8/10 YEAR");
        let take = vec![hits(one("route", "r"), 0)];
        assert_eq!(spell(&ask(&service, take).await), "OK: OK 8/10 YEAR");
    }
}
