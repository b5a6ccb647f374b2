//! What operators set for some descriptors. `decisions.txt` has which calls pass then, and what they charge.

use crate::support::{overrides::*, prelude::*, rows::rows, service::*};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: work, rate_limit: { unit: year, requests_per_unit: 3, count_denied: true } }
  - { key: other, rate_limit: { unit: year, requests_per_unit: 100 } }
  - key: both
    rate_limits:
      - { unit: day, requests_per_unit: 2 }
      - { unit: year, requests_per_unit: 3 }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 2, burst: 3, algorithm: token_bucket }
  - { key: log, rate_limit: { unit: year, requests_per_unit: 2, algorithm: sliding_log } }
  - { key: local, rate_limit: { unit: year, requests_per_unit: 2, on_store_failure: local } }
  - { key: closes, rate_limit: { unit: year, requests_per_unit: 1, ban_for: 1h } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: file, value: '*.pdf', rate_limit: { unit: year, requests_per_unit: 2 } }
";

const ROWS: &str = include_str!("overrides.txt");

fn on(store: &str) -> Service {
    Service::with(RULES).on(store).ready()
}

/// LiteLLM 25760: a raise had no effect as long as the key was cached.
#[tokio::test]
async fn a_denial_that_is_cached_ends_with_the_limit_that_it_was_made_by() {
    let redis = Redis::start();
    let service = on(&redis.url());
    let call = "user=alice(3)";
    assert_eq!(service.answer(call).await, "OK: OK 0/3 YEAR");
    for _ in 0..3 {
        assert_eq!(service.answer(call).await, "OVER_LIMIT: OVER_LIMIT 0/3 YEAR");
    }
    service.assert_metric("ratelimit_store_cached_total");
    set(&service, "user=alice", json!({ "times": 2 }));
    assert_eq!(service.answer(call).await, "OK: OK 0/6 YEAR");
    assert_eq!(service.answer(call).await, "OVER_LIMIT: OVER_LIMIT 0/6 YEAR");
}

#[tokio::test]
async fn a_ban_denies_without_the_store_and_charges_nothing() {
    let redis = Redis::start();
    let service = on(&redis.url());
    set(&service, "user=eve", json!({ "action": "ban" }));
    assert_eq!(service.answer("user=eve").await, "OVER_LIMIT: OVER_LIMIT 0/0 YEAR");
    let both = "other=x user=eve";
    assert_eq!(service.answer(both).await, "OVER_LIMIT: OK -, OVER_LIMIT 0/0 YEAR");
    assert_eq!(redis.keys(), ["tk1:op:{audit}", "tk1:op:{overrides}"]);
    // Work that is done is charged nevertheless.
    assert_eq!(
        service.answer("work=x user=eve").await,
        "OVER_LIMIT: OK 2/3 YEAR, OVER_LIMIT 0/0 YEAR"
    );
    drop(redis);
    assert_eq!(service.answer(both).await, "OVER_LIMIT: OK -, OVER_LIMIT 0/0 YEAR");
    assert_eq!(service.answer("user=alice").await, "Unavailable");
    assert_eq!(list(&service, "")["known"], true);
}

#[tokio::test]
async fn the_local_fallback_obeys_too() {
    let redis = Redis::start();
    let service = on(&redis.url());
    set(&service, "local=x", json!({ "limit": 5 }));
    drop(redis);
    assert_eq!(service.answer("local=x(5)").await, "OK: OK 0/5 YEAR");
}

/// Which passes otherwise with what fits, and charges what does not.
#[test]
fn a_ban_denies_parts_and_debits_too() {
    let service = on("memory://");
    set(&service, "user=eve", json!({ "action": "ban" }));
    for mode in ["PART", "DEBIT"] {
        let call = json!({ "mode": mode, "hits": 2, "descriptors": [
            { "entries": [{ "key": "user", "value": "eve" }] },
        ] });
        let answer = service.post("/v1/decide", json!({ "domain": "shop", "calls": [call] }));
        assert_eq!(answer["verdicts"][0]["code"], "OVER_LIMIT", "{mode}: {answer}");
    }
}

#[tokio::test]
async fn a_commit_settles_a_hold_whatever_is_set_meanwhile() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 100, hold: { for: 10m, estimate: 40 } }
  - key: route
    rate_limit: { unit: year, requests_per_unit: 100, hold: { for: 10m, by: counter, estimate: 40 } }
";
    let service = Service::with(rules).start();
    let taken = service.ask(shop("user=alice")).await.unwrap();
    let token = metadata(&taken, "hold").expect("a token");
    assert_eq!(service.answer("route=a").await, "OK: OK 59/100 YEAR");
    let bans = ["user=alice", "route=a"].map(|key| set(&service, key, json!({ "action": "ban" })));
    assert!(service.answer("user=alice").await.starts_with("OVER_LIMIT"));
    assert!(service.answer("route=a").await.starts_with("OVER_LIMIT"));

    service.answer(&format!("hold.commit={token},hold.used=10")).await;
    service.answer("route=a(10)").await;
    bans.iter().for_each(|ban| end(&service, ban));
    let used = ["user=alice", "route=a"].map(|key| service.counter("shop", key)["used"].clone());
    assert_eq!(used, [10, 11]);
}

/// An operator sees of each decision that it was not made by the rule alone.
#[tokio::test]
async fn an_override_is_named_wherever_its_decision_is_shown() {
    let flags = &["--dynamic-metadata", "--top-keys", "values", "--denied-body", "problem"];
    let service = Service::with(RULES).flags(flags).start();
    let raised = set(&service, "user=alice", json!({ "times": 10 }));
    let banned = set(&service, "user=eve", json!({ "action": "ban" }));
    let answer = service.ask(shop("user=alice")).await.unwrap();
    let named = |set: &Value, text: &str| {
        assert!(text.contains(set["id"].as_str().unwrap()), "{set} in {text}");
    };
    named(&raised, &format!("{:?}", answer.dynamic_metadata.unwrap().fields["overrides"]));

    let body = json!({ "domain": "shop", "descriptors": [{ "entries": [{ "key": "user", "value": "alice" }] }] });
    let (_, explanation) = send(&service, "POST", "/explain", &body.to_string());
    named(&raised, &explanation["descriptors"][0]["override"].to_string());
    named(&raised, &send(&service, "GET", "/top", "").1["hottest"][0]["override"].to_string());

    let check = "/check?domain=shop&d=user=eve";
    let (status, _, problem) = exchange_with(service.http, "POST", check, &[], b"");
    assert_eq!((status, problem.contains("#abnormal-usage-detected")), (429, true), "{problem}");
    named(&banned, &list(&service, "?text=eve").to_string());
    let denied = &send(&service, "GET", "/top", "").1["denied"][0];
    assert_eq!(denied["key"], "user=eve");
    named(&banned, &denied["override"].to_string());
    assert_eq!(service.counter("shop", "user=eve")["used"], 0);
    let metrics = service.get("/metrics");
    for line in [
        "ratelimit_overrides{action=\"ban\"} 1",
        "ratelimit_overrides{action=\"times\"} 1",
        "action=\"ban\",code=\"over_limit\"",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn what_is_set_is_listed_shown_searched_and_ended() {
    let service = on("memory://");
    let first = set(&service, "user=alice", json!({ "limit": 10 }));
    let second = set(&service, "user=b*", json!({ "action": "ban" }));
    let listed = list(&service, "");
    assert_eq!(listed["known"], true);
    assert_eq!(listed["more"], Value::Null);
    let ids = |listed: &Value| -> Vec<Value> {
        let overrides = listed["overrides"].as_array().unwrap();
        overrides.iter().map(|one| one["id"].clone()).collect()
    };
    assert_eq!(ids(&listed).len(), 2);
    assert_eq!(first["descriptor"], "user=alice");
    assert_eq!((&first["action"], &first["value"]), (&json!("limit"), &json!(10)));
    assert_eq!(first["because"], "INC-42");
    let left = first["seconds_left"].as_f64().unwrap();
    assert!((599.0..=600.0).contains(&left), "{left}");

    assert_eq!(ids(&list(&service, "?text=ALICE")), [first["id"].clone()]);
    assert_eq!(ids(&list(&service, "?text=inc-42")).len(), 2);
    assert_eq!(ids(&list(&service, "?domain=other")), [0; 0]);
    let page = list(&service, "?limit=1");
    let next = list(&service, &format!("?limit=1&after={}", page["more"].as_str().unwrap()));
    assert_eq!([ids(&page), ids(&next)].concat(), ids(&listed));
    assert_eq!(next["more"], Value::Null);

    let path = format!("/overrides/{}", second["id"].as_str().unwrap());
    assert_eq!(send(&service, "GET", &path, "").1["action"], "ban");
    end(&service, &second);
    assert_eq!(send(&service, "GET", &path, "").0, 404);
    assert_eq!(send(&service, "DELETE", &path, "").0, 404);
    assert_eq!(ids(&list(&service, "")), [first["id"].clone()]);
}

#[test]
fn the_answers_name_the_override_that_is_superseded_and_the_one_that_is_in_force_again() {
    let service = on("memory://");
    let answer = |descriptor: &str, action: Value| {
        let (status, answer) = try_set(&service, descriptor, action, "10m");
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let first = answer("user=alice", json!({ "limit": 10 }));
    assert_eq!(first["supersedes"], Value::Null);
    let tried = answer("user=alice", json!({ "action": "ban", "dry_run": true }));
    let second = answer("user=alice", json!({ "action": "ban" }));
    for answer in [&tried, &second] {
        for name in ["id", "by", "until"] {
            assert_eq!(answer["supersedes"][name], first["override"][name], "{answer}");
        }
    }
    assert_eq!(answer("user=al*", json!({ "action": "ban" }))["supersedes"], Value::Null);
    let third = answer("user=alice", json!({ "action": "shadow" }));
    assert_eq!(third["supersedes"]["id"], second["override"]["id"]);
    let listed = list(&service, "");
    let hidden_by: Vec<_> =
        listed["overrides"].as_array().unwrap().iter().map(|one| &one["hidden_by"]).collect();
    let newest = &third["override"]["id"];
    assert_eq!(hidden_by, [&Value::Null, &Value::Null, newest, newest]);

    let undo = |set: &Value| {
        let path = format!("/overrides/{}", set["override"]["id"].as_str().unwrap());
        send(&service, "DELETE", &path, "").1["in_force_again"]["id"].clone()
    };
    assert_eq!(undo(&second), Value::Null, "the third was in force");
    assert_eq!(undo(&third), first["override"]["id"]);
    assert_eq!(undo(&first), Value::Null);
}

#[test]
fn a_ban_or_exemption_to_which_no_rule_applies_has_a_hint_in_its_effect() {
    let service = on("memory://");
    for [descriptor, action, hint] in rows(ROWS, "hints") {
        let (_, answer) = try_set(&service, &descriptor, json!({ "action": action }), "1m");
        assert_eq!(answer["effect"]["hint"], hint);
    }
    let (_, answer) = try_set(&service, "free=x", json!({ "action": "ban" }), "1m");
    assert_eq!(answer["effect"]["hint"], Value::Null);
}

#[tokio::test]
async fn the_effect_on_a_key_that_ban_for_may_have_closed_has_a_hint_and_top_names_the_override() {
    let service = on("memory://");
    for _ in 0..3 {
        service.answer("closes=a").await;
    }
    let (_, answer) = try_set(&service, "closes=a", json!({ "times": 100 }), "1m");
    let hint = "a counter that ban_for has closed denies until it opens, and `tollkeeper counter reset` opens it";
    assert_eq!(answer["effect"]["hint"], hint, "{answer}");
    assert!(service.answer("closes=a").await.starts_with("OVER_LIMIT"));
    let (_, top) = send(&service, "GET", "/top", "");
    let key = &top["hottest"][0];
    let directive = format!("times 100 {}", answer["override"]["id"].as_str().unwrap());
    assert_eq!((&key["override"], &key["limit"]), (&json!(directive), &json!("100 per year")));
    end(&service, &answer["override"]);
    service.answer("closes=a").await;
    assert_eq!(send(&service, "GET", "/top", "").1["hottest"][0]["override"], Value::Null);
}

#[tokio::test]
async fn an_override_ends_by_itself() {
    let service = on("memory://");
    set_for(&service, "user=eve", json!({ "action": "ban" }), "1s");
    assert!(service.answer("user=eve").await.starts_with("OVER_LIMIT"));
    crate::support::wait_until("it ends", || {
        list(&service, "")["overrides"].as_array().unwrap().is_empty()
    });
    assert_eq!(service.answer("user=eve").await, "OK: OK 2/3 YEAR");
}

/// The refusal of a reason.
const BECAUSE: &str = "because: must be 1 to 200 bytes of text without control characters and marks of direction or of no width";

#[test]
fn bad_input_is_refused_by_the_name_of_its_field() {
    let service = on("memory://");
    for [descriptor, action, lasts, message] in rows(ROWS, "refused") {
        let action = serde_json::from_str(&action).unwrap();
        let (status, answer) = try_set(&service, &descriptor, action, &lasts);
        assert_eq!((status, answer["error"].as_str().unwrap()), (400, &*message));
    }
    for (query, message) in [
        ("?limit=0", "limit: must be a whole number from 1 to 100"),
        ("?limit=101", "limit: must be a whole number from 1 to 100"),
        ("?page=1", "`page`: the parameters are `domain`, `text`, `limit` and `after`"),
    ] {
        let (status, answer) = send(&service, "GET", &format!("/overrides{query}"), "");
        assert_eq!((status, answer["error"].as_str().unwrap()), (400, message));
    }
    for (body, message) in [
        ("[]", "body: must be a JSON object"),
        (r#"{"times": 2, "times": 3}"#, "body: duplicate field `times` at line 1 column 20"),
    ] {
        let (status, answer) = send(&service, "POST", "/overrides", body);
        assert_eq!((status, answer["error"].as_str().unwrap()), (400, message));
    }
    let one = set(&service, "user=x", json!({ "action": "ban" }));
    let path = format!("/overrides/{}?because=a%E2%80%8Bb", one["id"].as_str().unwrap());
    let (status, answer) = send(&service, "DELETE", &path, "");
    assert_eq!((status, answer["error"].as_str().unwrap()), (400, BECAUSE));
    end(&service, &one);
    assert!(list(&service, "")["overrides"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn the_effect_is_said_by_the_leading_keys_before_anything_is_set() {
    let service = Service::with(RULES).flags(&["--top-keys", "values"]).start();
    for _ in 0..5 {
        service.answer("user=alice").await;
    }
    service.answer("user=bob").await;
    for (descriptor, action, expected) in [
        ("user=alice", json!({ "limit": 4 }), json!([5, 2, 1])),
        ("user=alice", json!({ "times": 2 }), json!([5, 2, 0])),
        ("user=alice", json!({ "limit": 1 }), json!([5, 2, 4])),
        ("user=*", json!({ "action": "ban" }), json!([6, 2, 6])),
        ("user=*", json!({ "action": "allow" }), json!([6, 2, 0])),
        ("user=carol", json!({ "action": "ban" }), json!([0, 0, 0])),
    ] {
        let mut asked = action;
        asked["dry_run"] = true.into();
        let (status, answer) = try_set(&service, descriptor, asked, "1m");
        let effect = &answer["effect"];
        let numbers = json!([effect["decisions"], effect["denied"], effect["would_be_denied"]]);
        assert_eq!((status, numbers), (200, expected), "{answer}");
        assert!(
            effect["note"].as_str().unwrap().starts_with("by the leading keys of this replica")
        );
        assert_eq!(effect["would_be_denied"], effect["would_be_denied_max"]);
    }
    assert!(list(&service, "")["overrides"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn the_effect_is_that_on_the_limit_of_the_key_though_another_has_the_same_window() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limits:
      - { unit: year, requests_per_unit: 100 }
      - { unit: year, requests_per_unit: 2, algorithm: token_bucket }
";
    let service = Service::with(rules).flags(&["--top-keys", "values"]).start();
    for _ in 0..5 {
        service.answer("user=alice").await;
    }
    let (_, answer) = try_set(&service, "user=alice", json!({ "times": 2, "dry_run": true }), "1m");
    assert_eq!(answer["effect"]["would_be_denied"], 1, "{answer}");
}

/// What an operator believes to have set must not mean something else.
#[test]
fn a_descriptor_that_would_mean_another_is_refused() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 10, priority: { entry: class, share: { a: 100, b: 50 } } }
";
    let service = Service::with(rules).start();
    for (descriptor, problem) in [
        (r"user=\x2a", r"descriptor: a star is a pattern, also as \x2a"),
        (
            "user=x,class=b",
            "descriptor: class selects a class or a hold; leave it out of an override",
        ),
    ] {
        let (status, answer) = try_set(&service, descriptor, json!({ "action": "ban" }), "10m");
        assert_eq!((status, &answer["error"]), (400, &problem.into()));
    }
    let body = r#"{"domain":"shop","descriptor":"user=x","action":"ban","for":"1m","because":"x"}"#;
    let (status, answer) = send(&service, "POST", "/overrides?dry_run=true", body);
    assert_eq!((status, list(&service, "")["overrides"].clone()), (400, json!([])), "{answer}");
}
