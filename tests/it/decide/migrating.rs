//! Features of envoyproxy/ratelimit's rule files, which work as its users expect on every store: patterns,
//! shared counters, replaced limits, shadows, quotas, headers and metadata.

mod differences;

use prost_types::value::Kind;
use tollkeeper_proto::RateLimitOverride;

use crate::support::{prelude::*, service::of_bytes, stores::one};

async fn ask(service: &Service, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    service.ask(request("shop", descriptors)).await.unwrap()
}

async fn check(service: &Service, descriptors: &[RateLimitDescriptor], expected: &str) {
    assert_eq!(spell(&ask(service, descriptors.to_vec()).await), expected, "{descriptors:?}");
}

#[tokio::test]
async fn an_exact_value_comes_before_a_pattern_and_that_before_the_key_alone() {
    let rules = "
domain: shop
descriptors:
  - { key: file, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: file, value: 'foo*', rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: file, value: '*bar', rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: file, value: foobar, rate_limit: { unit: year, requests_per_unit: 4 } }
  - { key: 'a_b', value: c, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: 'star*', rate_limit: { unit: year, requests_per_unit: 6 } }
";
    on_every_store(rules, &[], async |service| {
        check(service, &[one("file", "foobar")], "OK: OK 3/4 YEAR").await;
        check(service, &[one("file", "foo-bar")], "OK: OK 1/2 YEAR").await;
        check(service, &[one("file", "x-bar")], "OK: OK 2/3 YEAR").await;
        check(service, &[one("file", "x")], "OK: OK 0/1 YEAR").await;
        // Each value has a counter of its own.
        check(service, &[one("file", "foo1")], "OK: OK 1/2 YEAR").await;
        check(service, &[one("file", "foo2")], "OK: OK 1/2 YEAR").await;
        // A key is never matched together with its value, and a star in a key is a literal star.
        check(service, &[one("a", "b_c")], "OK: OK -").await;
        check(service, &[one("star*", "x")], "OK: OK 5/6 YEAR").await;
        check(service, &[one("starry", "x")], "OK: OK -").await;
        let bytes = [(&b"file"[..], &b"foo\xff\x00"[..])];
        check(service, &[crate::support::service::of_bytes(&bytes)], "OK: OK 1/2 YEAR").await;
    })
    .await;
}

/// The numbers are from envoyproxy/ratelimit's own integration test, except that denied calls are not
/// charged.
#[tokio::test]
async fn the_basic_configuration_answers_with_envoyproxy_ratelimits_numbers() {
    let rules = "
domain: shop
descriptors:
  - { key: key1, rate_limit: { unit: second, requests_per_unit: 50 } }
  - { key: key2, rate_limit: { unit: month, requests_per_unit: 20 } }
  - { key: key3, rate_limit: { unit: YEAR, requests_per_unit: 10 } }
";
    on_every_store(rules, &[], async |service| {
        let answer = service.ask(request("foo", vec![one("hello", "world")])).await.unwrap();
        assert_eq!(spell(&answer), "OK: OK -");
        check(service, &[one("key1", "foo")], "OK: OK 49/50 SECOND").await;
        for left in (0..20).rev() {
            check(service, &[one("key2", "r")], &format!("OK: OK {left}/20 MONTH")).await;
        }
        for _ in 0..5 {
            check(service, &[one("key2", "r")], "OVER_LIMIT: OVER_LIMIT 0/20 MONTH").await;
        }
        let both = [one("key2", "s"), one("key3", "s")];
        for left in (0..10).rev() {
            let two = left + 10;
            check(service, &both, &format!("OK: OK {two}/20 MONTH, OK {left}/10 YEAR")).await;
        }
        // The sibling of the denied descriptor is not charged.
        for _ in 0..5 {
            let over = "OVER_LIMIT: OK 10/20 MONTH, OVER_LIMIT 0/10 YEAR";
            check(service, &both, over).await;
        }
    })
    .await;
}

/// Rules such as the ones in its readme.
#[tokio::test]
async fn the_examples_of_envoyproxy_ratelimits_readme_work_unchanged() {
    let check = async |rules: &str, domain: &str, calls: &[(&[(&str, &str)], &str)]| {
        let redis = Redis::start();
        for store in ["memory://", &redis.url()] {
            let service = Service::with(rules).on(store).start();
            for (entries, expected) in calls {
                let call = request(domain, vec![descriptor(entries)]);
                let answer = service.ask(call).await.unwrap();
                assert_eq!(spell(&answer), *expected, "{entries:?} on {store}");
            }
        }
    };
    // Connections to each of two databases.
    let rules = "
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit:
      unit: second
      requests_per_unit: 500

  - key: database
    value: default
    rate_limit:
      unit: second
      requests_per_unit: 400
";
    let users = (&[("database", "users")][..], "OK: OK 499/500 SECOND");
    let others = (&[("database", "x")][..], "OK: OK -");
    check(
        rules,
        "mongo_cps",
        &[users, others, (&[("database", "default")], "OK: OK 399/400 SECOND")],
    )
    .await;

    // Messages to a phone number: fewer for marketing.
    let rules = "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit:
          unit: year
          requests_per_unit: 2
  - key: to_number
    rate_limit:
      unit: year
      requests_per_unit: 100
";
    let marketing = &[("message_type", "marketing"), ("to_number", "2061111111")][..];
    let calls = [
        (marketing, "OK: OK 1/2 YEAR"),
        (marketing, "OK: OK 0/2 YEAR"),
        (marketing, "OVER_LIMIT: OVER_LIMIT 0/2 YEAR"),
        (&[("to_number", "2061111111")], "OK: OK 99/100 YEAR"),
        (&[("message_type", "text")], "OK: OK -"),
    ];
    check(rules, "messaging", &calls).await;

    // Addresses: a limit each, but one is banned, one is unlimited, and a range shares one counter.
    let rules = "
domain: edge_proxy_per_ip
descriptors:
  - key: remote_address
    rate_limit:
      unit: second
      requests_per_unit: 10

  - key: remote_address
    value: 50.0.0.5
    rate_limit:
      unit: second
      requests_per_unit: 0

  - key: remote_address
    value: 50.0.0.6
    rate_limit:
      unlimited: true

  - key: remote_address
    value: 10.0.*
    share_threshold: true
    rate_limit:
      unit: year
      requests_per_unit: 2
";
    let calls = [
        (&[("remote_address", "1.2.3.4")][..], "OK: OK 9/10 SECOND"),
        (&[("remote_address", "50.0.0.5")], "OVER_LIMIT: OVER_LIMIT 0/0 SECOND"),
        (&[("remote_address", "50.0.0.6")], "OK: OK unlimited"),
        (&[("remote_address", "10.0.0.1")], "OK: OK 1/2 YEAR"),
        (&[("remote_address", "10.0.7.7")], "OK: OK 0/2 YEAR"),
    ];
    check(rules, "edge_proxy_per_ip", &calls).await;
}

/// Rules such as the ones in its configuration tests.
#[tokio::test]
async fn nested_rules_allowlists_and_unlimited_rules_match_as_in_envoyproxy_ratelimit() {
    let rules = "
domain: shop
descriptors:
  - key: key1
    value: value1
    descriptors:
      - { key: subkey1, rate_limit: { unit: year, requests_per_unit: 5 } }
      - { key: subkey1, value: subvalue1, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: key2, rate_limit: { unit: year, requests_per_unit: 20 } }
  - { key: key2, value: value2, rate_limit: { unit: year, requests_per_unit: 30 } }
  - { key: key2, value: value3 }
  - { key: key6, rate_limit: { unlimited: true } }
  - key: key9
    rate_limit: { unit: year, requests_per_unit: 7 }
    descriptors:
      - { key: sub, rate_limit: { unit: year, requests_per_unit: 8 } }
";
    on_every_store(rules, &[], async |service| {
        check(service, &[descriptor(&[])], "OK: OK -").await;
        check(service, &[one("key1", "something")], "OK: OK -").await;
        check(service, &[one("key1", "value1")], "OK: OK -").await;
        let nested = |value| descriptor(&[("key1", "value1"), ("subkey1", value)]);
        check(service, &[nested("something")], "OK: OK 4/5 YEAR").await;
        check(service, &[nested("subvalue1")], "OK: OK 9/10 YEAR").await;
        check(service, &[descriptor(&[("key2", "value2"), ("extra", "x")])], "OK: OK -").await;
        check(service, &[one("key2", "something")], "OK: OK 19/20 YEAR").await;
        check(service, &[one("key2", "value2")], "OK: OK 29/30 YEAR").await;
        check(service, &[one("key2", "value3")], "OK: OK -").await;
        check(service, &[one("key6", "x")], "OK: OK unlimited").await;
        check(service, &[one("key9", "x")], "OK: OK 6/7 YEAR").await;
        check(service, &[descriptor(&[("key9", "x"), ("sub", "y")])], "OK: OK 7/8 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn a_shared_threshold_counts_all_values_of_a_pattern_together() {
    let rules = "
domain: shop
descriptors:
  - key: files
    value: 'files/*'
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 10 }
  - { key: files_no_share, value: 'files/*', rate_limit: { unit: year, requests_per_unit: 10 } }
  - key: top
    value: 'top/*'
    share_threshold: true
    descriptors:
      - { key: user, rate_limit: { unit: year, requests_per_unit: 5 } }
";
    on_every_store(rules, &[], async |service| {
        for left in (0..10).rev() {
            let value = format!("files/{left}.pdf");
            check(service, &[one("files", &value)], &format!("OK: OK {left}/10 YEAR")).await;
            check(service, &[one("files_no_share", &value)], "OK: OK 9/10 YEAR").await;
        }
        let over = "OVER_LIMIT: OVER_LIMIT 0/10 YEAR";
        check(service, &[one("files", "files/b.csv")], over).await;
        let nested = |top, user| descriptor(&[("top", top), ("user", user)]);
        check(service, &[nested("top/a", "alice")], "OK: OK 4/5 YEAR").await;
        check(service, &[nested("top/b", "alice")], "OK: OK 3/5 YEAR").await;
        check(service, &[nested("top/b", "bob")], "OK: OK 4/5 YEAR").await;
        // A value that is spelled like the pattern is a value like any other.
        check(service, &[one("files_no_share", "files/*")], "OK: OK 9/10 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn a_replaced_limit_does_not_count_in_a_call_that_matches_both_rules() {
    let rules = "
domain: shop
descriptors:
  - { key: banned, rate_limit: { name: banned, unit: year, requests_per_unit: 0 } }
  - { key: vip, rate_limit: { unit: year, requests_per_unit: 2, replaces: [{ name: banned }] } }
  - { key: free, rate_limit: { unlimited: true, replaces: [{ name: banned }] } }
";
    on_every_store(rules, &[], async |service| {
        let over = "OVER_LIMIT: OVER_LIMIT 0/0 YEAR";
        check(service, &[one("banned", "x")], over).await;
        let both = [one("banned", "x"), one("vip", "x")];
        check(service, &both, "OK: OK -, OK 1/2 YEAR").await;
        check(service, &both, "OK: OK -, OK 0/2 YEAR").await;
        check(service, &both, "OVER_LIMIT: OK -, OVER_LIMIT 0/2 YEAR").await;
        check(service, &[one("free", "x"), one("banned", "x")], "OK: OK unlimited, OK -").await;
    })
    .await;
    let service = Service::with(rules).start();
    let answer = ask(&service, vec![one("banned", "x")]).await;
    assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().name, "banned");
}

#[tokio::test]
async fn a_shadow_is_counted_and_reported_and_never_denies() {
    let rules = "
domain: shop
descriptors:
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: enforced, rate_limit: { unit: year, requests_per_unit: 3 } }
";
    on_every_store(rules, &[], async |service| {
        let both = [one("shadow", "x"), one("enforced", "x")];
        check(service, &both, "OK: OK 1/2 YEAR, OK 2/3 YEAR").await;
        check(service, &both, "OK: OK 0/2 YEAR, OK 1/3 YEAR").await;
        // The shadow does not fit: its counter is unchanged, and the call passes.
        check(service, &both, "OK: OK 0/2 YEAR, OK 0/3 YEAR").await;
        check(service, &both, "OVER_LIMIT: OK 0/2 YEAR, OVER_LIMIT 0/3 YEAR").await;
        check(service, &[refund(one("shadow", "x"), 1)], "OK: OK 1/2 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn quotas_deny_only_if_none_of_them_fits() {
    let rules = "
domain: shop
descriptors:
  - { key: one, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: two, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: enforced, rate_limit: { unit: year, requests_per_unit: 9 } }
";
    on_every_store(rules, &[], async |service| {
        let both = [one("one", "x"), one("two", "x")];
        check(service, &both, "OK: OK 0/1 YEAR, OK 1/2 YEAR").await;
        check(service, &both, "OK: OVER_LIMIT 0/1 YEAR, OK 0/2 YEAR").await;
        check(service, &both, "OVER_LIMIT: OVER_LIMIT 0/1 YEAR, OVER_LIMIT 0/2 YEAR").await;
        // An enforced limit that fits does not let the call pass if its only quota is over; neither is charged.
        let mixed = [one("one", "x"), one("enforced", "x")];
        check(service, &mixed, "OVER_LIMIT: OVER_LIMIT 0/1 YEAR, OK 9/9 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn keys_begin_with_the_prefix_with_scripts_and_without() {
    for scripts in ["on", "off"] {
        let redis = Redis::start();
        let flags = &["--key-prefix", "team-a:", "--redis-scripts", scripts];
        let service = Service::with(PLAIN).on(&redis.url()).flags(flags).start();
        check(&service, &[one("nine", "x")], "OK: OK 8/9 YEAR").await;
        check(&service, &[one("nine", "x")], "OK: OK 7/9 YEAR").await;
        assert!(redis.key("nine").starts_with("team-a:tk1:fw:31536000s:{shop|nine=x}:"));
        let path = "/counters/reset?domain=shop&descriptor=nine%3Dx";
        assert!(service.exchange_at(service.admin, "POST", path, b"").2.contains("\"used\":2"));
        // The record of the reset, and its time; and the keys of the digest in the answer.
        let kept = ["team-a:tk1:op:{audit}", "team-a:tk1:rs:fw:31536000s:{shop|nine=x}"];
        let (of_digests, keys): (Vec<_>, Vec<_>) =
            redis.keys().into_iter().partition(|key| key.contains("{hold-key-"));
        assert_eq!(keys, kept);
        assert!(of_digests.iter().all(|key| key.starts_with("team-a:tk1:op:")), "{of_digests:?}");
    }
}

/// Envoy sends a check before each request and a debit of one after it.
async fn check_token_quota(flags: &[&str], expected: usize) {
    let rules = "
domain: shop
descriptors:
  - { key: tokens, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
";
    on_every_store(rules, flags, async |service| {
        let mut passed = 0;
        for _ in 0..5 {
            let no_hits = ask(service, vec![hits(one("tokens", "x"), 0)]).await;
            if no_hits.overall_code().as_str_name() == "OK" {
                passed += 1;
                ask(service, vec![one("tokens", "x")]).await;
            }
        }
        assert_eq!(passed, expected);
    })
    .await;
}

#[tokio::test]
async fn a_token_quota_of_two_lets_two_through() {
    check_token_quota(&[], 2).await;
}

/// As envoyproxy/ratelimit decides it: only hits beyond the limit deny a check.
#[tokio::test]
async fn a_token_quota_of_two_lets_three_through_if_checks_pass_at_an_exhausted_limit() {
    // The second is its former name.
    for flag in ["--exhausted-checks", "--exhausted-looks"] {
        check_token_quota(&[flag, "allow"], 3).await;
    }
}

const PLAIN: &str = "
domain: shop
descriptors:
  - { key: one, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: nine, rate_limit: { unit: year, requests_per_unit: 9 } }
";

#[tokio::test]
async fn under_the_global_shadow_mode_statuses_show_what_is_over_and_every_call_passes() {
    on_every_store(PLAIN, &["--shadow-mode"], async |service| {
        let both = [one("one", "x"), one("nine", "x")];
        check(service, &both, "OK: OK 0/1 YEAR, OK 8/9 YEAR").await;
        check(service, &both, "OK: OVER_LIMIT 0/1 YEAR, OK 7/9 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn a_shadow_rule_stays_a_shadow_under_the_global_modes() {
    let rules = "
domain: shop
descriptors:
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: log, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1, algorithm: sliding_log } }
";
    for flag in ["--shadow-mode", "--quota-mode"] {
        let service = Service::with(rules).flags(&[flag]).start();
        for key in ["shadow", "log"] {
            for _ in 0..3 {
                check(&service, &[one(key, "x")], "OK: OK 0/1 YEAR").await;
            }
        }
    }
}

#[tokio::test]
async fn exhausted_quotas_pass_under_the_global_shadow_mode() {
    let rules = "
domain: shop
descriptors:
  - { key: one, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
";
    on_every_store(rules, &["--shadow-mode"], async |service| {
        check(service, &[one("one", "x")], "OK: OK 0/1 YEAR").await;
        check(service, &[one("one", "x")], "OK: OVER_LIMIT 0/1 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn under_the_global_quota_mode_one_descriptor_that_fits_or_has_no_limit_is_enough() {
    on_every_store(PLAIN, &["--quota-mode"], async |service| {
        let both = [one("one", "x"), one("nine", "x")];
        check(service, &both, "OK: OK 0/1 YEAR, OK 8/9 YEAR").await;
        check(service, &both, "OK: OVER_LIMIT 0/1 YEAR, OK 7/9 YEAR").await;
        check(service, &both[..1], "OVER_LIMIT: OVER_LIMIT 0/1 YEAR").await;
        let free = [one("one", "x"), one("unknown", "x")];
        check(service, &free, "OK: OVER_LIMIT 0/1 YEAR, OK -").await;
    })
    .await;
}

/// An override of two with a unit of any number.
fn with_unit(unit: i32) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit: 2, unit, unit_multiplier: None };
    RateLimitDescriptor { limit: Some(limit), ..one("any", "x") }
}

/// The enum of units in requests has no 7. envoyproxy/ratelimit reads the number as the enum of answers, in
/// which 7 is WEEK.
#[tokio::test]
async fn an_override_with_unit_7_is_weekly() {
    let service = Service::with(PLAIN).flags(&["--dynamic-metadata"]).start();
    check(&service, &[with_unit(7)], "OK: OK 1/2 WEEK").await;
    check(&service, &[with_unit(7)], "OK: OK 0/2 WEEK").await;
    check(&service, &[with_unit(7)], "OVER_LIMIT: OVER_LIMIT 0/2 WEEK").await;
    check(&service, &[with_unit(8)], "OK: OK -").await;
    let echo = ask(&service, vec![with_unit(7), with_unit(8)]).await.dynamic_metadata.unwrap();
    let echo = json(&echo);
    assert!(echo.contains(r#""limit":"requests_per_unit:2 unit:WEEK""#), "{echo}");
    assert!(echo.contains(r#""limit":"requests_per_unit:2 unit:8""#), "{echo}");
    let body = br#"{"domain":"shop","descriptors":[{"entries":[{"key":"any","value":"y"}],"limit":{"requestsPerUnit":2,"unit":7}}]}"#;
    let (code, _, answer) = service.exchange("POST", "/json", body);
    assert!(code == 200 && answer.contains("WEEK"), "{code} {answer}");
}

/// The headers of an answer, one a line, with N for each number over 1000: the seconds until the year ends
/// differ from run to run.
fn headers(answer: &RateLimitResponse) -> String {
    let mut lines = Vec::new();
    for header in &answer.response_headers_to_add {
        assert!(header.raw_value.is_empty(), "Envoy ignores raw values");
        let mut value = String::new();
        for word in header.value.split_inclusive(['=', ';', ',']) {
            let (number, end) = word.split_at(word.trim_end_matches(['=', ';', ',']).len());
            let is_large = number.parse::<u32>().is_ok_and(|number| number > 1000);
            value += if is_large { "N" } else { number };
            value += end;
        }
        lines.push(format!("{}: {value}", header.key));
    }
    lines.join("\n")
}

#[tokio::test]
async fn headers_are_the_classic_ones_those_of_the_draft_both_or_none() {
    let rules = "
domain: shop
descriptors:
  - { key: one, rate_limit: { name: 'a \"name\"', unit: year, requests_per_unit: 1 } }
  - { key: nine, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 9007199254740991, hold: 10m } }
";
    let both = || vec![one("nine", "x"), one("one", "x")];
    let start = |flags| Service::with(rules).flags(flags).start();
    let none = start(&[]);
    assert_eq!(headers(&ask(&none, both()).await), "");

    let classic = start(&["--headers", "ratelimit", "--header-limit", "X-Limit"]);
    let expected = "X-Limit: 1\nRateLimit-Remaining: 0\nRateLimit-Reset: N";
    assert_eq!(headers(&ask(&classic, both()).await), expected);
    assert_eq!(headers(&ask(&classic, both()).await), format!("{expected}\nRetry-After: N"));
    assert_eq!(headers(&ask(&classic, vec![one("unknown", "x")]).await), "");

    let draft = start(&["--headers", "draft"]);
    let expected = "RateLimit-Policy: \"nine\";q=9;w=N, \"a \\\"name\\\"\";q=1;w=N\n\
                RateLimit: \"nine\";r=8;t=N, \"a \\\"name\\\"\";r=0;t=N";
    assert_eq!(headers(&ask(&draft, both()).await).replace("w=31536000", "w=N"), expected);
    // Longer numbers are no Integers of structured fields, and a quota without a unit is of requests.
    let answer = ask(&draft, vec![one("tokens", "x")]).await;
    let [policy, usage] = [0, 1].map(|header| &*answer.response_headers_to_add[header].value);
    assert_eq!(policy, r#""tokens";q=999999999999999;qu="hits";w=31536000"#);
    assert!(usage.starts_with(r#""tokens";r=999999999999999;t="#), "{usage}");

    let everything = start(&["--headers", "both"]);
    assert_eq!(headers(&ask(&everything, both()).await).lines().count(), 5);
}

/// A shadow limit that is over shows it to the service behind Envoy, a denial to nobody.
#[tokio::test]
async fn a_request_that_passes_gets_the_limit_and_what_is_left() {
    let rules = "
domain: shop
descriptors:
  - { key: one, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
";
    let flags = &["--request-headers", "x-limit,x-left,x-reset"];
    let service = Service::with(rules).flags(flags).start();
    for (key, second) in [("one", 0), ("shadow", 3)] {
        for expected in [3, second] {
            let answer = ask(&service, vec![one(key, "x")]).await;
            let headers = &answer.request_headers_to_add;
            assert_eq!(headers.len(), expected, "{key}: {headers:?}");
            let names = headers.iter().zip(["x-limit", "x-left", "x-reset"]);
            assert!(names.into_iter().all(|(header, name)| header.key == name), "{headers:?}");
            if expected == 3 {
                assert_eq!((&*headers[0].value, &*headers[1].value), ("1", "0"));
            }
            assert_eq!(answer.response_headers_to_add, []);
        }
    }
    assert_eq!(ask(&service, vec![one("unknown", "x")]).await.request_headers_to_add, []);
}

#[tokio::test]
async fn the_draft_lists_every_limit_of_a_rule_whichever_is_the_tightest() {
    let rules = "
domain: shop
descriptors:
  - key: several
    rate_limits:
      - { unit: year, requests_per_unit: 2 }
      - { unit: week, requests_per_unit: 9 }
      - { name: mine, unit: month, requests_per_unit: 5 }
";
    let flags = &["--headers", "both", "--denied-body", "problem"];
    let service = Service::with(rules).flags(flags).start();
    let mut answer = RateLimitResponse::default();
    for remaining in [[1, 8, 4], [0, 7, 3], [0, 7, 3]] {
        answer = ask(&service, vec![one("several", "x")]).await;
        let shown = headers(&answer);
        let policies = r#"RateLimit-Policy: "several: 2 per year";q=2;w=N, "several: 9 per week";q=9;w=N, "mine";q=5;w=N"#;
        assert!(shown.contains(policies), "{shown}");
        assert!(shown.starts_with("RateLimit-Limit: 2\n"), "the tightest: {shown}");
        for (name, remaining) in
            ["several: 2 per year", "several: 9 per week", "mine"].iter().zip(remaining)
        {
            assert!(shown.contains(&format!("\"{name}\";r={remaining};t=")), "{name}: {shown}");
        }
    }
    let problem = String::from_utf8(answer.raw_body).unwrap();
    assert!(problem.contains(r#""violated-policies":["several: 2 per year"]"#), "{problem}");
}

#[tokio::test]
async fn the_draft_lists_at_most_sixteen_limits_the_tightest_among_them() {
    let limit = |number: usize| {
        format!(
            "  - {{ key: k{number}, rate_limit: {{ unit: year, requests_per_unit: {} }} }}\n",
            60 - number
        )
    };
    let rules = format!("domain: shop\ndescriptors:\n{}", (0..20).map(limit).collect::<String>());
    let service = Service::with(&rules).flags(&["--headers", "draft"]).start();
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let answer = ask(&service, keys.iter().map(|key| one(key, "x")).collect()).await;
    for header in &answer.response_headers_to_add {
        let names: Vec<&str> = header.value.split('"').skip(1).step_by(2).collect();
        let expected: Vec<&str> = keys[4..].iter().rev().map(String::as_str).collect();
        assert_eq!(names, expected, "{header:?}");
    }
}

#[tokio::test]
async fn dynamic_metadata_has_the_request_and_the_metadata_of_rules_that_passed() {
    let rules = "
domain: shop
descriptors:
  - key: one
    metadata: { tier: gold, nested: { a: 1 } }
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: nine
    detailed_metric: true
    metadata: { tier: silver, nested: { a: 2, b: [true, null, text] } }
    rate_limit: { unit: year, requests_per_unit: 9 }
";
    let service = Service::with(rules).flags(&["--dynamic-metadata"]).start();
    let call = || vec![hits(one("one", "a\r\nb"), 1), one("nine", "x")];
    let first = ask(&service, call()).await.dynamic_metadata.unwrap();
    let expected = r#"{"descriptors":[{"entries":["one=a\\x0d\\x0ab"],"hitsAddend":1},{"entries":["nine=x"]}],"domain":"shop","metadata":{"nested":{"a":1,"b":[true,null,"text"]},"tier":"gold"}}"#;
    assert_eq!(json(&first), expected);
    // The first descriptor is over now, so its metadata is left out.
    let second = ask(&service, call()).await.dynamic_metadata.unwrap();
    assert!(
        json(&second)
            .ends_with(r#""metadata":{"nested":{"a":2,"b":[true,null,"text"]},"tier":"silver"}}"#)
    );
}

#[tokio::test]
async fn a_domain_is_printable_in_dynamic_metadata() {
    let service = Service::shop().flags(&["--dynamic-metadata"]).start();
    let call = request("shop\r\n\x1b[31m", vec![one("user", "x")]);
    let echo = service.ask(call).await.unwrap().dynamic_metadata.unwrap();
    assert!(json(&echo).contains(r#""domain":"shop\\x0d\\x0a\\x1b[31m""#), "{}", json(&echo));
}

/// A header of Envoy's default maximum in each of 64 descriptors. In the answer each byte would take four.
#[tokio::test]
async fn dynamic_metadata_repeats_the_start_of_values_and_so_much_of_a_call() {
    let service = Service::shop().flags(&["--dynamic-metadata"]).start();
    for (value, start) in [(0xff, r"\xff"), (b'\n', r"\x0a"), (b'"', "\""), (b'v', "v")] {
        let value = [value; 59_000];
        let one = of_bytes(&[(b"user", &value)]);
        let echo = ask(&service, vec![one.clone()]).await.dynamic_metadata.unwrap();
        let entry = format!("user={}…", start.repeat(256 / start.len()));
        let echo: serde_json::Value = serde_json::from_str(&json(&echo)).unwrap();
        assert_eq!(echo["descriptors"][0]["entries"][0], entry);

        let answer = ask(&service, vec![hits(one, 0); 64]).await;
        assert_eq!(answer.statuses.len(), 64);
        let bytes = answer.encoded_len();
        assert!(bytes < 32 << 10, "{bytes} bytes for {start}");
    }
    let short: Vec<_> = (0..64).map(|number| one("user", &format!("{number:0>200}"))).collect();
    let echo = ask(&service, short).await.dynamic_metadata.unwrap();
    assert_eq!(json(&echo).matches("user=0").count(), 64, "all of a usual call");
    let key = "k".repeat(1_000_000);
    let call = request(&"d".repeat(1_000_000), vec![one(&key, "x")]);
    let echo = service.ask(call).await.unwrap().dynamic_metadata.unwrap();
    assert!(json(&echo).contains(&format!("[\"{}…=x\"]", &key[..256])), "{}", json(&echo));
    assert!(echo.encoded_len() < 1_000);
}

#[tokio::test]
async fn the_json_answer_has_every_field_of_the_message() {
    let rules = "
domain: shop
descriptors:
  - { key: one, metadata: { tier: gold }, rate_limit: { name: free, unit: year, requests_per_unit: 1 } }
";
    let flags = &["--headers", "ratelimit", "--dynamic-metadata"];
    let service = Service::with(rules).flags(flags).start();
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"one","value":"x"}]}]}"#;
    let answer = service.post("/json", body);
    assert_eq!(answer["statuses"][0]["currentLimit"]["name"], "free");
    assert_eq!(answer["responseHeadersToAdd"][1]["key"], "RateLimit-Remaining");
    assert_eq!(answer["responseHeadersToAdd"][1]["value"], "0");
    assert_eq!(answer["dynamicMetadata"]["metadata"]["tier"], "gold");
    assert_eq!(answer["dynamicMetadata"]["descriptors"][0]["entries"][0], "one=x");
}

/// A Struct as JSON, its keys in order.
fn json(tree: &prost_types::Struct) -> String {
    let mut pairs = Vec::new();
    for (name, value) in &tree.fields {
        pairs.push(format!("{name:?}:{}", json_of_value(value)));
    }
    format!("{{{}}}", pairs.join(","))
}

fn json_of_value(value: &prost_types::Value) -> String {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => "null".to_owned(),
        Kind::NumberValue(number) => number.to_string(),
        Kind::StringValue(text) => format!("{text:?}"),
        Kind::BoolValue(boolean) => boolean.to_string(),
        Kind::StructValue(tree) => json(tree),
        Kind::ListValue(list) => {
            let items: Vec<String> = list.values.iter().map(json_of_value).collect();
            format!("[{}]", items.join(","))
        }
    }
}
