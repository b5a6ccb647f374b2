//! Leases: hits that a replica charges in advance admit no call more than the limit, and go back if they are not used.

use crate::support::{
    cluster_load::{Counted, Load},
    prelude::*,
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: hot, rate_limit: { unit: year, requests_per_unit: 4000, lease: auto } }
  - { key: few, rate_limit: { unit: year, requests_per_unit: 300, lease: auto } }
  - key: seconds
    rate_limit: { unit: second, unit_multiplier: 5, requests_per_unit: 1500, lease: auto }
";

fn replica(redis: &Redis, rules: &str) -> Service {
    replica_on(&redis.url(), rules)
}

fn replica_on(store: &str, rules: &str) -> Service {
    Service::with(rules).on(store).flags(&["--replicas", "2"]).start()
}

/// Makes this number of calls, 16 at a time, and returns how many pass.
async fn call(services: &[&Service], call: &[(&'static str, &str)], calls: usize) -> u64 {
    let call: Vec<Counted> = call.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    let first = call[0].clone();
    let ledger = Load::start(services, calls.min(16), vec![call], calls).await.end().await;
    assert_eq!(ledger.failed, []);
    ledger.admitted.get(&first).copied().unwrap_or(0)
}

/// Calls until the replica has leased hits of the counter. Returns how many calls have passed.
async fn heat(service: &Service, counter: (&'static str, &str)) -> u64 {
    let (before, mut passed) = (leased(service, "granted"), 0);
    let began = Instant::now();
    while leased(service, "granted") == before {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing was leased");
        passed += call(&[service], &[counter], 200).await;
    }
    passed
}

/// The hits of leases with which this has happened.
fn leased(service: &Service, event: &str) -> u64 {
    service.metric(&format!("ratelimit_lease_hits_total{{event=\"{event}\"}} ")) as u64
}

/// Waits until the replica has no credit.
fn settled(service: &Service) {
    eventually("no credit is left", || {
        let [granted, ended @ ..] =
            ["granted", "spent", "returned", "stranded"].map(|event| leased(service, event));
        (ended.iter().sum::<u64>() == granted).then_some(())
    });
}

fn used(service: &Service, (key, value): (&str, &str)) -> u64 {
    let counter = service.counter("shop", &format!("{key}={value}"));
    assert_eq!(counter["lease"], "auto");
    counter["used"].as_u64().unwrap()
}

fn reset(service: &Service, (key, value): (&str, &str)) {
    let path = format!("/counters/reset?domain=shop&descriptor={key}%3D{value}");
    assert_eq!(service.admin("POST", &path).0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_that_lease_admit_exactly_the_limit_and_no_hit_is_lost() {
    let redis = Redis::start();
    admit_exactly_the_limit(&redis.url()).await;
    redis.assert_no_key_leaks();
    admit_exactly_the_limit(&Cluster::start().url()).await;
}

async fn admit_exactly_the_limit(store: &str) {
    let (one, other) = (replica_on(store, RULES), replica_on(store, RULES));
    let hot = ("hot", "all");
    let mut passed = heat(&one, hot).await + heat(&other, hot).await;
    passed += call(&[&one, &other], &[hot], 8000).await;
    // What was leased last comes back.
    let began = Instant::now();
    while passed < 4000 && began.elapsed() < Duration::from_secs(60) {
        passed += call(&[&one, &other], &[hot], 20).await;
    }
    settled(&one);
    settled(&other);
    assert_eq!(passed + call(&[&one, &other], &[hot], 20).await, 4000);
    assert_eq!(used(&one, hot), 4000);
    assert!(leased(&one, "spent") + leased(&other, "spent") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_spends_credit_of_all_its_limits_or_of_none() {
    let redis = Redis::start();
    let (one, other) = (replica(&redis, RULES), replica(&redis, RULES));
    let (hot, few) = (("hot", "pair"), ("few", "pair"));
    let mut passed = call(&[&one, &other], &[hot, few], 3000).await;
    let began = Instant::now();
    while passed < 300 && began.elapsed() < Duration::from_secs(60) {
        passed += call(&[&one, &other], &[hot, few], 20).await;
    }
    settled(&one);
    settled(&other);
    assert_eq!([passed, used(&one, few)], [300, 300]);
    wait_until("what was not spent is back", || used(&one, hot) == 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_ends_credit_at_once_here_and_within_250_ms_elsewhere() {
    let redis = Redis::start();
    let (one, other) = (replica(&redis, RULES), replica(&redis, RULES));
    let hot = ("hot", "reset");
    heat(&one, hot).await;
    reset(&one, hot);
    assert_eq!(call(&[&one], &[hot], 5).await, 5);
    settled(&one);
    assert_eq!(used(&one, hot), 5);

    heat(&one, hot).await;
    reset(&other, hot);
    tokio::time::sleep(Duration::from_millis(250)).await;
    let before = used(&one, hot);
    assert_eq!(call(&[&one], &[hot], 5).await, 5);
    settled(&one);
    assert_eq!(used(&one, hot), before + 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_and_counter_show_say_that_a_limit_leases() {
    let redis = Redis::start();
    let service = replica(&redis, RULES);
    let addr = service.admin.to_string();
    let words = |command: &[&'static str]| {
        let words = [command, &["--addr", &addr, "--domain", "shop", "hot=all"]].concat();
        run(tollkeeper().args(words)).1
    };
    let shown = words(&["counter", "show"]);
    let expected =
        "0 used of 4000 per year, with the credit of replicas (0 of this one), 4000 left";
    assert!(shown.contains(expected), "{shown}");
    assert!(words(&["explain"]).contains("enforced, lease auto, on_store_failure error"));
}

/// Credit lives briefly: a reading that comes too late is made again, on another counter.
#[tokio::test(flavor = "multi_thread")]
async fn the_credit_of_a_replica_is_shown() {
    let redis = Redis::start();
    let (service, began) = (replica(&redis, RULES), Instant::now());
    for page in ["GET /counters", "POST /explain", "GET /top"] {
        for number in 0.. {
            assert!(began.elapsed() < PATIENCE, "{page} shows no credit");
            let value = format!("{number}");
            // No other question may come between the calls and the page: idle credit goes back after 100 ms.
            call(&[&service], &[("hot", &value)], 400).await;
            let entries = [json!({ "key": "hot", "value": value })];
            let call = json!({ "domain": "shop", "descriptors": [{ "entries": entries }] });
            let (method, path) = page.split_once(' ').unwrap();
            let (path, body) = match path {
                "/counters" => {
                    (format!("{path}?domain=shop&descriptor=hot%3D{value}"), String::new())
                }
                "/explain" => (path.to_owned(), call.to_string()),
                _ => (path.to_owned(), String::new()),
            };
            let (_, _, shown) = service.exchange_at(service.admin, method, &path, body.as_bytes());
            if shown.split("\"credit\":").skip(1).any(|number| !number.starts_with('0')) {
                break;
            }
        }
    }
}

/// One call, so that a window is used up on a busy machine too.
fn take_what_is_left(service: &Service, (key, value): (&str, &str)) {
    let entries = [json!({ "key": key, "value": value })];
    let call = json!({ "mode": "PART", "hits": "1500", "descriptors": [{ "entries": entries }] });
    let body = json!({ "domain": "shop", "calls": [call] }).to_string();
    assert_eq!(service.exchange("POST", "/v1/decide", body.as_bytes()).0, 200);
}

/// If it were not checked at each spend, it would admit calls in a window that another replica has used up.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stood_still_over_the_end_of_a_window_spends_nothing_of_it() {
    let redis = Redis::start();
    let (mut stopped, other) = (replica(&redis, RULES), replica(&redis, RULES));
    let seconds = ("seconds", "all");
    let window = || redis.query::<(u64, u64)>(&["TIME"]).0 / 5;
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(120), "each window was too short");
        heat(&stopped, seconds).await;
        stopped.process().signal("STOP");
        let ended = window();
        wait_until("the window ends", || window() > ended);
        let present = window();
        take_what_is_left(&other, seconds);
        stopped.process().signal("CONT");
        let passed = call(&[&stopped], &[seconds], 20).await;
        let is_used_up = call(&[&other], &[seconds], 1).await == 0;
        if window() == present && is_used_up {
            assert_eq!(passed, 0);
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_killed_strands_one_lease_at_most() {
    let redis = Redis::start();
    let (mut killed, other) = (replica(&redis, RULES), replica(&redis, RULES));
    let hot = ("hot", "killed");
    let passed = heat(&killed, hot).await;
    killed.process().signal("KILL");
    let stranded = used(&other, hot) - passed;
    assert!(stranded <= 4000 / 20 / 2, "{stranded} hits were stranded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_gives_its_credit_back() {
    let redis = Redis::start();
    let (mut stopping, other) = (replica(&redis, RULES), replica(&redis, RULES));
    let hot = ("hot", "stopping");
    let passed = heat(&stopping, hot).await;
    stopping.process().signal("TERM");
    wait_until("its credit is back", || used(&other, hot) == passed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_call_of_many_hits_ends_no_credit() {
    let redis = Redis::start();
    let rules = RULES.replace("4000", "100000");
    // Each of these denials is Redis's.
    let flags = ["--over-limit-cache", "0"];
    let service = Service::with(&rules).on(&redis.url()).flags(&flags).start();
    let hot = ("hot", "denied");
    heat(&service, hot).await;
    let denied = async {
        for _ in 0..50 {
            let all = hits(descriptor(&[hot]), 100_000);
            let answer = service.ask(request("shop", vec![all])).await.unwrap();
            assert_eq!(answer.overall_code(), Code::OverLimit);
        }
    };
    let (services, counters) = ([&service], [hot]);
    tokio::join!(call(&services, &counters, 2000), denied);
    settled(&service);
    assert_eq!(leased(&service, "stranded"), 0);
}

#[tokio::test]
async fn a_counter_that_is_not_hot_sends_redis_the_same_as_without_leases() {
    let sent = [RULES.to_owned(), RULES.replace(", lease: auto", "")].map(async |rules| {
        let redis = Redis::start();
        let service = replica(&redis, &rules);
        service.wait_until_ready();
        let address = redis.url().replace("redis://", "");
        let mut monitor = TcpStream::connect(address.split('@').next_back().unwrap()).unwrap();
        monitor.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = std::io::BufReader::new(monitor).lines().map(Result::unwrap);
        assert_eq!(lines.next().unwrap(), "+OK");
        for number in 0..10 {
            let value = format!("cold{number}");
            let cold = [descriptor(&[("hot", &value)]), descriptor(&[("few", "cold")])].to_vec();
            service.ask(request("shop", cold)).await.unwrap();
        }
        redis.query::<String>(&["ECHO", "the end"]);
        let lines = lines.take_while(|line| !line.contains("the end"));
        let of_counters = lines.filter(|line| line.contains("cold"));
        let command = |line: String| line.split_once("] ").unwrap().1.to_owned();
        of_counters.map(command).collect::<Vec<_>>()
    });
    let [leasing, plain] = sent;
    let (leasing, plain) = (leasing.await, plain.await);
    assert!(leasing.len() >= 10);
    assert_eq!(leasing, plain);
}
