//! The service and a real Redis: keys, clocks, scripts, outages.

use tollkeeper::store::redis::{RedisStore, script};
use tonic::Code;

use crate::support::{
    charges::{self, prelude::*},
    prelude::*,
    redis_store::{self, PATIENT, answer, judges_as_memory, long_limits},
};

fn the_script() -> String {
    script::ledger(script::CLOCK, script::KeyDeclaration::Declared)
}

fn charge(user: &str, unit: Unit, hits: Hits, requests: u64) -> Charge {
    charges::charge(user, hits, &Arc::new(Limit::new(requests, unit, 1).unwrap()))
}

#[test]
fn each_installed_server_is_of_the_version_that_its_name_says() {
    for version in Version::ALL {
        let info: String = Redis::start_version(version).query(&["INFO"]);
        let line = match version {
            Version::Redis6 => "redis_version:6.2.14",
            Version::Redis7 => "redis_version:7.0.",
            Version::Redis8 => "redis_version:8.2.3",
            Version::Valkey9 => "valkey_version:9.1.2",
        };
        assert!(info.contains(line), "{version:?}: {info}");
    }
}

#[tokio::test]
async fn a_key_is_readable_and_ends_after_its_window() {
    let (redis, service) = Service::shop().on_redis();
    let descriptors = vec![descriptor(&[("user", "alice")])];
    let answer = service.ask(request("shop", descriptors)).await.unwrap();
    let reset = answer.statuses[0].duration_until_reset.unwrap().seconds;

    let [key] = redis.keys().try_into().unwrap();
    let (business, start) = key.rsplit_once(':').unwrap();
    assert_eq!(business, "tk1:fw:31536000s:{shop|user=alice}");
    let start: i64 = start.parse().unwrap();
    assert_eq!(start % 31_536_000, 0);
    let time: Vec<i64> = redis.query(&["TIME"]);
    assert!((start + 31_536_000 - time[0] - reset).abs() <= 1, "the reset is the window's end");
    let ttl: i64 = redis.query(&["TTL", &key]);
    assert!((reset - 1..=reset + 300).contains(&ttl), "ttl {ttl}, reset {reset}");
}

#[tokio::test]
async fn checks_refunds_and_denied_calls_create_no_key() {
    let (redis, service) = Service::shop().on_redis();
    let user = || descriptor(&[("user", "alice")]);
    for one in [hits(user(), 0), refund(user(), 5), hits(user(), 11)] {
        service.ask(request("shop", vec![one])).await.unwrap();
    }
    assert_eq!(redis.keys(), [""; 0]);
}

#[tokio::test]
async fn a_flushed_script_is_sent_again_and_charges_once() {
    let (redis, service) = Service::shop().on_redis();
    for left in (0..10).rev() {
        redis.query::<()>(&["SCRIPT", "FLUSH"]);
        let answer = service.answer("user=alice").await;
        assert_eq!(answer, format!("OK: OK {left}/10 YEAR"));
    }
}

/// Three hours fast: another hour, and every third time another day.
fn three_hours_fast() -> Timestamp {
    system_clock().shifted(3 * 3_600_000)
}

fn in_three_hours(redis: &Redis) -> RedisStore {
    redis_store::store(&redis.url(), 0, three_hours_fast, PATIENT)
}

async fn fit(store: &RedisStore, charge: Charge) -> Fit {
    answer(store, [charge]).await.unwrap().tallies[0].fit
}

#[tokio::test]
async fn redis_time_decides_whatever_the_services_clock_shows() {
    let redis = Redis::start();
    let (right, wrong) = (redis_store::patient(&redis.url()), in_three_hours(&redis));
    // A new window between two of these calls would start another count, which is rare with weeks.
    let week = || charge("alice", Unit::Week, Hits::Charge(3), 10);
    for (store, remaining) in [(&right, 7), (&wrong, 4), (&right, 1)] {
        assert_eq!(fit(store, week()).await, Fit::Fits { remaining });
    }
    assert_eq!(fit(&wrong, week()).await, Fit::Over);

    let hour = [charge("bob", Unit::Hour, Hits::Check, 10)];
    let reset = answer(&wrong, &hour).await.unwrap().tallies[0].reset;
    assert!(reset <= Duration::from_secs(3600), "{reset:?} is longer than the window");
}

#[tokio::test]
async fn a_stale_call_is_refused_and_sent_once_more() {
    let redis = Redis::start();
    let wrong = in_three_hours(&redis);
    let call = || charge("alice", Unit::Hour, Hits::Charge(1), 10);
    redis.query::<String>(&["SCRIPT", "LOAD", &the_script()]);
    assert_eq!(fit(&wrong, call()).await, Fit::Fits { remaining: 9 });
    assert_eq!(redis.runs_of("evalsha"), 2, "refused, then sent with Redis's time");
    fit(&wrong, call()).await;
    assert!(redis.runs_of("evalsha") <= 4, "the clocks' difference is known now");
}

/// Runs the real script on a call with one charge.
fn run(redis: &Redis, key: &str, start: i64, length: i64, hits: &str) -> Vec<i64> {
    let (script, start) = (the_script(), (start * 1000).to_string());
    let (stop, expiry) =
        (format!("{}000", start.parse::<i64>().unwrap() / 1000 + length), "9999999999999");
    redis.query(&[
        "EVAL", &script, "1", key, "1", "fw", "1", &start, &stop, "charge", hits, "5", "free",
        "enforced", "error", expiry, "",
    ])
}

#[test]
fn a_window_that_is_not_the_current_one_is_refused_without_a_write() {
    let redis = Redis::start();
    let now = redis.query::<Vec<i64>>(&["TIME"])[0];
    for (start, length) in [(now + 1000, 1000), (now - 1000, 1000), (now - 9000, 10)] {
        assert_eq!(run(&redis, "k", start, length, "1")[2..], [-1, 0, 0], "{start} + {length}");
    }
    assert_eq!(redis.keys(), [""; 0]);
    assert_eq!(run(&redis, "k", now - 1000, 9000, "1")[2..4], [1, 4]);
}

#[test]
fn each_call_of_one_run_is_judged_by_itself() {
    let redis = Redis::start();
    redis.query::<()>(&["RPUSH", "list", "planted"]);
    let now = redis.query::<Vec<i64>>(&["TIME"])[0];
    let (present, past) = ([now, now + 3600], [now - 5000, now - 4900]);
    let call = |key: &str, window: [i64; 2], hits: &str| {
        let [start, stop] = window.map(|second| format!("{second}000"));
        let words = [
            "1",
            "fw",
            key,
            &start,
            &stop,
            "charge",
            hits,
            "5",
            "free",
            "enforced",
            "error",
            "9999999999999",
            "",
        ];
        words.map(str::to_owned)
    };
    let calls = [
        call("1", present, "3"),
        call("1", present, "3"), // does not fit after the first
        call("2", present, "1"), // its key is a list
        call("1", past, "1"),    // stale: its window has ended
        call("1", present, "2"),
    ];
    let script = the_script();
    let mut words = ["EVAL", &script, "2", "count", "list"].map(str::to_owned).to_vec();
    words.extend(calls.into_iter().flatten());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let reply: Vec<i64> = redis.query(&words);
    let answers: Vec<[i64; 2]> = reply[2..].chunks(3).map(|call| [call[0], call[1]]).collect();
    assert_eq!(answers, [[1, 2], [0, -1], [-2, -2], [-1, 0], [1, 0]]);
    assert_eq!(redis.query::<u64>(&["GET", "count"]), 5);
}

#[tokio::test]
async fn the_largest_valid_count_is_over_every_limit() {
    let (redis, service) = Service::shop().on_redis();
    let user = || descriptor(&[("user", "planted")]);
    service.ask(request("shop", vec![user()])).await.unwrap();
    redis.query::<()>(&["SET", &redis.key("planted"), "9007199254740991", "KEEPTTL"]);
    let answer = service.ask(request("shop", vec![hits(user(), u64::MAX)])).await.unwrap();
    assert_eq!(spell(&answer), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR");
}

#[tokio::test]
async fn an_outage_is_one_line_in_the_log_and_its_end_another() {
    let (redis, service) = Service::shop().on_redis();
    let logged = |line: &str| service.log().matches(line).count();
    service.answered("user=other(0)").await;
    // Without memory Redis still reads: checks pass, and charges on new counters fail.
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for number in 0..5 {
        let user = format!("new{number}");
        assert_eq!(service.answer(&format!("user={user}")).await, "Unavailable");
        service.answered("user=other(0)").await;
    }
    assert_eq!(logged("is unusable"), 1, "{}", service.log());
    // Nor does Redis take resets, and goes on reading.
    for _ in 0..3 {
        let reset = "/counters/reset?domain=shop&descriptor=user%3Dother";
        assert_eq!(service.admin("POST", reset).0, 503);
        assert_ne!(service.answer("user=other(0)").await, "Unavailable");
    }
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    // The first look that passes ends the outage.
    for _ in 0..500 {
        service.answered("user=other(0)").await;
        if logged("answers again") == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the outage did not end: {}", service.log());
}

#[tokio::test]
async fn a_read_only_replica_is_unavailable_and_its_connection_is_not_kept() {
    let (redis, service) = Service::shop().flags(&["--store-pool-size", "1"]).on_redis();
    let call = || shop("user=alice");
    service.ask(call()).await.unwrap();
    let before = redis.clients();
    assert_eq!(before.len(), 1);
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(service.ask(call()).await.expect_err("read-only").code(), Code::Unavailable);
    redis.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    service.answered("user=other(0)").await;
    assert!(
        redis.clients().is_disjoint(&before),
        "a connection to what was a replica is still in use"
    );
}

#[tokio::test]
async fn a_connection_that_redis_closed_while_idle_costs_no_call() {
    let (redis, service) = Service::shop().on_redis();
    let call = || shop("user=alice(0)");
    for _ in 0..5 {
        service.ask(call()).await.unwrap();
        let ours = redis.clients();
        redis.close_connections();
        // Wait until the service has closed its side: a call before that would use the closed socket.
        wait_until("the connection is gone", || {
            let inodes = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let open = |client: &String| {
                let port: u16 = client.rsplit(':').next().unwrap().parse().unwrap();
                inodes.contains(&format!("0100007F:{port:04X} 0100007F:{:04X} 01", redis.port))
            };
            !ours.iter().any(open)
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_password_is_read_from_a_file_and_never_shown() {
    let redis = Redis::start();
    redis.query::<()>(&["CONFIG", "SET", "requirepass", "s3cret-canary"]);
    let file = TextFile::new("password", "s3cret-canary\n");
    let flags = &["--store-password-file", &file, "--log-level", "debug"];
    let service = Service::shop().on(&redis.url()).flags(flags).start();
    assert_eq!(service.answer("user=a").await, "OK: OK 9/10 YEAR");
    assert!(!service.log().contains("s3cret"), "{}", service.log());
    assert!(!service.get("/metrics").contains("s3cret"));
}

#[tokio::test]
async fn a_service_that_is_killed_leaves_its_counts_to_the_next_one() {
    let redis = Redis::start();
    let call = || shop("user=a");
    for left in [9, 8, 7] {
        let service = Service::shop().on(&redis.url()).start();
        let answer = service.ask(call()).await.unwrap();
        assert_eq!(spell(&answer), format!("OK: OK {left}/10 YEAR"));
        // By SIGKILL.
        drop(service);
    }
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn a_redis_that_may_evict_counters_or_takes_too_few_clients_is_one_warning() {
    for (settings, warning) in [
        (
            "--maxmemory 100mb --maxmemory-policy allkeys-lru",
            "it may evict counters, and then limits start again from zero: its maxmemory-policy is \
             allkeys-lru",
        ),
        (
            "--maxclients 100",
            "takes 100 clients (maxclients), and all replicas of this service may open 112",
        ),
    ] {
        let redis = Redis::start_with(&settings.split(' ').collect::<Vec<_>>());
        let service = Service::shop().on(&redis.url()).flags(&["--replicas", "7"]).ready();
        for _ in 0..5 {
            redis.close_connections();
            service.answered("user=other(0)").await;
        }
        assert_eq!(service.log().matches(warning).count(), 1, "{}", service.log());
    }
}

#[tokio::test]
async fn a_new_cause_of_an_outage_is_logged() {
    let mut redis = Redis::start();
    redis.query::<()>(&["CONFIG", "SET", "requirepass", "right"]);
    let store = format!("redis://:right@127.0.0.1:{}", redis.port);
    let service = Service::shop().on(&store).flags(&["--decision-budget", "200ms"]).start();
    service.answered("user=other(0)").await;
    redis.stop();
    let until_logged = async |line: &str| {
        for _ in 0..500 {
            service.ask(shop("user=a")).await.expect_err("an outage");
            if service.log().contains(line) {
                return;
            }
        }
        panic!("`{line}` is not logged: {}", service.log());
    };
    until_logged("is unusable: Connection refused").await;
    // It starts without a password, so it refuses the login.
    redis.start_again();
    until_logged("is unusable: login refused for the default user").await;
}

/// The log after three calls of a service whose login the server does not accept; `login` is the login in its URL.
async fn log_without_login(version: Version, login: &str) -> String {
    let redis = Redis::start_version(version);
    redis.query::<()>(&["CONFIG", "SET", "requirepass", "right"]);
    let store = format!("redis://{login}127.0.0.1:{}", redis.port);
    let service = Service::shop().on(&store).flags(&["--decision-budget", "200ms"]).start();
    for _ in 0..3 {
        assert_eq!(service.answer("user=a").await, "Unavailable");
    }
    service.log()
}

#[tokio::test]
async fn a_refused_login_is_logged_once_and_the_password_is_not_shown() {
    let log = log_without_login(Version::default(), ":s3cret-canary@").await;
    assert_eq!(log.matches("is unusable: login refused for the default user").count(), 1, "{log}");
    assert!(!log.contains("s3cret"), "{log}");
}

#[tokio::test]
async fn a_server_that_requires_a_login_is_said_to_when_no_password_is_given() {
    for version in Version::ALL {
        let log = log_without_login(version, "").await;
        assert_eq!(
            log.matches("is unusable: it requires a login").count(),
            1,
            "{version:?}: {log}"
        );
        assert_eq!(log.matches("is unusable").count(), 1, "{version:?}: {log}");
    }
}

#[tokio::test]
async fn calls_are_judged_as_in_memory() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    judges_as_memory(&store, &long_limits(), Hits::MAX).await;
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn charges_that_no_replica_has_are_counted() {
    let (redis, replica) = (Redis::start(), Redis::start());
    let service = Service::shop().on(&redis.url()).flags(&["--store-wait-replicas", "1"]).start();
    // Makes a charge, and returns how many are counted once Redis has said which replicas have it.
    let count_after_charge = async || {
        let waits = redis.runs_of("wait");
        service.ask(shop("work=a")).await.unwrap();
        wait_until("the service waits for replicas", || redis.runs_of("wait") > waits);
        service.metric("ratelimit_store_charges_unreplicated_total ") as u64
    };
    let mut counted = 0;
    while counted < 3 {
        counted = count_after_charge().await;
    }
    redis.query::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    replica.query::<()>(&["REPLICAOF", "127.0.0.1", &redis.port.to_string()]);
    // Once the replica follows, charges are no longer counted.
    let mut replicated = 0;
    while replicated < 5 {
        let before = counted;
        counted = count_after_charge().await;
        replicated = if counted == before { replicated + 1 } else { 0 };
    }
}
