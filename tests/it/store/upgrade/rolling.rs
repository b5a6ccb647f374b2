//! While replicas are replaced: no window admits more than its limit, what operators set is in force everywhere, ids are known
//! everywhere, and the way back loses nothing.

use std::{collections::VecDeque, time::SystemTime};

use tempfile::NamedTempFile;
use tokio::task::JoinSet;

use super::{RULES, WAYS, ask, before, both, replica, shown};
use crate::support::{
    overrides::{end, list, set, set_for},
    prelude::*,
    service::metadata,
};

/// The longest that an override may take to be in force everywhere, and to be over.
const OBEY_WITHIN: Duration = Duration::from_secs(1);

/// Milliseconds since 1970, by the clock that Redis has too.
fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// Calls one replica until calls of this number of seconds were denied, and returns when each admitted call was sent and
/// answered.
async fn call(
    mut client: RateLimitServiceClient<Channel>,
    key: &'static str,
    seconds: usize,
) -> Vec<(u64, u64)> {
    let (mut admitted, mut denied) = (Vec::new(), BTreeSet::new());
    while denied.len() < seconds {
        let sent = now_ms();
        let answer = client.should_rate_limit(shop(&format!("{key}=all"))).await.unwrap();
        match answer.get_ref().overall_code() {
            Code::Ok => admitted.push((sent, now_ms())),
            _ => drop(denied.insert(sent / 1000)),
        }
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_admits_more_than_its_limit_while_both_builds_answer() {
    const LIMIT: usize = 20;
    const YEARS: [&str; 5] =
        ["fixed_window", "first_hit_window", "sliding_log", "sliding_window", "token_bucket"];
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for name in YEARS {
        for (key, unit) in [(name.to_owned(), "year"), (format!("{name}_second"), "second")] {
            rules += &format!(
                "  - key: {key}\n    rate_limit: {{ unit: {unit}, requests_per_unit: {LIMIT}, algorithm: {name} }}\n"
            );
        }
    }
    let redis = Redis::start();
    let builds = both(&Options { rules: &rules, store: &redis.url(), ..Options::default() });
    let run = async |key: &'static str, seconds: usize| {
        let mut clients = JoinSet::new();
        for number in 0..8 {
            clients.spawn(call(builds[number % 2].client().await, key, seconds));
        }
        clients.join_all().await.concat()
    };
    let (all, fixed, log) = tokio::join!(
        join_all(YEARS.map(|key| run(key, 1))),
        run("fixed_window_second", 3),
        run("sliding_log_second", 3)
    );

    for (key, admitted) in YEARS.iter().zip(all) {
        assert_eq!(admitted.len(), LIMIT, "{key}");
        for build in &builds {
            assert_eq!(shown(build, "GET", "", key, "all").0, LIMIT as u64, "{key}");
        }
    }
    let within = |begin: u64, calls: &[(u64, u64)]| {
        let is_within = |(sent, answered): &&(u64, u64)| begin <= *sent && *answered < begin + 1000;
        calls.iter().filter(is_within).count()
    };
    for (sent, _) in &fixed {
        let hits = within(sent / 1000 * 1000, &fixed);
        assert!(hits <= LIMIT, "{hits} in the window of {sent}");
    }
    for (sent, _) in &log {
        let hits = within(*sent, &log);
        assert!(hits <= LIMIT, "{hits} in the second from {sent}");
    }
    assert!(fixed.len() > LIMIT && log.len() > LIMIT, "{} and {}", fixed.len(), log.len());
    redis.assert_no_key_leaks();
}

/// Waits until a replica answers a check of `fixed` so, within the promised time.
async fn obeys(service: &Service, value: &str, expected: &str) {
    let began = Instant::now();
    loop {
        let answer = ask(service, hits(descriptor(&[("fixed", value)]), 0)).await;
        if answer == expected {
            break;
        }
        assert!(began.elapsed() < OBEY_WITHIN, "{value}: {answer} for {expected}");
    }
}

#[tokio::test]
async fn an_override_of_one_build_is_in_force_at_the_other_until_its_end() {
    let redis = Redis::start();
    let builds = both(&Options { rules: RULES, store: &redis.url(), ..Options::default() });
    for [one, other] in WAYS.map(|way| way.map(|build| &builds[build])) {
        let actions = [
            (json!({ "action": "ban" }), "OVER_LIMIT: OVER_LIMIT 0/0 YEAR"),
            (json!({ "action": "allow" }), "OK: OK unlimited"),
            (json!({ "action": "shadow" }), "OK: OK 0/10 YEAR"),
            (json!({ "limit": 30 }), "OK: OK 20/30 YEAR"),
            (json!({ "times": 2 }), "OK: OK 10/20 YEAR"),
        ];
        for (number, (action, expected)) in actions.into_iter().enumerate() {
            let value = format!("{}{number}", one.grpc.port());
            ask(one, hits(descriptor(&[("fixed", &value)]), 10)).await;
            let made = set(one, &format!("fixed={value}"), action);
            obeys(other, &value, expected).await;
            assert_eq!(list(one, "")["overrides"][0]["id"], made["id"]);
            assert_eq!(list(other, "")["overrides"][0]["id"], made["id"]);
            end(other, &made);
            obeys(one, &value, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR").await;
        }

        let made = set_for(one, "fixed=short", json!({ "limit": 30 }), "2s");
        obeys(other, "short", "OK: OK 30/30 YEAR").await;
        let until: jiff::Timestamp = made["until"].as_str().unwrap().parse().unwrap();
        let until = until.as_millisecond() as u64;
        for service in [one, other] {
            while ask(service, hits(descriptor(&[("fixed", "short")]), 0)).await.contains("/30") {
                assert!(now_ms() <= until + OBEY_WITHIN.as_millis() as u64, "it is not over");
            }
        }
        assert!(now_ms() >= until - 100, "it ended {} ms early", until - now_ms());
    }
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn a_call_with_an_id_is_charged_by_one_build_and_answered_by_both() {
    let redis = Redis::start();
    let builds = both(&Options { rules: RULES, store: &redis.url(), ..Options::default() });
    for [one, other] in WAYS {
        for (mode, value) in [("TAKE", "take"), ("DEBIT", "debit"), ("PART", "part")] {
            let entry = json!({ "key": "fixed", "value": format!("{value}{one}") });
            let call = json!({ "id": format!("{value}{one}"), "mode": mode, "hits": 3, "descriptors": [{ "entries": [entry] }] });
            let body = json!({ "domain": "shop", "calls": [call] }).to_string();
            let decide = |build: usize| {
                let answer = builds[build].exchange("POST", "/v1/decide", body.as_bytes());
                assert_eq!(answer.0, 200, "{}", answer.2);
                serde_json::from_str::<Value>(&answer.2).unwrap()["verdicts"].clone()
            };
            let first = decide(one);
            assert_eq!(first[0]["code"], "OK", "{first}");
            assert_eq!((decide(other), decide(one)), (first.clone(), first), "{mode}");
            assert_eq!(shown(&builds[one], "GET", "", "fixed", &format!("{value}{one}")).0, 3);
        }
    }
    redis.assert_no_key_leaks();
}

/// What is counted, held and set while one replica after the other is replaced, forward and back.
#[tokio::test]
async fn a_rolling_change_forward_and_back_loses_no_counter_hold_or_override() {
    const STEPS: usize = 5;
    let (redis, mut file) = (Redis::start(), NamedTempFile::new().unwrap());
    file.write_all(&[b'k'; 40]).unwrap();
    let flags = ["--hold-key-file", file.path().to_str().unwrap()];
    let rules = "
domain: shop
descriptors:
  - key: fixed
    rate_limit: { unit: year, requests_per_unit: 1000 }
  - key: log
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: sliding_log }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: token_bucket }
  - key: budget
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 100 } }
";
    let options = Options { rules, store: &redis.url(), flags: &flags, ..Options::default() };
    let mut replicas: VecDeque<Service> = [(), ()].map(|()| replica(before(), &options)).into();
    set(&replicas[0], "fixed=eve", json!({ "action": "ban" }));
    let (mut charged, mut used, mut tokens) = (0, 0, Vec::<String>::new());
    for step in 0..STEPS {
        for service in &replicas {
            for key in ["fixed", "log", "bucket"] {
                let call = hits(descriptor(&[(key, "a")]), 3);
                let left = 1000 - charged - 3;
                assert_eq!(ask(service, call).await, format!("OK: OK {left}/1000 YEAR"), "{step}");
            }
            charged += 3;
            // Each hold is committed by another replica than its own, once.
            if let Some(token) = tokens.pop() {
                let commit = descriptor(&[("hold.commit", &token), ("hold.used", "7")]);
                let commit = async || {
                    let call = request("shop", vec![commit.clone()]);
                    metadata(&service.ask(call).await.unwrap(), "commit")
                };
                assert_eq!(commit().await.as_deref(), Some("committed"), "{step}");
                assert_eq!(commit().await.as_deref(), Some("repeated"), "{step}");
                used += 7;
            }
            tokens.insert(
                0,
                metadata(&service.ask(shop("budget=a")).await.unwrap(), "hold").unwrap(),
            );
            let held = used + 100 * tokens.len() as u64;
            assert_eq!(shown(service, "GET", "", "budget", "a").0, held, "{step}");
            obeys(service, "eve", "OVER_LIMIT: OVER_LIMIT 0/0 YEAR").await;
        }
        // Forward, and back again.
        let program = if step < STEPS / 2 { tollkeeper() } else { before() };
        replicas.push_back(replica(program, &options));
        let mut ends = replicas.pop_front().unwrap();
        ends.end();
    }
    redis.assert_no_key_leaks();
}
