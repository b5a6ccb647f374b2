//! What a resource may hold, what is refused, and in which words.

use envoy_types::pb::google::protobuf::Any;

use super::{accepted, ask, follow, rules, shapes::entry, start};
use crate::support::{
    ads::{self, FakeAds, TYPE_URL},
    prelude::*,
    rows::rows,
};

fn config(descriptors: Value) -> Value {
    json!({ "name": "shop", "domain": "shop", "descriptors": descriptors })
}

#[test]
fn every_problem_is_named_with_its_resource_and_descriptor() {
    let ads = FakeAds::start();
    let _service = start(&ads.url(), &[]);
    ads.request();
    for (number, [expected, descriptors]) in
        rows(include_str!("problems.txt"), "problems").into_iter().enumerate()
    {
        let config = config(serde_json::from_str(&descriptors).unwrap());
        // Good rules in between, after which a refusal is sent at once.
        ads.respond("good", &format!("g{number}"), &[]);
        ads.request();
        ads.respond("bad", &format!("n{number}"), &[config]);
        assert_eq!(ads.request().error.as_deref(), Some(&*expected));
    }
    ads.respond("good", "last", &[]);
    ads.request();
    ads.respond("bad", "none", &[json!({ "name": "shop" })]);
    assert_eq!(ads.request().error.as_deref(), Some("shop: domain: must not be empty"));
}

#[test]
fn resources_that_are_no_rules_are_refused() {
    let ads = FakeAds::start();
    let _service = start(&ads.url(), &[]);
    ads.request();
    let malformed = Any { type_url: TYPE_URL.to_owned(), value: vec![0xff] };
    let other = Any { type_url: "type.googleapis.com/a.B".to_owned(), value: Vec::new() };
    ads.respond_with("1", "n1", vec![malformed, other]);
    let error = ads.request().error.unwrap();
    let lines: Vec<&str> = error.lines().collect();
    assert!(lines[0].starts_with("resource 1: malformed: "), "{error}");
    assert_eq!(
        lines[1],
        format!("resource 2: its type is `type.googleapis.com/a.B`, not {TYPE_URL}")
    );
}

#[tokio::test]
async fn fields_of_a_newer_control_plane_are_ignored_with_a_warning() {
    let (ads, service) = follow();
    let limit = json!({ "key": "user", "rateLimit": { "unit": "YEAR", "requestsPerUnit": 1 } });
    let mut resource = ads::resource(&config(json!([limit])));
    // Field 100, a number.
    resource.value.extend([0xa0, 0x06, 0x01]);
    ads.respond_with("1", "n1", vec![resource]);
    assert_eq!(ads.request().error, None);
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 0/1 YEAR");
    assert!(
        service.log().contains("shop: the first of 1 with fields that this version does not know"),
        "{}",
        service.log()
    );

    let mut newer = Vec::new();
    for number in 0..30 {
        let mut resource = ads::resource(&super::limit(&format!("d{number}"), "user", 1));
        resource.value.extend([0xa0, 0x06, 0x01]);
        newer.push(resource);
    }
    ads.respond_with("2", "n2", newer);
    assert_eq!(ads.request().error, None);
    let log = service.log();
    let line = "d0: the first of 30 with fields that this version does not know; they are ignored";
    assert!(log.contains(line) && log.matches("does not know").count() == 2, "{log}");
}

#[test]
fn many_problems_are_a_bounded_number_of_lines() {
    let (ads, service) = follow();
    let bad: Vec<Value> = (0..500).map(|number| super::bad(&format!("d{number}"))).collect();
    ads.respond("1", "n1", &bad);
    assert!(ads.request().error.is_some());
    let log = service.log();
    assert!(log.contains("rules not loaded (1000 problems)"), "{log}");
    assert!(log.contains("980 more like these") && log.lines().count() < 60, "{log}");
    let status = service.admin("GET", "/status").1;
    let shown = status["rules"]["problems"].as_array().unwrap();
    assert_eq!((shown.len(), &shown[20]), (21, &json!("980 more like these")));
    assert_eq!(super::rules(&service)["problems"].as_array().unwrap().len(), 1000);
}

#[tokio::test]
async fn our_own_keys_come_in_the_metadata_and_envoy_gets_the_rest_of_it() {
    let bucket = json!({
        "rateLimit": { "unit": "YEAR", "requestsPerUnit": 5 },
        "metadata": { "tollkeeper": { "algorithm": "token_bucket", "burst": 2 }, "team": "payments" },
    });
    let calendar = json!({
        "rateLimit": { "unit": "DAY", "requestsPerUnit": 5 },
        "metadata": { "tollkeeper": { "time_zone": "Europe/Berlin", "on_store_failure": "local" } },
    });
    let shared = json!({
        "rateLimit": { "unit": "YEAR", "requestsPerUnit": 2 },
        "metadata": { "tollkeeper": { "share_threshold": true } },
    });
    let several = json!({ "metadata": { "tollkeeper": { "rate_limits": [
        { "unit": "year", "requests_per_unit": 9 }, { "unit": "day", "requests_per_unit": 3 },
    ] } } });
    let named = json!({
        "rateLimit": { "unit": "YEAR" },
        "metadata": { "tollkeeper": { "name": "whole", "requests_per_unit": 5e9 } },
    });
    let descriptors = json!([
        entry("large", "", &named),
        entry("nested", "x", &json!({ "descriptors": [entry("large", "", &named)] })),
        entry("bucket", "", &bucket),
        entry("calendar", "", &calendar),
        entry("shared", "a*", &shared),
        entry("several", "", &several),
    ]);
    let (_ads, service) = accepted(&[config(descriptors)]);
    let shown = rules(&service);
    let limits: Vec<_> = shown["domains"][0]["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["limit"].as_str().unwrap())
        .collect();
    assert_eq!(
        limits,
        [
            "5 per year by token_bucket",
            "5 per day",
            "5000000000 per year",
            "5000000000 per year",
            "9 per year, 3 per day",
            "2 per year"
        ]
    );
    for entries in [&[("large", "x")][..], &[("nested", "x"), ("large", "x")]] {
        let answer = service.ask(request("shop", vec![descriptor(entries)])).await.unwrap();
        assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().name, "whole");
    }
    assert_eq!(ask(&service, "shop", "shared=a1").await, "OK: OK 1/2 YEAR");
    assert_eq!(ask(&service, "shop", "shared=a2").await, "OK: OK 0/2 YEAR");
    assert_eq!(ask(&service, "shop", "several=x").await, "OK: OK 2/3 DAY");
}

#[test]
fn slot_by_of_descriptors_of_the_top_level_applies_to_the_domain() {
    let by_domain = |key: &str| {
        let limit = json!({ "unit": "YEAR", "requestsPerUnit": 1 });
        let own = json!({ "tollkeeper": { "slot_by": "domain" } });
        json!({ "key": key, "rateLimit": limit, "metadata": own })
    };
    let without = json!({ "key": "user", "rateLimit": { "unit": "YEAR", "requestsPerUnit": 1 } });
    let descriptors = json!([by_domain("plan"), by_domain("team"), without]);
    let (_ads, service) = accepted(&[config(descriptors)]);
    let admin = service.admin.to_string();
    for (descriptor, key) in [
        ("plan=free", "charges 1 to tk1:fw:31536000s:{shop}|plan=free:"),
        ("user=a", "charges 1 to tk1:fw:31536000s:{shop}|user=a:"),
    ] {
        let words = ["explain", "--admin-addr", &admin, "--domain", "shop", descriptor];
        let (_, stdout, stderr) = run(tollkeeper().args(words));
        assert!(stdout.contains(key), "{stdout}{stderr}");
    }
}

#[tokio::test]
async fn text_that_yaml_would_read_as_a_number_stays_text() {
    let limit = json!({ "rateLimit": { "unit": "YEAR", "requestsPerUnit": 1, "name": "010" } });
    let descriptors = json!([
        entry("null", "010", &limit),
        entry("null", "", &json!({ "rateLimit": { "unlimited": true } }))
    ]);
    let (_ads, service) = accepted(&[config(descriptors)]);
    assert_eq!(ask(&service, "shop", "null=010").await, "OK: OK 0/1 YEAR");
    assert_eq!(ask(&service, "shop", "null=8").await, "OK: OK unlimited");
}
