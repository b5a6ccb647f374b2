//! Penalty boxes: a limit with `ban_for` closes its counter once a call does not fit.

use crate::support::prelude::*;

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2, ban_for: 1h } }
  - key: watched
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 2, ban_for: 1h }
  - { key: other, rate_limit: { unit: year, requests_per_unit: 1 } }
";

/// What counter show says of a user.
fn shown(service: &Service, method: &str, path: &str) -> Value {
    let path = format!("{path}?domain=shop&descriptor=user%3Da");
    let (_, _, body) = service.exchange_at(service.admin, method, &path, b"");
    serde_json::from_str::<Value>(&body).unwrap()["counters"][0].clone()
}

async fn closes_and_opens(store: &str) {
    let start = || Service::with(RULES).on(store).flags(&["--denied-body", "problem"]).start();
    let (service, replica) = (start(), start());
    let user = || descriptor(&[("user", "a")]);
    let ask = async |descriptors| {
        // The other replica obeys too, on a store that they share.
        let asked = if store == "memory://" { &service } else { &replica };
        asked.ask(request("shop", descriptors)).await.unwrap()
    };
    let reset = |answer: &tollkeeper_proto::RateLimitResponse| {
        answer.statuses[0].duration_until_reset.as_ref().unwrap().seconds
    };
    let answer = service.ask(request("shop", vec![hits(user(), 2)])).await.unwrap();
    assert_eq!(spell(&answer), "OK: OK 0/2 YEAR");
    // A check at the limit is denied, and closes nothing.
    let answer = ask(vec![hits(user(), 0)]).await;
    assert_eq!(spell(&answer), "OVER_LIMIT: OVER_LIMIT 0/2 YEAR");
    assert_eq!(shown(&service, "GET", "/counters")["closed"], Value::Null);

    let answer = service.ask(request("shop", vec![user()])).await.unwrap();
    assert_eq!(spell(&answer), "OVER_LIMIT: OVER_LIMIT 0/2 YEAR");
    let first = reset(&answer);
    assert!((3590..=3600).contains(&first), "{first} s");
    let body = String::from_utf8(answer.raw_body.clone()).unwrap();
    assert!(body.contains("#abnormal-usage-detected"), "{body}");
    // It is closed whatever it counts, and further calls do not extend that.
    let answer = ask(vec![refund(user(), 2)]).await;
    assert_eq!(spell(&answer), "OK: OK 2/2 YEAR");
    let answer = ask(vec![user(), descriptor(&[("other", "x")])]).await;
    assert_eq!(spell(&answer), "OVER_LIMIT: OVER_LIMIT 0/2 YEAR, OK 1/1 YEAR");
    assert!(reset(&answer) <= first);

    let counter = shown(&service, "GET", "/counters");
    assert_eq!((&counter["closed"], &counter["used"]), (&true.into(), &0.into()));
    assert_eq!(counter["remaining"], 0);
    let reset_ms = counter["reset_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&reset_ms), "{counter}");
    let admin = service.admin.to_string();
    let words = ["--addr", &admin, "--domain", "shop", "user=a"];
    let has = |text: &str, line: &str| {
        ["1 h", "59 min "].iter().any(|time| text.contains(&(line.to_owned() + time)))
    };
    let (_, text, _) = run(tollkeeper().args(["counter", "show"]).args(words));
    assert!(has(&text, "0 left, closed by `ban_for`, opens in "), "{text}");
    let (_, text, _) = run(tollkeeper().arg("explain").args(words));
    assert!(text.contains("ban_for 1h") && has(&text, "\n    closed for "), "{text}");
    assert!(text.contains("OVER_LIMIT"), "{text}");

    // A reset opens it.
    shown(&service, "POST", "/counters/reset");
    let answer = service.ask(request("shop", vec![user()])).await.unwrap();
    assert_eq!(spell(&answer), "OK: OK 1/2 YEAR");

    // A shadow shows what would be, and denies nobody.
    let watched = || descriptor(&[("watched", "a")]);
    ask(vec![hits(watched(), 3)]).await;
    let answer = ask(vec![watched()]).await;
    assert_eq!(spell(&answer), "OK: OK 0/2 YEAR");
}

#[tokio::test]
async fn a_closed_counter_is_listed_once_and_reset_by_a_pattern_though_the_key_of_its_window_is_gone()
 {
    let (redis, cluster) = (Redis::start(), Cluster::start());
    let alone = redis.url();
    for store in ["memory://", &alone, &cluster.url()] {
        let service = Service::with(RULES).on(store).ready();
        service.ask(shop("user=a(3)")).await.unwrap();
        let admin = service.admin.to_string();
        let command = |words: &[&str]| {
            let server = ["--addr", &admin, "--domain", "shop", "user=*"];
            run(tollkeeper().arg("counter").args(words).args(server)).1
        };
        if store == alone {
            // As if it had expired, before the ban ends.
            for key in redis.query::<Vec<String>>(&["KEYS", "tk1:fw:*"]) {
                redis.query::<u64>(&["DEL", &key]);
            }
        }
        for words in [&["list"][..], &["list", "--over"]] {
            let listed = command(words);
            assert_eq!(listed.matches("closed by `ban_for`").count(), 1, "{store}: {listed}");
        }
        let reset = command(&["reset", "--matching", "--yes"]);
        assert!(reset.starts_with("user=a: fixed_window"), "{store}: {reset}");
        assert_eq!(shown(&service, "GET", "/counters")["closed"], Value::Null);
    }
}

#[tokio::test]
async fn a_call_that_does_not_fit_closes_the_counter_until_a_reset_or_the_end_of_the_ban() {
    closes_and_opens("memory://").await;
    let redis = Redis::start();
    closes_and_opens(&redis.url_with_minimal_rights()).await;
    redis.assert_no_key_leaks();
    let cluster = Cluster::start();
    closes_and_opens(&cluster.url_with_minimal_rights()).await;
    cluster.assert_no_key_leaks();
}

#[test]
fn a_ban_is_refused_in_words_without_scripts() {
    let file = TextFile::new("rules.yaml", RULES);
    let flags = ["serve", "--redis-scripts", "off", "--rules", &file];
    let (code, _, stderr) = run(tollkeeper().args(flags));
    assert_eq!(code, Some(2));
    let message = "ban_for: needs scripts, but --redis-scripts is off";
    assert_eq!(stderr.matches(message).count(), 2, "{stderr}");
}

#[tokio::test]
async fn a_denial_without_redis_shows_no_ban() {
    let flags = &["--on-store-failure", "deny", "--denied-body", "problem"];
    let service = Service::with(RULES).on("redis://127.0.0.1:1").flags(flags).start();
    let call = request("shop", vec![descriptor(&[("user", "a")])]);
    let body = String::from_utf8(service.ask(call).await.unwrap().raw_body).unwrap();
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
}
