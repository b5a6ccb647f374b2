//! `tollkeeper status`: which replicas are well.

use std::process::Output;

use crate::support::prelude::*;

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }
";

fn status(services: &[&Service], words: &[&str]) -> Output {
    let mut command = tollkeeper();
    command.arg("status").args(words);
    for service in services {
        command.arg("--addr").arg(service.admin.to_string());
    }
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn replicas_that_are_well_have_one_line_each() {
    let service = Service::start(Options { rules: RULES, ..Options::default() });
    service.wait_until_ready();
    let output = status(&[&service, &service], &[]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
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
    let service =
        Service::start(Options { rules: RULES, store: &redis.url(), ..Options::default() });
    service.wait_until_ready();
    let ask = || service.ask(request("shop", vec![descriptor(&[("user", "alice")])]));
    ask().await.unwrap();
    assert!(status(&[&service], &[]).status.success());
    redis.stop();
    // The service learns of it by this call.
    drop(ask().await);
    let output = eventually("the problem", || {
        let output = status(&[&service], &["--output", "json"]);
        (output.status.code() == Some(1)).then_some(output)
    });
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = json["replicas"][0]["problems"].as_array().unwrap();
    let first = format!("red: 127.0.0.1:{} does not answer, or takes no writes", redis.port);
    assert_eq!(problems[0], first, "{problems:?}");
    assert_eq!(json["replicas"][0]["status"]["phase"], "ready");
}

#[tokio::test]
async fn calls_that_are_refused_for_what_they_ask_make_no_replica_unwell() {
    let service = Service::start(Options { rules: RULES, ..Options::default() });
    service.wait_until_ready();
    let refused = service.ask(request("", vec![descriptor(&[("user", "alice")])])).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::InvalidArgument);
    let status = service.exchange_at(service.admin, "GET", "/status", b"").2;
    let numbers = serde_json::from_str::<Value>(&status).unwrap()["numbers"].take();
    assert_eq!(numbers["calls"]["count"], 1, "{numbers}");
    assert_eq!(numbers["calls_failed"], 0, "{numbers}");
}

#[test]
fn different_rules_and_a_replica_without_an_answer_are_problems() {
    let one = Service::start(Options { rules: RULES, ..Options::default() });
    let rules = &RULES.replace("10", "20");
    let other = Service::start(Options { rules, ..Options::default() });
    let output = status(&[&one, &other], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("\namber: the replicas have different rules: "),
        "{}",
        text(&output)
    );
    let gone = other.admin;
    drop(other);
    let mut command = tollkeeper();
    command.args(["status", "--addr", &one.admin.to_string(), "--addr", &gone.to_string()]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains(&format!("{gone}: no status\n  red: {gone}: ")),
        "{}",
        text(&output)
    );
}

#[test]
fn rules_that_are_refused_are_a_problem() {
    let service = Service::start(Options { rules: RULES, ..Options::default() });
    let refused = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: eon } }]\n";
    std::fs::write(&service.rules, refused).unwrap();
    let output = eventually("the problem", || {
        let output = status(&[&service], &[]);
        text(&output).contains("amber: newer rules are not in force: ").then_some(output)
    });
    assert_eq!(output.status.code(), Some(1));
}
