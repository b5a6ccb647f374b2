//! `tollkeeper explain` and `POST /explain`: what would happen, and why.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    steps::Dice,
    support::{
        redis_server::Redis,
        service::{Options, Service, descriptor, give_back, hits, request, tollkeeper},
    },
};

const RULES: &str = "domain: shop
descriptors:
  - key: path
    value: /login
    descriptors:
      - key: user
        rate_limit: { unit: year, requests_per_unit: 3 }
  - key: path
    value: '/a*'
    rate_limit: { unit: year, requests_per_unit: 2, algorithm: token_bucket }
  - key: path
    value: '*.pdf'
    share_threshold: true
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 4 }
  - key: path
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: free
    rate_limit: { unlimited: true }
  - key: log
    rate_limits:
      - { unit: year, requests_per_unit: 5, algorithm: sliding_log }
      - { unit: year, requests_per_unit: 4, algorithm: sliding_window }
";

#[track_caller]
fn explained(words: &[&str]) -> String {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let output = tollkeeper()
        .current_dir(&folder)
        .args(["explain", "--rules", "rules.yaml", "--domain"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // Which year it is is no matter.
    text.lines().map(|line| line.split("}:").next().unwrap().to_owned() + "\n").collect()
}

#[test]
fn it_tells_what_was_taken_and_passed_over_where_it_is_written_and_what_it_charges() {
    assert_eq!(
        explained(&["shop", "path=/login,user=al ice"]),
        "path=/login,user=al%20ice
  path=/login: its value is written
  user=al%20ice: matches the key alone
  meets a rule: path=/login|user, written at rules.yaml:6
  3 per year by fixed_window (enforced, on_store_failure error)
    charges 1 at tk1:fw:31536000s:{shop|path=/login|user=al%20ice
"
    );
    assert_eq!(
        explained(&["shop", "--hits", "0", "path=x.pdf", "path=x", "log=y"]),
        "path=x.pdf
  path=x.pdf: matches the pattern `*.pdf`; passed over: one other value, the pattern `/a*`
  meets a rule: path=*.pdf, written at rules.yaml:11
  4 per year by fixed_window (quota, on_store_failure error)
    charges nothing: it looks at tk1:fw:31536000s:{shop|path=%**.pdf
path=x
  path=x: matches the key alone; passed over: one other value, the pattern `/a*`, the pattern `*.pdf`
  meets a rule: path, written at rules.yaml:16
  1 per year by fixed_window (shadow, on_store_failure error)
    charges nothing: it looks at tk1:fw:31536000s:{shop|path=x
log=y
  log=y: matches the key alone
  meets a rule: log, written at rules.yaml:21
  5 per year by sliding_log (enforced, on_store_failure error)
    charges nothing: it looks at tk1:sl:31536000s:{shop|log=y}
  4 per year by sliding_window (enforced, on_store_failure error)
    charges nothing: it looks at tk1:sw:31536000s:{shop|log=y
"
    );
}

#[test]
fn it_tells_why_nothing_limits() {
    assert_eq!(
        explained(&["shop", "path=/login", "path=/login,role=x", "free=x", "nobody=x"]),
        "path=/login
  path=/login: its value is written
  meets a place without a limit
path=/login,role=x
  path=/login: its value is written
  role=x: no such key here
  meets no rule
free=x
  free=x: matches the key alone
  meets a rule that is unlimited: free, written at rules.yaml:19
nobody=x
  nobody=x: no such key here
  meets no rule
"
    );
    assert!(explained(&["nowhere", "a=b"]).starts_with("domain unknown"));
}

/// The verdict that was foreseen is the next real one.
#[tokio::test]
async fn its_verdict_is_the_next_real_one_and_it_writes_nothing() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::start(Options { rules: RULES, store, ..Options::default() });
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
                let it = descriptor(pairs);
                descriptors.push(if back { give_back(it, count) } else { hits(it, count) });
                written.push(
                    json!({ "entries": entries, "hitsAddend": count, "isNegativeHits": back }),
                );
            }
            let body = json!({ "domain": "shop", "descriptors": written }).to_string();
            let (code, _, told) =
                service.exchange_at(service.admin, "POST", "/explain", body.as_bytes());
            assert_eq!(code, 200, "{told}");
            let told: Value = serde_json::from_str(&told).unwrap();
            let answer = client.should_rate_limit(request("shop", descriptors)).await.unwrap();
            let real = answer.into_inner().overall_code().as_str_name();
            assert_eq!(told["verdict"], real, "on {store}: {body} {told}");
            *(if real == "OK" { &mut passed } else { &mut denied }) += 1;
        }
        assert!(passed > 50 && denied > 50, "{passed} passed, {denied} were denied");
    }
}

#[test]
fn redis_sees_no_write_of_it() {
    let redis = Redis::start();
    let service =
        Service::start(Options { rules: RULES, store: &redis.url(), ..Options::default() });
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
    let mark: String = redis.query(&["ECHO", "that-was-all"]);
    let seen: Vec<String> = lines.take_while(|line| !line.contains(&mark)).collect();
    assert!(seen.iter().any(|line| line.contains(" lua] \"GET\"")), "{seen:#?}");
    for line in &seen {
        let reads = [
            "GET", "LLEN", "LINDEX", "LRANGE", "TIME", "EVALSHA", "EVAL", "INFO", "HELLO", "CLIENT",
        ];
        let command = line.split('"').nth(1).unwrap_or("TIME").to_uppercase();
        assert!(reads.contains(&command.as_str()), "{line}");
    }
    assert_eq!(redis.keys(), [""; 0]);
}
