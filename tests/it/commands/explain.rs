//! `tollkeeper explain` and `POST /explain`: the decision for a call, and its reasons.

use std::io::BufReader;

use crate::support::{prelude::*, sessions::*};

const SESSIONS: &str = include_str!("explain.txt");

#[test]
fn each_session_of_explain_shows_what_its_text_says() {
    check_sessions(SESSIONS);
}

#[tokio::test]
async fn a_quota_is_shown_with_its_place_and_whether_the_call_draws_it_and_a_tier_with_its_headers()
{
    const QUOTAS: &str = "
domain: shop
draw: first
descriptors:
  - key: plan
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 3, tiers: [{ at: 60, request_headers: { x-tier: warn } }, { at: 90, request_headers: { x-tier: last } }] }
  - key: credits
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 4, count_denied: true }
  - key: cap
    rate_limit: { unit: year, requests_per_unit: 5 }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(QUOTAS).on(store).start();
        let admin = service.admin.to_string();
        let explain = |words: &[&str]| {
            let words = [&["explain", "--addr", &admin, "--domain", "shop"], words].concat();
            let (code, stdout, stderr) = run(tollkeeper().args(words));
            assert_eq!((code, &*stderr), (Some(0), ""));
            stdout
        };
        let both = ["--hits", "2", "plan=a", "credits=a", "cap=a"];
        let facts = || {
            let shown = explain(&both);
            let lines = shown.lines().map(str::trim);
            let is_fact = |line: &&str| {
                ["drawn", "not drawn", "tier at", "verdict"]
                    .iter()
                    .any(|start| line.starts_with(start))
            };
            lines.filter(is_fact).map(str::to_owned).collect::<Vec<_>>()
        };
        let shown = explain(&both);
        for (number, more) in [(1, ", tiers at 60 % and 90 %"), (2, ", count_denied")] {
            let details =
                format!("(quota, draw first, number {number} of 2{more}, on_store_failure error)");
            assert!(shown.contains(&details), "{shown}");
        }
        let (plan, credits) = ("drawn by this call", "not drawn by this call");
        for (expected, headers) in [
            (&[plan, "tier at 60 %: x-tier: warn", credits, "verdict: OK"][..], "x-tier: warn"),
            // One is left, and does not fit two: the limit is reached.
            (&[credits, "tier at 90 %: x-tier: last", plan, "verdict: OK"], "x-tier: last"),
            // The cap denies the call uncharged, but for the quota that counts work that is done.
            (&[credits, plan, "verdict: OVER_LIMIT"], ""),
        ] {
            assert_eq!(facts(), expected, "{store}");
            let charged = ["plan", "credits", "cap"].map(|key| hits(descriptor(&[(key, "a")]), 2));
            let answer = service.ask(request("shop", charged.to_vec())).await.unwrap();
            let added: Vec<String> = answer
                .request_headers_to_add
                .iter()
                .map(|header| format!("{}: {}", header.key, header.value))
                .collect();
            assert_eq!(added.join(", "), headers);
        }
        let json: Value =
            serde_json::from_str(&explain(&["-o", "json", "plan=b", "credits=b"])).unwrap();
        let charges = ["/descriptors/0/charges/0", "/descriptors/1/charges/0"]
            .map(|path| json.pointer(path).unwrap());
        assert_eq!(charges.map(|charge| charge["drawn"].clone()), [true, false].map(Value::from));
        assert_eq!(
            (&charges[0]["tier"], explain(&["cap=a"]).contains("drawn")),
            (&Value::Null, false)
        );
    }
}

#[tokio::test]
async fn the_verdict_is_that_of_the_next_real_call_and_nothing_is_charged() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(&shared_file(SESSIONS, "rules.yaml")).on(store).start();
        let mut client = service.client().await;
        let mut dice = Dice(11);
        let (mut passed, mut denied) = (0, 0);
        for _ in 0..400 {
            let mut descriptors = Vec::new();
            let mut written = Vec::new();
            for _ in 0..=dice.below(2) {
                let user = ["u", "v"][dice.below(2) as usize];
                let pairs: &[(&str, &str)] = match dice.below(6) {
                    0 => &[("path", "/login"), ("user", user)],
                    1 => &[("path", "/abc")],
                    2 => &[("path", "x.pdf")],
                    3 => &[("path", user)],
                    4 => &[("free", "x")],
                    _ => &[("log", user)],
                };
                let entries: Vec<Value> = pairs
                    .iter()
                    .map(|(key, value)| json!({ "key": key, "value": value }))
                    .collect();
                let (count, back) = ([1, 1, 1, 2, 0][dice.below(5) as usize], dice.below(6) == 0);
                let asked = descriptor(pairs);
                descriptors.push(if back { refund(asked, count) } else { hits(asked, count) });
                written.push(
                    json!({ "entries": entries, "hitsAddend": count, "isNegativeHits": back }),
                );
            }
            let body = json!({ "domain": "shop", "descriptors": written }).to_string();
            let (code, _, explained) =
                service.exchange_at(service.admin, "POST", "/explain", body.as_bytes());
            assert_eq!(code, 200, "{explained}");
            let explained: Value = serde_json::from_str(&explained).unwrap();
            let answer = client.should_rate_limit(request("shop", descriptors)).await.unwrap();
            let real = answer.into_inner().overall_code().as_str_name();
            assert_eq!(explained["verdict"], real, "on {store}: {body} {explained}");
            *(if real == "OK" { &mut passed } else { &mut denied }) += 1;
        }
        assert!(passed > 50 && denied > 50, "{passed} passed, {denied} were denied");
    }
}

#[tokio::test]
async fn the_verdict_counts_what_a_hold_without_an_id_would_hold() {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 40, hold: { for: 10m, by: counter, estimate: 15 } } }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(rules).on(store).start();
        let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
        for expected in ["OK", "OK", "OVER_LIMIT"] {
            let (_, _, explained) =
                service.exchange_at(service.admin, "POST", "/explain", body.as_bytes());
            let explained: Value = serde_json::from_str(&explained).unwrap();
            assert_eq!(explained["verdict"], expected, "on {store}: {explained}");
            let answer = service.answer("user=a").await;
            assert!(answer.starts_with(&format!("{expected}:")), "on {store}: {answer}");
        }
    }
}

#[test]
fn explain_sends_no_write_to_redis() {
    let (redis, service) = Service::with(&shared_file(SESSIONS, "rules.yaml")).on_redis();
    let mut monitor = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(monitor).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "+OK");
    let body = json!({ "domain": "shop", "descriptors": [
        { "entries": [{ "key": "path", "value": "/abc" }] },
        { "entries": [{ "key": "log", "value": "x" }] },
        { "entries": [{ "key": "path", "value": "x.pdf" }] },
    ] });
    service.exchange_at(service.admin, "POST", "/explain", body.to_string().as_bytes());
    let mark: String = redis.query(&["ECHO", "end-of-test"]);
    let seen: Vec<String> = lines.take_while(|line| !line.contains(&mark)).collect();
    assert!(seen.iter().any(|line| line.contains(" lua] \"GET\"")), "{seen:#?}");
    for line in &seen {
        let reads = [
            "GET", "LLEN", "LINDEX", "LRANGE", "TIME", "EVALSHA", "EVAL", "INFO", "HELLO",
            "CLIENT", "PING", "MULTI", "HGET", "HGETALL", "HLEN", "EXEC",
        ];
        let command = line.split('"').nth(1).unwrap_or("TIME").to_uppercase();
        assert!(reads.contains(&command.as_str()), "{line}");
    }
    assert_eq!(redis.keys(), [""; 0]);
}
