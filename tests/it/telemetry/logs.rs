//! Log lines: filters by target that change while the service runs, trace ids, and the lines of decisions.

use tonic::Request;

use crate::support::{otlp::Receiver, prelude::*};

const CANARY: &str = "canary-7f3a";

/// Waits for this number of lines with this text.
#[track_caller]
fn lines_with(text: &str, service: &Service, count: usize) -> Vec<String> {
    eventually(&format!("{count} lines with {text}"), || {
        let log = service.log();
        let lines = log.lines().filter(|line| line.contains(text));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
}

#[tokio::test]
async fn the_log_filter_changes_by_target_on_the_admin_address_while_the_service_runs() {
    let service = Service::shop().start();
    let ask = async |user: &str| {
        let descriptors = vec![descriptor(&[("user", user)]), descriptor(&[(CANARY, CANARY)])];
        service.ask(request("shop", descriptors)).await.unwrap();
    };
    assert_eq!(service.admin("GET", "/log"), (200, json!({ "filter": "info" })));
    ask(CANARY).await;

    let debug = "info,tollkeeper::decision=debug";
    let changed = service.admin("POST", &format!("/log?filter={debug}"));
    assert_eq!(changed, (200, json!({ "filter": debug })));
    for user in [CANARY, CANARY, "another"] {
        ask(user).await;
    }
    let lines = lines_with("decided", &service, 3);
    let expected = "user charge 1: ok, 8 left of 10 per year";
    assert!(lines[0].contains(expected), "{lines:?}");
    for part in [r#"domain="shop""#, r#"verdict="ok""#, "other charge 1: ok, no limit"] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
    let caller = |line: &str| line.split("caller ").nth(1).unwrap()[..16].to_owned();
    assert_eq!(caller(&lines[0]), caller(&lines[1]), "one caller has one digest");
    assert_ne!(caller(&lines[0]), caller(&lines[2]));

    assert_eq!(service.admin("POST", "/log?filter=off").0, 200);
    let before = service.log();
    ask(CANARY).await;
    assert_eq!(service.admin("GET", "/log"), (200, json!({ "filter": "off" })));
    assert_eq!(service.log(), before, "nothing is logged");
    assert!(!before.contains(CANARY), "a value or name of the request in {before}");
}

#[test]
fn the_command_that_the_page_shows_changes_the_log_filter() {
    let service = Service::shop().start();
    let page = include_str!("../../../docs/observability.md");
    let (_, path) = blocks(page, "sh")[0].split_once(":6070").unwrap();
    let (status, body) = service.admin("POST", path.trim_end().trim_end_matches('\''));
    assert_eq!((status, body), (200, json!({ "filter": "info,tollkeeper::decision=debug" })));
}

#[test]
fn a_bad_log_filter_is_refused_with_what_is_allowed_and_changes_nothing() {
    let service = Service::shop().start();
    for query in
        ["", "?filter=verbose", "?filter=info,a", "?filter=a=debug", "?filter=info&filter=warn"]
    {
        let (status, body) = service.admin("POST", &format!("/log{query}"));
        let error = body["error"].as_str().unwrap();
        assert!(status == 400 && error.starts_with("filter: "), "{query}: {status} {error}");
    }
    assert_eq!(service.admin("GET", "/log").1, json!({ "filter": "info" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_line_of_a_sampled_call_has_the_ids_of_its_trace() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let (_receiver, endpoint) = Receiver::start().await;
    let service = Service::shop()
        .flags(&[
            "--log-format",
            "json",
            "--log-level",
            "warn,tollkeeper::decision=debug,tollkeeper::app=info",
        ])
        .environment(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)])
        .start();
    for flags in ["01", "00"] {
        let mut call = Request::new(shop("user=a"));
        let parent = format!("00-{TRACE}-b7ad6b7169203331-{flags}");
        call.metadata_mut().insert("traceparent", parent.parse().unwrap());
        service.client().await.should_rate_limit(call).await.unwrap();
    }
    let lines = lines_with("decided", &service, 2);
    let [sampled, unsampled] = [0, 1].map(|n| serde_json::from_str::<Value>(&lines[n]).unwrap());
    assert_eq!(sampled["span"]["trace_id"], TRACE);
    assert_eq!(sampled["span"]["span_id"].as_str().map(str::len), Some(16));
    assert_eq!(sampled["verdict"], "ok");
    assert_eq!(unsampled["span"], Value::Null, "a call that is not sampled has no trace");
}

#[tokio::test]
async fn corrupt_counters_have_a_line_for_each_rule_even_if_domains_have_rules_of_one_path() {
    let rules = "domain: DOMAIN\ndescriptors:\n  - { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }\n";
    let file = TextFile::new("bank.yaml", rules.replace("DOMAIN", "bank"));
    let redis = Redis::start();
    let service = Service::with(&rules.replace("DOMAIN", "shop"))
        .on(&redis.url())
        .flags(&["--rules", &file])
        .start();
    let call = |domain| request(domain, vec![descriptor(&[("user", CANARY)])]);
    for domain in ["shop", "bank"] {
        service.ask(call(domain)).await.unwrap();
        let key = redis.key(&format!("{domain}|user="));
        redis.query::<()>(&["SET", &key, "text", "KEEPTTL"]);
        for _ in 0..3 {
            service.ask(call(domain)).await.unwrap_err();
        }
    }
    let log = service.log();
    for domain in ["shop", "bank"] {
        let line = format!("than a count rule=\"user\" domain=\"{domain}\"");
        assert_eq!(log.matches(&line).count(), 1, "{domain}: {log}");
    }
    assert!(!log.contains("suppressed"), "none before these lines: {log}");
    assert!(!log.contains(CANARY), "{log}");
}

/// Denials may come by the thousand, and their values belong to others.
#[tokio::test]
async fn denials_are_logged_at_the_rate_that_was_asked_for_and_without_values() {
    let ask = async |flags: &[&str]| {
        let service = Service::shop().flags(flags).start();
        for _ in 0..20 {
            let call = request("shop", vec![descriptor(&[("user", CANARY)])]);
            service.ask(call).await.unwrap();
        }
        service
    };
    let service = ask(&["--log-denials", "1/m"]).await;
    let lines = lines_with("denied", &service, 1);
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in [r#"domain="shop""#, r#"rule="user""#, "key=", r#"by="limit""#] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
    assert!(!service.log().contains(CANARY));
    let shown = ask(&["--log-denials", "1/m", "--top-keys", "values"]).await;
    shown.wait_for_log(CANARY);
    let silent = ask(&[]).await;
    assert!(!silent.log().contains("denied"), "{}", silent.log());
}

#[tokio::test]
async fn a_denial_without_an_answer_of_redis_names_no_limit_as_used_up() {
    let flags = &[
        "--on-store-failure",
        "deny",
        "--log-denials",
        "1/m",
        "--log-level",
        "info,tollkeeper::decision=debug",
        "--rule-header",
        "--denied-body",
        "problem",
    ];
    let service = Service::shop().on("redis://127.0.0.1:1").flags(flags).start();
    let call = request("shop", vec![descriptor(&[("user", CANARY)])]);
    let answer = service.ask(call).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let names = answer.response_headers_to_add.iter().map(|header| &*header.key);
    assert!(!names.collect::<Vec<_>>().contains(&"x-ratelimit-rule"), "{answer:?}");
    let body = String::from_utf8(answer.raw_body).unwrap();
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
    for part in [r#"by="on_store_failure""#, ", by on_store_failure, caller "] {
        service.wait_for_log(part);
    }
}
