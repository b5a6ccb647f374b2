//! `tollkeeper status`: which replicas are well.

use crate::support::prelude::*;

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }
";

/// The exit code of the command, and what it prints, of the replicas with these admin addresses.
fn status(admins: &[SocketAddr], words: &[&str]) -> (Option<i32>, String) {
    let mut command = tollkeeper();
    command.arg("status").args(words);
    for admin in admins {
        command.arg("--addr").arg(admin.to_string());
    }
    let (code, text, _) = run(&mut command);
    (code, text)
}

#[test]
fn replicas_that_are_well_have_one_line_each() {
    let service = Service::with(RULES).ready();
    let (code, text) = status(&[service.admin; 2], &[]);
    assert_eq!(code, Some(0), "{text}");
    let version = env!("CARGO_PKG_VERSION");
    let start = format!("{}: green, ready, tollkeeper {version}, rules ", service.admin);
    assert_eq!(text.lines().count(), 2, "{text}");
    for line in text.lines() {
        assert!(line.starts_with(&start), "{line}");
        assert!(line.ends_with(", 0 calls/s, 0.0 % denied, 0 late/s"), "{line}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_a_problem() {
    let mut redis = Redis::start();
    let service = Service::with(RULES).on(&redis.url()).ready();
    let ask = || service.ask(shop("user=alice"));
    ask().await.unwrap();
    assert_eq!(status(&[service.admin], &[]).0, Some(0));
    redis.stop();
    // The service learns of it by this call.
    drop(ask().await);
    let first = format!("red: 127.0.0.1:{} does not answer, or takes no writes", redis.port);
    let json = eventually("the problem", || {
        let (code, text) = status(&[service.admin], &["--output", "json"]);
        let json: Value = serde_json::from_str(&text).unwrap();
        let is_first = json["replicas"][0]["problems"][0] == first;
        (code == Some(1) && is_first).then_some(json)
    });
    assert_eq!(json["replicas"][0]["status"]["phase"], "ready");
}

#[test]
fn an_outage_is_known_without_calls() {
    let mut redis = Redis::start();
    let service = Service::with(RULES).on(&redis.url()).ready();
    redis.stop();
    let gone = format!("red: 127.0.0.1:{} does not answer", redis.port);
    wait_until("the problem", || status(&[service.admin], &[]).1.contains(&gone));
}

#[tokio::test]
async fn calls_that_are_refused_for_what_they_ask_make_no_replica_unwell() {
    let service = Service::with(RULES).ready();
    let refused = service.ask(request("", vec![descriptor(&[("user", "alice")])])).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::InvalidArgument);
    let numbers = service.admin("GET", "/status").1["numbers"].take();
    assert_eq!(numbers["calls"]["count"], 1, "{numbers}");
    assert_eq!(numbers["calls_failed"], 0, "{numbers}");
}

#[test]
fn decisions_over_http_are_measured_as_those_over_grpc() {
    let mut redis = Redis::start();
    let service = Service::with(RULES).on(&redis.url()).ready();
    let post = |path: &str, body: &str| service.exchange("POST", path, body.as_bytes()).0;
    let check = "/check?domain=shop&d=user=two&hits=10";
    let call = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
    assert_eq!([post(check, ""), post(check, ""), post("/json", call)], [200, 429, 200]);
    assert_eq!([post("/check?d=user", ""), post("/v1/decide", "{")], [400, 400]);
    redis.stop();
    let check = "/check?domain=shop&d=user=bob";
    assert_eq!([post(check, ""), post(&format!("{check}&on_failure=allow"), "")], [503, 200]);
    // What does not decide is not measured.
    assert_eq!([post("/metrics", ""), service.exchange("GET", "/json", b"").0], [405, 405]);

    let metrics = service.get("/metrics");
    for (call, status, error_type, count) in [
        ("POST /check", "OK", "", 2),
        ("POST /check", "INVALID_ARGUMENT", "", 1),
        ("POST /check", "UNAVAILABLE", "UNAVAILABLE", 2),
        ("POST /json", "OK", "", 1),
        ("POST /v1/decide", "INVALID_ARGUMENT", "", 1),
    ] {
        let named = |name: &str, value: &str| format!("{name}=\"{value}\"");
        let mut labels = vec![
            named("rpc_method", call),
            named("rpc_response_status_code", status),
            named("rpc_system_name", "http"),
        ];
        if !error_type.is_empty() {
            labels.insert(0, named("error_type", error_type));
        }
        let labels = labels.join(",");
        let series = format!("rpc_server_call_duration_seconds_count{{{labels}}} {count}\n");
        assert!(metrics.contains(&series), "{series}{metrics}");
    }
    let numbers = service.admin("GET", "/status").1["numbers"].take();
    assert_eq!((&numbers["calls"]["count"], &numbers["calls_failed"]), (&json!(7), &json!(2)));
}

#[tokio::test]
async fn the_decisions_of_rules_that_are_removed_stay_counted() {
    let service = Service::with(RULES).start();
    for _ in 0..3 {
        service.ask(shop("user=alice")).await.unwrap();
    }
    service.reload(&RULES.replace("user", "other"));
    let decisions = || service.admin("GET", "/status").1["numbers"]["decisions"].take();
    let is_removed = || !service.get("/metrics").contains("rule=\"user\"");
    wait_until("the series ends", is_removed);
    assert_eq!(decisions(), json!({ "ok": 3, "over_limit": 0, "shadow": 0 }));
}

#[test]
fn different_rules_and_a_replica_without_an_answer_are_problems() {
    let one = Service::with(RULES).start();
    let rules = &RULES.replace("10", "20");
    let other = Service::with(rules).start();
    let (code, text) = status(&[one.admin, other.admin], &[]);
    assert_eq!(code, Some(1));
    assert!(text.contains("\namber: the replicas have different rules: "), "{text}");
    let gone = other.admin;
    drop(other);
    let (code, text) = status(&[one.admin, gone], &[]);
    assert_eq!(code, Some(1));
    assert!(text.contains(&format!("{gone}: no status\n  red: {gone}: ")), "{text}");
}

#[test]
fn rules_that_are_refused_are_a_problem() {
    let service = Service::with(RULES).start();
    let refused = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: eon } }]\n";
    std::fs::write(&service.rules, refused).unwrap();
    let code = eventually("the problem", || {
        let (code, text) = status(&[service.admin], &[]);
        text.contains("amber: newer rules are not in force: ").then_some(code)
    });
    assert_eq!(code, Some(1));
}
