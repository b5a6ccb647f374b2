//! Counters are shown and reset on the admin address and by `tollkeeper counter`.

use std::sync::LazyLock;

use crate::support::{cluster::ClusterSetup, prelude::*, service::with_limit, sessions::*};

const SESSIONS: &str = include_str!("counters.txt");

#[test]
fn each_session_of_counters_shows_what_its_text_says() {
    check_sessions(SESSIONS);
}

static RULES: LazyLock<String> = LazyLock::new(|| shared_file(SESSIONS, "rules.yaml"));

const ALGORITHMS: [&str; 5] =
    ["fixed_window", "first_hit_window", "sliding_log", "sliding_window", "token_bucket"];

/// Runs `tollkeeper counter` with these words.
fn counter(service: &Service, words: &[&str]) -> (Option<i32>, String, String) {
    let addr = service.admin.to_string();
    run(tollkeeper().arg("counter").args(words).args(["--addr", &addr, "--domain", "shop"]))
}

/// What it prints if it succeeds.
#[track_caller]
fn printed(service: &Service, words: &[&str]) -> String {
    let (code, stdout, stderr) = counter(service, words);
    assert_eq!(code, Some(0), "{words:?}: {stderr}");
    stdout
}

/// The lines of that, without resets.
#[track_caller]
fn lines(service: &Service, words: &[&str]) -> Vec<String> {
    let text = printed(service, words);
    text.lines().map(|line| line.split(", resets").next().unwrap().to_owned()).collect()
}

#[track_caller]
fn output(service: &Service, action: &str, descriptor: &str) -> String {
    lines(service, &[action, descriptor]).join("\n")
}

async fn ask(service: &Service, descriptor: RateLimitDescriptor) -> String {
    spell(&service.ask(request("shop", vec![descriptor])).await.unwrap())
}

/// Two replicas on each store, or memory's only one twice, with the algorithms that the store has.
async fn on_each_store(scenario: impl AsyncFn([&Service; 2], &[&str])) {
    scenario([&Service::with(&RULES).start(); 2], &ALGORITHMS).await;

    let replica = |store: &str| Service::with(&RULES).on(store).ready();
    let redis = Redis::start();
    let store = redis.url_with_minimal_rights();
    scenario([&replica(&store), &replica(&store)], &ALGORITHMS).await;
    redis.assert_no_key_leaks();

    let cluster = Cluster::start_as(&ClusterSetup { replicas: false, ..ClusterSetup::default() });
    let store = cluster.url_with_minimal_rights();
    scenario([&replica(&store), &replica(&store)], &ALGORITHMS).await;

    let redis = Redis::start();
    let (store, flags) = (redis.url_without_scripts(), &["--redis-scripts", "off"]);
    let rules = "domain: shop\ndescriptors: [{ key: fixed_window, rate_limit: { unit: year, requests_per_unit: 10 } }]";
    let replica = || Service::with(rules).on(&store).flags(flags).start();
    scenario([&replica(), &replica()], &ALGORITHMS[..1]).await;
}

#[tokio::test]
async fn a_counter_of_every_algorithm_is_shown_and_reset_on_every_store() {
    on_each_store(async |[one, _], algorithms| {
        every_algorithm_is_shown_and_reset(one, algorithms).await;
    })
    .await;
}

#[tokio::test]
async fn a_counter_of_every_algorithm_is_set_on_every_store() {
    on_each_store(async |[one, _], algorithms| counters_are_set(one, algorithms).await).await;
}

#[tokio::test]
async fn of_two_replicas_that_set_a_counter_at_once_the_last_one_applies() {
    on_each_store(async |replicas, algorithms| the_last_one_applies(replicas, algorithms)).await;
}

async fn every_algorithm_is_shown_and_reset(service: &Service, algorithms: &[&str]) {
    for name in algorithms {
        let counted = || descriptor(&[(name, "a,b")]);
        let text = format!(r"{name}=a\,b");
        assert_eq!(
            output(service, "show", &text),
            format!("{name}: 0 used of 10 per year, 10 left")
        );
        assert_eq!(ask(service, hits(counted(), 3)).await, "OK: OK 7/10 YEAR");
        let shown = output(service, "show", &text);
        let first = shown.lines().next().unwrap();
        assert_eq!(first, format!("{name}: 3 used of 10 per year, 7 left"));
        // Showing a counter does not charge it.
        assert_eq!(ask(service, counted()).await, "OK: OK 6/10 YEAR");
        let reset = output(service, "reset", &text);
        assert_eq!(reset, format!("{name}: 4 of 10 per year were used; now 0"));
        assert_eq!(
            output(service, "show", &text),
            format!("{name}: 0 used of 10 per year, 10 left")
        );
        assert_eq!(ask(service, hits(counted(), 10)).await, "OK: OK 0/10 YEAR");
    }
}

/// Decides, refunds, shows and resets, by each algorithm.
async fn the_rights_suffice(store: &str) {
    let service = Service::with(&RULES).on(store).start();
    service.wait_until_ready();
    every_algorithm_is_shown_and_reset(&service, &ALGORITHMS).await;
    for name in ALGORITHMS {
        let counted = || descriptor(&[(name, "b")]);
        for _ in 0..2 {
            ask(&service, hits(counted(), 5)).await;
        }
        assert_eq!(ask(&service, counted()).await, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR", "{name}");
        assert_eq!(ask(&service, refund(counted(), 6)).await, "OK: OK 6/10 YEAR", "{name}");
        assert_eq!(ask(&service, refund(counted(), 6)).await, "OK: OK 10/10 YEAR", "{name}");
    }
    let metrics = service.get("/metrics");
    assert!(metrics.contains(r#"ratelimit_store_check_failed{check="rights"} 0"#), "{metrics}");
    assert_eq!(service.warnings(), [""; 0]);
}

#[tokio::test]
async fn the_documented_rights_suffice_for_every_algorithm_on_every_server() {
    for version in Version::ALL {
        let redis = Redis::start_version(version);
        the_rights_suffice(&redis.url_with_minimal_rights()).await;
    }
}

#[tokio::test]
async fn the_documented_rights_suffice_for_every_algorithm_on_a_cluster() {
    let setup = ClusterSetup { replicas: false, ..ClusterSetup::default() };
    let cluster = Cluster::start_as(&setup);
    the_rights_suffice(&cluster.url_with_minimal_rights()).await;
}

#[tokio::test]
async fn a_sliding_log_is_shown_with_times_and_callers() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(&RULES).on(store).start();
        let by = |name| descriptor(&[("door", "x"), ("caller", name)]);
        ask(&service, hits(by("al ice"), 2)).await;
        ask(&service, by("al ice")).await;
        let shown = output(&service, "show", "door=x,caller=al ice");
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "sliding_log: 3 used of 10 per year, 7 left");
        assert!(
            lines[1].starts_with("  2 at 20") && lines[1].ends_with("Z by al%20ice"),
            "{shown}"
        );
        assert!(
            lines[2].starts_with("  1 at 20") && lines[2].ends_with("Z by al%20ice"),
            "{shown}"
        );
    }
}

/// The output of `counter set` with these words, or its problem, without resets and the address.
fn set(service: &Service, words: &[&str]) -> Result<String, String> {
    let (code, stdout, stderr) = counter(service, &[&["set"], words].concat());
    if code == Some(0) {
        return Ok(stdout.trim_end().split(", resets").next().unwrap().to_owned());
    }
    Err(stderr.trim_end().replace(&format!("{}: ", service.admin), ""))
}

async fn counters_are_set(service: &Service, algorithms: &[&str]) {
    for name in algorithms {
        let counted = || descriptor(&[(name, "set")]);
        let text = format!("{name}=set");
        ask(service, hits(counted(), 2)).await;
        for (used, was) in [(7, 2), (7, 7), (4, 7), (10, 4), (0, 10), (10, 0)] {
            let left = 10 - used;
            let expected = format!("{name}: {used} used (was {was}) of 10 per year, {left} left");
            assert_eq!(set(service, &[&text, "--used", &used.to_string()]), Ok(expected));
        }
        assert_eq!(ask(service, counted()).await, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR", "{name}");
        let beyond = set(service, &[&text, "--used", "25"]);
        let expected = match *name {
            "sliding_log" => {
                Err("used: a sliding_log of 10 per year holds no more hits".to_owned())
            }
            _ => Ok(format!("{name}: 25 used (was 10) of 10 per year, 0 left")),
        };
        assert_eq!(beyond, expected);
        set(service, &[&text, "--used", "3"]).unwrap();
        assert_eq!(ask(service, counted()).await, "OK: OK 6/10 YEAR", "{name}");
    }
}

/// Two replicas set the same counter at once, many times.
fn the_last_one_applies(services: [&Service; 2], algorithms: &[&str]) {
    for name in algorithms {
        let path = format!("/counters/set?domain=shop&descriptor={name}%3Drace&used=");
        for round in 0..20 {
            std::thread::scope(|scope| {
                for service in services {
                    let path = format!("{path}{}", 3 + round % 5);
                    scope.spawn(move || {
                        let (code, _, body) =
                            service.exchange_at(service.admin, "POST", &path, b"");
                        assert_eq!(code, 200, "{body}");
                    });
                }
            });
            let shown = output(services[0], "show", &format!("{name}=race"));
            let expected = format!("{name}: {} used of 10 per year", 3 + round % 5);
            assert!(shown.starts_with(&expected), "{shown}");
        }
    }
}

/// The count that a reset returns is exactly what it removed, as with GETSET.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_under_load_loses_no_hit() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(&RULES).on(store).start();
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let mut client = service.client().await;
            clients.spawn(async move {
                for _ in 0..250 {
                    let call = request("shop", vec![descriptor(&[("many", "x")])]);
                    let answer = client.should_rate_limit(call).await.unwrap().into_inner();
                    assert_eq!(answer.overall_code(), Code::Ok);
                }
            });
        }
        let reset = || {
            let path = "/counters/reset?domain=shop&descriptor=many%3Dx";
            let (code, _, body) = service.exchange_at(service.admin, "POST", path, b"");
            assert_eq!(code, 200, "{body}");
            let body: Value = serde_json::from_str(&body).unwrap();
            body["counters"][0]["used"].as_u64().unwrap()
        };
        let mut removed = 0;
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
            removed += (0..20).map(|_| reset()).sum::<u64>();
        }
        assert_eq!(removed + reset(), 1000, "on {store}");
    }
}

#[tokio::test]
async fn a_corrupt_counter_is_reported_and_a_reset_clears_it() {
    let redis = Redis::start();
    let service = Service::with(&RULES).on(&redis.url()).start();
    ask(&service, descriptor(&[("many", "x")])).await;
    redis.query::<()>(&["SET", &redis.key("many=x"), "planted", "KEEPTTL"]);
    let problem = "fixed_window of 1000000 per year: it holds something other than a count";
    assert_eq!(output(&service, "show", "many=x"), problem);
    let explained = explained(&service, "many=x");
    assert!(explained.ends_with("\n    it holds something other than a count\n"), "{explained}");
    assert_eq!(output(&service, "reset", "many=x"), format!("{problem}; now 0"));
    assert_eq!(
        output(&service, "show", "many=x"),
        "fixed_window: 0 used of 1000000 per year, 1000000 left"
    );
}

/// What `tollkeeper explain` prints of a descriptor.
#[track_caller]
fn explained(service: &Service, descriptor: &str) -> String {
    let addr = service.admin.to_string();
    let words = ["explain", "--admin-addr", &addr, "--domain", "shop", descriptor];
    succeeds(tollkeeper().args(words))
}

/// The lines that `counter list` prints for these words, without resets.
#[track_caller]
fn listed(service: &Service, words: &[&str]) -> Vec<String> {
    lines(service, &[&["list"], words].concat())
}

async fn check_listing(service: &Service) {
    let long = "x".repeat(129);
    let charge = async |key: &str, value: &str, number| {
        service.ask(request("shop", vec![hits(descriptor(&[(key, value)]), number)])).await.unwrap()
    };
    for (key, value, number) in [
        ("fixed_window", "alice", 10),
        ("fixed_window", "al,ex", 3),
        ("fixed_window", "bob", 1),
        ("fixed_window", "::1", 1),
        ("sliding_window", "alice", 2),
        ("two", "a", 10),
        ("fixed_window", &long, 1),
    ] {
        charge(key, value, number).await;
    }
    let al_ex = r"fixed_window=al\,ex: fixed_window: 3 used of 10 per year, 7 left";
    let alice = "fixed_window=alice: fixed_window: 10 used of 10 per year, 0 left";
    let digest = "not shown: 1 keys with values that are secret or over 128 bytes";
    assert_eq!(listed(service, &["fixed_window=al*"]), [al_ex, alice, digest]);
    // The search stops at the limit, perhaps before it comes to the key with the digest.
    let first = listed(service, &["fixed_window=al*", "--limit", "1"]);
    assert_eq!(first[..2], [al_ex, "more exist: raise --limit"]);
    let two = "two=a: fixed_window: 10 used of 10 per year, 0 left";
    assert_eq!(listed(service, &["--over"]), [alice, two, digest]);
    assert_eq!(listed(service, &["fixed_window=*", "--over=31"]), [alice, digest]);
    assert_eq!(listed(service, &["fixed_window=*", "--over=30"]), [al_ex, alice, digest]);
    assert_eq!(listed(service, &["fixed_window=::*"]).len(), 2);
    let all = listed(service, &[]);
    assert_eq!(all.len(), 8, "{all:?}");
    assert!(all[4].starts_with("sliding_window=alice: sliding_window: 2 used"), "{all:?}");

    let reset =
        |words: &[&str]| printed(service, &[&["reset", "fixed_window=al*"], words].concat());
    let shown = reset(&["--matching"]);
    assert!(shown.ends_with("nothing was reset; to reset these, add --yes\n"), "{shown}");
    assert_eq!(listed(service, &["fixed_window=al*"]), [al_ex, alice, digest]);
    let done = reset(&["--matching", "--yes"]);
    let line = "fixed_window=alice: fixed_window: 10 of 10 per year were used; now 0\n";
    assert!(done.contains(line), "{done}");
    let nothing = "no counter matches";
    assert_eq!(listed(service, &["fixed_window=al*", "--over"]), [nothing, digest]);

    // Below another entry too, which a reset leaves alone.
    let both = descriptor(&[("level", "x"), ("fixed_window", "zoe")]);
    service.ask(request("shop", vec![hits(both, 4)])).await.unwrap();
    charge("fixed_window", "zoe", 2).await;
    let zoe = "fixed_window=zoe: fixed_window: 2 used of 10 per year, 8 left";
    let below = "level=x,fixed_window=zoe: fixed_window: 4 used of 10 per year, 6 left";
    assert_eq!(listed(service, &["fixed_window=z*"]), [zoe, below, digest]);
    assert_eq!(listed(service, &["level=x"]), [below, digest]);
    let done = printed(service, &["reset", "fixed_window=zoe", "--matching", "--yes"]);
    assert_eq!(
        done.lines().next(),
        Some("fixed_window=zoe: fixed_window: 2 of 10 per year were used; now 0")
    );
    assert_eq!(listed(service, &["level=x"]), [below, digest]);
    assert_eq!(listed(service, &["many=*"]), [nothing, digest]);
    assert_eq!(listed(service, &["fixed_window=bob"]).len(), 2, "bob keeps his count");
}

#[tokio::test]
async fn counters_in_memory_are_listed_and_reset_by_pattern() {
    check_listing(&Service::with(&RULES).start()).await;
}

#[tokio::test]
async fn counters_in_redis_are_listed_and_reset_by_pattern() {
    let redis = Redis::start();
    let (store, flags) = (&redis.url(), &["--key-prefix", "a*b:"]);
    check_listing(&Service::with(&RULES).on(store).flags(flags).start()).await;
}

#[tokio::test]
async fn counters_of_all_nodes_of_a_cluster_are_listed_and_reset_by_pattern() {
    let cluster = Cluster::start_as(&ClusterSetup { replicas: false, ..ClusterSetup::default() });
    check_listing(&Service::with(&RULES).on(&cluster.url()).start()).await;
}

#[tokio::test]
async fn counters_are_shown_reset_set_and_listed_while_redis_is_slow() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.port, 1);
    let service = Service::with(&RULES).on(&proxy.url).start();
    ask(&service, hits(descriptor(&[("many", "x")]), 3)).await;
    // Twice the decision budget.
    let replies = Flow::Delay { ms: 30, jitter: 0, percent: 100 };
    proxy.set(Faults { replies, ..Faults::default() });
    let shown = "fixed_window: 3 used of 1000000 per year, 999997 left";
    assert_eq!(output(&service, "show", "many=x"), shown);
    assert_eq!(listed(&service, &["many=*"]), [format!("many=x: {shown}")]);
    assert_eq!(listed(&service, &["many=*", "--over"]), ["no counter matches"]);
    let (status, _, body) = service.exchange("GET", "/v1/usage?domain=shop&d=many=x", b"");
    assert_eq!((status, body.contains("\"used\":3")), (200, true), "{body}");
    let set = set(&service, &["many=x", "--used", "7"]);
    assert_eq!(set.unwrap(), "fixed_window: 7 used (was 3) of 1000000 per year, 999993 left");
    let reset = output(&service, "reset", "many=x");
    assert_eq!(reset, "fixed_window: 7 of 1000000 per year were used; now 0");
    explained(&service, "many=x");
}

#[test]
fn a_listing_says_that_the_store_does_not_answer() {
    let redis = Redis::start();
    let service = Service::with(&RULES).on(&redis.url()).start();
    let ask = || service.exchange_at(service.admin, "GET", "/counters/list?domain=shop", b"");
    assert_eq!(ask().0, 200);
    redis.query::<String>(&["ACL", "SETUSER", "default", "-scan"]);
    let (status, _, body) = ask();
    assert!(status == 503 && body.contains("may not run SCAN"), "{status} {body}");
    redis.query::<String>(&["ACL", "SETUSER", "default", "+scan"]);
    redis.signal("STOP");
    let (status, _, body) = ask();
    redis.signal("CONT");
    assert!(status == 503 && body.contains("the store gives no answer"), "{status} {body}");
}

#[tokio::test]
async fn a_listing_that_has_enough_looks_at_no_further_keys() {
    let redis = Redis::start();
    let service = Service::with(&RULES).on(&redis.url()).start();
    ask(&service, descriptor(&[("many", "0")])).await;
    let key = redis.key("many=0");
    let copy = "for number = 1, 50000 do
        redis.call('SET', string.gsub(KEYS[1], 'many=0', 'many=' .. number), 1, 'EX', 1000)
    end";
    redis.query::<()>(&["EVAL", copy, "1", &key]);
    let before = redis.runs_of("scan");
    let path = "/counters/list?domain=shop&descriptor=many=*&limit=2";
    let (status, _, body) = service.exchange_at(service.admin, "GET", path, b"");
    let listed: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &listed["more"]), (200, &json!(true)), "{body}");
    assert_eq!(listed["counters"].as_array().unwrap().len(), 2, "{body}");
    assert_eq!(redis.runs_of("scan") - before, 1);
}

#[tokio::test]
async fn ids_of_calls_take_no_place_in_a_listing() {
    let redis = Redis::start();
    let service = Service::with(&RULES).on(&redis.url()).start();
    let call = r#"{ "domain": "shop", "calls": [{ "id": "x", "descriptors": [
        { "entries": [{ "key": "fixed_window", "value": "alice" }] }] }] }"#;
    assert_eq!(service.exchange("POST", "/v1/decide", call.as_bytes()).0, 200);
    let others = "for i = 1, 10000 do
        redis.call('SET', string.gsub(KEYS[1], 'once=x', 'once=' .. i), 1, 'EX', 60)
    end";
    redis.query::<()>(&["EVAL", others, "1", &redis.key("hold.once")]);
    let alice = "fixed_window=alice: fixed_window: 1 used of 10 per year, 9 left";
    assert_eq!(listed(&service, &[]), [alice]);
}

/// Redis, lists, logs and metrics show its digest, also under a limit that comes in the call. An operator who knows the value
/// still finds its counter.
#[tokio::test]
async fn a_secret_value_is_shown_by_nothing() {
    const RULES: &str = "
domain: shop
descriptors:
  - key: authorization
    secret: true
    detailed_metric: true
    rate_limit:
      { unit: year, requests_per_unit: 1, algorithm: sliding_log, remember: authorization }
";
    const SECRET: &str = "sk-proj-1234";
    let redis = Redis::start();
    let flags = &[
        "--top-keys",
        "values",
        "--log-denials",
        "1000/s",
        "--log-level",
        "debug,tollkeeper::decision=debug",
    ];
    let service = Service::with(RULES).on(&redis.url()).flags(flags).start();
    let problem = |digest| counter(&service, &["show", digest]).2;
    let unknown = problem("0123456789abcdef");
    assert!(unknown.contains("no counter of this domain has the digest 0123456789abcdef now"));
    for _ in 0..2 {
        ask(&service, descriptor(&[("authorization", SECRET)])).await;
    }
    let secret = descriptor(&[("authorization", SECRET)]);
    let descriptor = format!("authorization={SECRET}");
    let shown = output(&service, "show", &descriptor);
    assert!(shown.starts_with("sliding_log: 1 used of 1 per year, 0 left\n"), "{shown}");
    assert!(shown.contains(" by %~"), "{shown}");
    let key = &redis.key("{shop|");
    assert!(key.contains("{shop|authorization=%~"), "{key}");
    let hits: Vec<String> = redis.query(&["LRANGE", key, "0", "-1"]);
    let addr = service.admin.to_string();
    let listed = printed(&service, &["list"]);
    assert!(listed.contains("not shown: 1 keys with values that are secret"), "{listed}");
    let top = succeeds(tollkeeper().args(["top", "--once", "--addr", &addr]));
    let shown = [service.get("/metrics"), service.log(), hits.join(" "), listed, top];
    for text in shown {
        assert!(!text.contains(SECRET), "{text}");
    }
    // A secret has a digest of its descriptor too, from which commands cannot know the value.
    let log = service.log();
    let (_, caller) = log.rsplit_once("caller ").unwrap();
    let secret_one = problem(&caller[..16]);
    assert!(secret_one.contains("has a value that is secret or over 128 bytes"), "{secret_one}");
    ask(&service, with_limit(secret, 5, RateLimitUnit::Year)).await;
    let keys = redis.keys().join(" ");
    assert!(keys.contains("tk1:fw:") && !keys.contains(SECRET), "{keys}");
}

#[tokio::test]
async fn a_reset_by_pattern_finds_counters_among_longer_descriptors_and_more_than_one_listing_shows()
 {
    let service = Service::with(&RULES).start();
    for number in 0..1001 {
        let (many, level) = (format!("m{number}"), format!("x{number}"));
        let below = descriptor(&[("level", &*level), ("fixed_window", "m")]);
        let call = request("shop", vec![descriptor(&[("many", &*many)]), below]);
        service.ask(call).await.unwrap();
    }
    ask(&service, descriptor(&[("fixed_window", "m")])).await;
    let reset = |words: &[&str]| counter(&service, &[&["reset", "--matching"], words].concat());
    let hint = "nothing was reset; to reset these, add --yes\n";
    let (_, shown, _) = reset(&["fixed_window=*"]);
    let one = "fixed_window=m: fixed_window: 1 used of 10 per year, 9 left";
    assert!(
        shown.starts_with(one) && shown.ends_with(hint) && shown.lines().count() == 2,
        "{shown}"
    );
    let (_, shown, _) = reset(&["many=*"]);
    assert!(shown.ends_with(&format!("more exist: --yes resets them too\n{hint}")), "{shown}");
    let (code, shown, stderr) = reset(&["many=*", "--yes"]);
    assert_eq!((code, shown.lines().count(), &*stderr), (Some(0), 1001, ""), "{shown}");
    assert_eq!(reset(&["many=*"]).1, "no counter matches\n");
}
