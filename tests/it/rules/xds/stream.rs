//! Requests, responses and the answers to them, frame by frame.

use tonic::Status;

use super::{ask, bad, follow, limit, metric, rules, start, start_with, wait_for};
use crate::support::{ads::*, fault_proxy::Cut, prelude::*};

fn request(version: &str, nonce: &str) -> Asked {
    Asked {
        stream: 1,
        node: None,
        type_url: TYPE_URL.to_owned(),
        names: Vec::new(),
        version: version.to_owned(),
        nonce: nonce.to_owned(),
        error: None,
    }
}

#[tokio::test]
async fn the_first_request_subscribes_and_the_next_accepts_the_response() {
    let ads = FakeAds::start();
    let service = start(&ads.url(), &[]);
    assert_eq!(ads.request(), Asked { node: Some(NODE.to_owned()), ..request("", "") });
    ads.respond("v1", "n1", &[limit("shop", "user", 2)]);
    assert_eq!(ads.request(), request("v1", "n1"));
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 1/2 YEAR");
    let shown = rules(&service);
    assert_eq!(shown["files"], json!(["shop"]));
    assert_eq!(shown["domains"][0]["rules"][0]["written_at"], "shop");
    let control_plane = &shown["control_plane"];
    assert_eq!(control_plane["url"], ads.url());
    assert_eq!(control_plane["connected"], true);
    assert_eq!(control_plane["version"], "v1");
    assert!(control_plane["age_seconds"].is_u64(), "{control_plane}");
    assert_eq!(metric(&service, "ratelimit_xds_connected"), 1.0);
    assert!(metric(&service, "ratelimit_xds_accepted_timestamp_seconds") > 1.7e9);
}

#[tokio::test]
async fn while_the_control_plane_is_silent_every_call_passes_and_the_service_becomes_ready() {
    let (ads, service) = follow();
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK -");
    service.wait_until_ready();
    assert_eq!(ads.unread(), [], "silence is no reason to ask again");
    assert_eq!(metric(&service, "ratelimit_xds_connected"), 1.0);
    ads.respond("v1", "n1", &[limit("shop", "user", 1)]);
    wait_for(&service, "v1");
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 0/1 YEAR");
}

#[tokio::test]
async fn the_service_is_ready_once_rules_have_arrived() {
    let (ads, service) = follow();
    ads.respond("v1", "n1", &[]);
    wait_for(&service, "v1");
    service.wait_until_ready();
}

#[test]
fn a_service_that_needs_rules_is_ready_only_with_them() {
    let ads = FakeAds::start();
    let service = start(&ads.url(), &["--ready-needs-rules", "always"]);
    let ready = || service.exchange("GET", "/readyz", b"").0 == 200;
    ads.request();
    service.wait_for_log("no rules within");
    assert!(!ready());
    ads.respond("v1", "n1", &[]);
    wait_for(&service, "v1");
    assert!(!ready(), "a response without a domain");
    ads.respond("v2", "n2", &[limit("shop", "user", 2)]);
    service.wait_until_ready();
    ads.respond("v3", "n3", &[]);
    wait_until("not ready", || !ready());
    let status = service.exchange_at(service.admin, "GET", "/status", b"").2;
    assert!(status.contains(r#""phase":"without_rules""#), "{status}");
    ads.respond("v4", "n4", &[limit("shop", "user", 2)]);
    service.wait_until_ready();
}

#[tokio::test]
async fn a_bad_resource_refuses_the_whole_response_with_every_problem_and_the_last_good_rules_stay()
{
    let (ads, service) = start_with("v1", &[limit("shop", "user", 2)]);
    ads.respond("v2", "n2", &[limit("shop", "user", 9), limit("new", "user", 9), bad("other")]);
    let problems = [
        "other: : key: must not be empty",
        "other: a: unit: must be one of: second, minute, hour, day, week, month, year; not `99`",
    ];
    let problems = [problems[0].replace(": :", ":"), problems[1].to_owned()];
    let refusal = Asked { error: Some(problems.join("\n")), ..request("v1", "n2") };
    assert_eq!(ads.request(), refusal);
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 1/2 YEAR");
    let shown = rules(&service);
    assert_eq!(shown["problems"], json!(problems));
    assert_eq!(shown["control_plane"]["version"], "v1");
    assert_eq!(shown["control_plane"]["refused_version"], "v2");
    assert_eq!(metric(&service, "ratelimit_xds_nacks_total"), 1.0);
    assert_eq!(metric(&service, "ratelimit_rules_last_reload_successful"), 0.0);

    ads.respond("v3", "n3", &[limit("shop", "user", 2)]);
    assert_eq!(ads.request(), request("v3", "n3"));
    let shown = rules(&service);
    assert_eq!(shown["problems"], json!([]));
    assert_eq!(shown["control_plane"]["refused_version"], json!(null));
    assert_eq!(metric(&service, "ratelimit_rules_last_reload_successful"), 1.0);
}

#[test]
fn the_same_bad_response_again_is_refused_later() {
    let (ads, service) = follow();
    ads.respond("v1", "n1", &[bad("shop")]);
    assert_eq!(ads.request().nonce, "n1", "the control plane hears of a problem at once");
    ads.respond("v1", "n2", &[bad("shop")]);
    ads.assert_no_request(Duration::from_millis(600));
    let refusal = ads.request();
    assert_eq!((refusal.nonce.as_str(), refusal.version.as_str()), ("n2", ""));
    assert!(refusal.error.is_some());
    assert_eq!(service.log().matches("rules not loaded").count(), 1, "{}", service.log());
}

#[test]
fn a_newer_response_is_answered_in_place_of_a_refusal_that_waits() {
    let (ads, service) = start_with("v1", &[bad("shop")]);
    ads.respond("v1", "n2", &[bad("shop")]);
    ads.respond("v2", "n3", &[limit("shop", "user", 1)]);
    assert_eq!(ads.request(), request("v2", "n3"));
    wait_for(&service, "v2");
}

#[tokio::test]
async fn the_same_content_in_another_order_under_a_new_version_changes_nothing() {
    let (one, other) = (limit("one", "user", 2), limit("other", "user", 2));
    let (ads, service) = start_with("1", &[one.clone(), other.clone()]);
    let before = rules(&service);
    ask(&service, "one", "user=a").await;
    ads.respond("2", "n2", &[other, one]);
    assert_eq!(ads.request(), request("2", "n2"));
    let after = rules(&service);
    assert_eq!(
        (&after["version"], &after["loaded_at"]),
        (&before["version"], &before["loaded_at"])
    );
    assert_eq!(after["control_plane"]["version"], "2");
    assert_eq!(ask(&service, "one", "user=a").await, "OK: OK 0/2 YEAR");
    assert_eq!(metric(&service, "ratelimit_xds_responses_total{outcome=\"unchanged\"}"), 1.0);
    assert_eq!(service.log().matches("rules loaded").count(), 1);
}

#[tokio::test]
async fn the_descriptors_of_a_resource_have_no_order_but_its_patterns_do() {
    let entry = |value: &str, requests: u32| json!({ "key": "k", "value": value, "rateLimit": { "unit": "YEAR", "requestsPerUnit": requests } });
    let config = |entries: Vec<_>| json!({ "name": "d", "domain": "d", "descriptors": entries });
    let all = [entry("a*", 1), entry("b", 2), entry("*", 3), entry("c", 4)];
    let of = |order: [usize; 4]| config(order.iter().map(|index| all[*index].clone()).collect());
    let (ads, service) = start_with("1", &[of([0, 1, 2, 3])]);
    let version = rules(&service)["version"].clone();
    ads.respond("2", "n2", &[of([3, 0, 2, 1])]);
    ads.request();
    assert_eq!(rules(&service)["version"], version);
    assert_eq!(ask(&service, "d", "k=ax").await, "OK: OK 0/1 YEAR");
    ads.respond("3", "n3", &[of([2, 0, 1, 3])]);
    ads.request();
    assert_ne!(rules(&service)["version"], version);
    assert_eq!(ask(&service, "d", "k=ay").await, "OK: OK 2/3 YEAR");
}

#[tokio::test]
async fn an_empty_set_ends_all_limits() {
    let (ads, service) = start_with("1", &[limit("shop", "user", 0)]);
    assert_eq!(ask(&service, "shop", "user=a").await, "OVER_LIMIT: OVER_LIMIT 0/0 YEAR");
    // Envoy Gateway names no version when its last Gateway is gone.
    ads.respond("", "n2", &[]);
    assert_eq!(ads.request(), request("", "n2"));
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK -");
    assert_eq!(rules(&service)["domains"], json!([]));
}

#[tokio::test]
async fn half_a_response_changes_nothing_and_the_next_stream_gets_the_whole() {
    let ads = FakeAds::start();
    let proxy = FaultProxy::start(ads.port, 1);
    let port = proxy.url.rsplit(':').next().unwrap();
    let service = start(&format!("xds://127.0.0.1:{port}?node={NODE}"), &[]);
    ads.request();
    ads.respond("1", "n1", &[limit("shop", "user", 2)]);
    ads.request();
    let many = |version: u32| -> Vec<_> {
        (0..500).map(|number| limit(&format!("domain-{number}"), "user", version)).collect()
    };
    proxy.set(Faults { replies: Flow::CutAt(5000, Cut::Rst), ..Faults::default() });
    ads.respond("2", "n2", &many(2));
    let cut = |faults: Faults| proxy.set(Faults { spares_new: true, ..faults });
    wait_until("the cut", || metric(&service, "ratelimit_xds_connected") == 0.0);
    cut(Faults::default());
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 1/2 YEAR");
    let again = eventually("another stream", || {
        ads.unread().into_iter().find(|asked| asked.node.is_some())
    });
    assert_eq!(again.version, "1#reconnect");
    ads.respond("2", "n1", &many(2));
    wait_for(&service, "2");
    assert_eq!(ask(&service, "domain-499", "user=a").await, "OK: OK 1/2 YEAR");
}

#[tokio::test]
async fn rules_of_10_mb_are_accepted() {
    let (ads, service) = follow();
    let value = "v".repeat(100);
    let entries: Vec<_> = (0..90_000)
        .map(|number| json!({ "key": "k", "value": format!("{value}{number}"), "rateLimit": { "unit": "YEAR", "requestsPerUnit": 7 } }))
        .collect();
    let config = json!({ "name": "large", "domain": "large", "descriptors": entries });
    assert!(crate::support::ads::resource(&config).value.len() > 10_000_000);
    ads.respond("1", "n1", &[config]);
    wait_for(&service, "1");
    assert_eq!(ask(&service, "large", &format!("k={value}89999")).await, "OK: OK 6/7 YEAR");
}

#[test]
fn a_stream_that_ends_with_a_status_shows_it() {
    let (ads, service) = follow();
    ads.send(Err(Status::unavailable("no snapshot\nyet")));
    let failure = eventually("the failure", || {
        rules(&service)["control_plane"]["failure"].as_str().map(str::to_owned)
    });
    assert_eq!(failure, "UNAVAILABLE: no snapshot\\x0ayet");
}
