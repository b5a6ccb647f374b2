//! Overrides on several replicas that share a Redis.

use crate::support::{overrides::*, prelude::*, sentinels::Sentinels, service::service_at};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1000000 } }
";

fn replica(store: &str, flags: &[&str]) -> Service {
    let flags = [&["--workers", "1"], flags].concat();
    Service::with(RULES).on(store).flags(&flags).start()
}

/// Whether a call of this user is denied.
fn is_denied(service: &Service, user: &str) -> bool {
    service.exchange("POST", &format!("/check?domain=shop&d=user={user}"), b"").0 == 429
}

fn ban() -> Value {
    json!({ "action": "ban" })
}

/// How long after `since` this replica obeys.
fn obeys_after(service: &Service, user: &str, denied: bool, since: Instant) -> Duration {
    wait_until("the replica obeys", || is_denied(service, user) == denied);
    since.elapsed()
}

/// The longest that replicas may take.
const OBEY_WITHIN: Duration = Duration::from_secs(1);

#[test]
fn three_replicas_obey_within_a_second_100_of_100_times() {
    let redis = Redis::start();
    let replicas = [(); 3].map(|()| replica(&redis.url(), &[]));
    let mut longest = Duration::ZERO;
    for number in 0..100 {
        let (user, by) = (format!("u{number}"), &replicas[number % 3]);
        let one = set(by, &format!("user={user}"), ban());
        let answered = Instant::now();
        longest = longest.max(all_obey(&replicas, &user, true, answered));
        if number % 10 == 0 {
            end(by, &one);
            longest = longest.max(all_obey(&replicas, &user, false, Instant::now()));
        }
    }
    println!("the longest: {longest:?}");
    assert!(longest < OBEY_WITHIN, "{longest:?}");
    redis.assert_no_key_leaks();
}

fn all_obey(replicas: &[Service], user: &str, denied: bool, since: Instant) -> Duration {
    let times = thread::scope(|scope| {
        let of_each =
            replicas.iter().map(|one| scope.spawn(move || obeys_after(one, user, denied, since)));
        of_each.collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).max()
    });
    times.unwrap()
}

/// Both replicas are hours off, and Redis's clock counts.
#[test]
fn an_override_ends_to_the_second_by_the_clock_of_redis() {
    let redis = Redis::start();
    let replicas = ["+5h", "-5h"].map(|clock| service_at(clock, RULES, &redis.url(), &[]));
    let one = set_for(&replicas[0], "user=eve", ban(), "4s");
    let until: jiff::Timestamp = one["until"].as_str().unwrap().parse().unwrap();
    let now = || -> i64 {
        let (seconds, micros): (i64, i64) = redis.query(&["TIME"]);
        seconds * 1000 + micros / 1000
    };
    for replica in &replicas {
        wait_until("it is banned", || is_denied(replica, "eve"));
    }
    let mut last_denied = [0; 2];
    let mut first_passed = [0; 2];
    while first_passed.contains(&0) {
        for (index, replica) in replicas.iter().enumerate() {
            let before = now();
            if is_denied(replica, "eve") {
                last_denied[index] = before;
            } else if first_passed[index] == 0 {
                first_passed[index] = now();
            }
        }
        assert!(now() < until.as_millisecond() + 30_000);
    }
    let until = until.as_millisecond();
    for index in 0..2 {
        assert!(
            first_passed[index] >= until - 100,
            "it ended {} ms early",
            until - first_passed[index]
        );
        assert!(
            last_denied[index] <= until + 1000,
            "it ended {} ms late",
            last_denied[index] - until
        );
    }
}

#[test]
fn the_last_known_stay_while_redis_is_away_until_they_end() {
    let mut redis = Redis::start();
    let service = replica(&redis.url(), &["--decision-budget", "100ms"]);
    set(&service, "user=eve", ban());
    set_for(&service, "user=short", ban(), "2s");
    redis.stop();
    let began = Instant::now();
    assert!(is_denied(&service, "eve"));
    wait_until("the short one ends", || !is_denied(&service, "short"));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(is_denied(&service, "eve"));
    wait_until("the list says that it is the last known", || {
        let last = "the store does not answer, and these are the last known overrides";
        list(&service, "")["problem"] == last
    });
    assert_eq!(list(&service, "")["known"], true);
    let (status, answer) = try_set(&service, "user=x", ban(), "1m");
    assert_eq!(status, 503, "{answer}");
    let problem = answer["error"].as_str().unwrap();
    assert!(
        problem.starts_with("the store gives no answer, and nothing has changed: "),
        "{problem}"
    );
}

#[test]
fn a_full_redis_shows_overrides_to_new_replicas_and_lifts_them() {
    for code in ["OOM", "NOREPLICAS", "MISCONF", "READONLY"] {
        let redis = Redis::start();
        let first = replica(&redis.url(), &[]);
        let [lifted, kept] = ["user=eve", "user=mallory"].map(|user| set(&first, user, ban()));
        redis.refuse_writes(code);
        let second = replica(&redis.url(), &[]);
        for service in [&first, &second] {
            let both = || is_denied(service, "eve") && is_denied(service, "mallory");
            wait_until("the replica knows them", both);
        }
        let (status, answer) = try_set(&second, "user=x", ban(), "1m");
        assert_eq!(status, 503, "{code}: {answer}");
        let nothing = "the store gives no answer, and nothing has changed: ";
        let problem = answer["error"].as_str().unwrap();
        assert!(problem.starts_with(nothing), "{code}: {problem}");
        if code == "OOM" {
            end(&second, &lifted);
            for service in [&first, &second] {
                wait_until("it is lifted", || !is_denied(service, "eve"));
                assert!(is_denied(service, "mallory"));
            }
        }
        redis.accept_writes();
        end(&first, &kept);
    }
}

/// Whatever operators attempt meanwhile.
#[test]
fn an_override_ends_on_time_while_redis_hangs() {
    let redis = Redis::start();
    let service = replica(&redis.url(), &[]);
    set_for(&service, "user=eve", ban(), "3s");
    let began = Instant::now();
    redis.signal("STOP");
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| assert_eq!(try_set(&service, "user=x", ban(), "1m").0, 503));
        }
        obeys_after(&service, "eve", false, began);
        let passed = began.elapsed();
        assert!(passed < Duration::from_secs(5), "it ended after {passed:?}");
    });
    redis.signal("CONT");
    wait_until("Redis answers", || try_set(&service, "user=x", ban(), "1m").0 == 200);
}

/// The clock of Redis was wrong for a while, or a failover went to one that is behind.
#[test]
fn the_time_of_an_override_counts_from_now_behind_one_that_was_set_later() {
    let (redis, key) = (Redis::start(), "tk1:op:{overrides}");
    let service = replica(&redis.url(), &[]);
    let first = set(&service, "user=eve", ban());
    let id = first["id"].as_str().unwrap();
    let kept: String = redis.query(&["HGET", key, id]);
    let mut kept: Value = serde_json::from_str(&kept).unwrap();
    let set_at = kept["set_at_ms"].as_u64().unwrap() + 3_600_000;
    kept["set_at_ms"] = set_at.into();
    redis.query::<()>(&["HSET", key, id, &kept.to_string(), "version", "later"]);
    let (status, second) = try_set(&service, "user=eve", ban(), "60s");
    assert_eq!((status, &second["supersedes"]["id"]), (200, &first["id"]), "{second}");
    let left = second["override"]["seconds_left"].as_f64().unwrap();
    // A busy machine knows Redis's clock a little less well.
    assert!(left <= 65.0, "{second}");
}

/// Of concurrent requests to end an override, one has ended it.
#[track_caller]
fn ends_once(replicas: &[Service], set: &Value) -> Value {
    let path = format!("/overrides/{}", set["id"].as_str().unwrap());
    let answers = thread::scope(|scope| {
        let of_each: Vec<_> = replicas
            .iter()
            .flat_map(|one| [one; 4])
            .map(|one| scope.spawn(|| send(one, "DELETE", &path, "")))
            .collect();
        of_each.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    let (done, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|(status, _)| *status == 200);
    assert_eq!(done.len(), 1, "{done:?}");
    for (status, answer) in refused {
        let problem = answer["error"].as_str().unwrap();
        let known = [
            (404, "id: the override was undone already"),
            (404, "id: no override in force has this id"),
        ];
        assert!(known.contains(&(status, problem)), "{status}: {problem}");
    }
    done[0].1.clone()
}

#[test]
fn of_concurrent_undos_one_has_ended_the_override() {
    let redis = Redis::start();
    let replicas = [(); 2].map(|()| replica(&redis.url(), &[]));
    for _ in 0..10 {
        let one = set(&replicas[0], "user=eve", ban());
        wait_until("the other obeys", || is_denied(&replicas[1], "eve"));
        ends_once(&replicas, &one);
    }
}

#[test]
fn a_replica_that_starts_without_redis_says_that_it_knows_no_overrides_until_it_has_read_them() {
    let redis = Redis::start();
    let first = replica(&redis.url(), &[]);
    set(&first, "user=eve", ban());
    redis.signal("STOP");
    let second = replica(&redis.url(), &["--decision-budget", "100ms"]);
    let line =
        "overrides are not known, and calls are decided without them until the store answers";
    second.wait_for_log(line);
    assert_eq!(list(&second, "")["known"], false);
    second.assert_metric("ratelimit_overrides_known 0\n");
    redis.signal("CONT");
    wait_until("it has read them", || is_denied(&second, "eve"));
    assert_eq!(list(&second, "")["known"], true);
    second.assert_metric("ratelimit_overrides_known 1\n");
    assert!(second.log().contains("overrides are known: 1 in force"), "{}", second.log());
    assert_eq!(second.log().matches(line).count(), 1);
}

#[test]
fn an_override_that_was_replicated_survives_a_failover() {
    let mut sentinels = Sentinels::start();
    let service = replica(&sentinels.url(), &[]);
    let one = set(&service, "user=eve", ban());
    for redis in &sentinels.redises {
        eventually("it is replicated", || {
            let key = "tk1:op:{overrides}";
            redis.query::<Option<String>>(&["HGET", key, one["id"].as_str().unwrap()]).map(drop)
        });
    }
    sentinels.kill_master();
    sentinels.announced();
    let second = replica(&sentinels.url(), &[]);
    wait_until("another replica reads it from the new master", || is_denied(&second, "eve"));
    assert!(is_denied(&service, "eve"));
    let set_later = eventually("the new master takes another", || {
        let (status, answer) = try_set(&service, "user=late", ban(), "1m");
        (status == 200).then_some(answer)
    });
    wait_until("both obey", || is_denied(&second, "late"));
    drop(set_later);
}

#[test]
fn a_cluster_keeps_them_too_with_any_prefix_and_minimal_rights() {
    let cluster = Cluster::start();
    let store = cluster.url_with_minimal_rights();
    let replicas = [(); 2].map(|()| replica(&store, &[]));
    let first = set(&replicas[0], "user=eve", ban());
    wait_until("the other obeys", || is_denied(&replicas[1], "eve"));
    let (_, second) = try_set(&replicas[1], "user=eve", ban(), "1m");
    assert_eq!(second["supersedes"]["id"], first["id"], "{second}");
    let path = format!("/overrides/{}", second["override"]["id"].as_str().unwrap());
    wait_until("the other knows it", || send(&replicas[0], "GET", &path, "").0 == 200);
    let undone = ends_once(&replicas, &second["override"]);
    assert_eq!(undone["in_force_again"]["id"], first["id"], "{undone}");
    cluster.assert_no_key_leaks();
}

#[test]
fn a_redis_without_scripts_and_with_a_prefix_keeps_them() {
    for version in Version::ALL {
        let redis = Redis::start_version(version);
        let store = redis.url_without_scripts();
        redis.query::<()>(&["ACL", "SETUSER", "tollkeeper", "~mine:tk1:*"]);
        let flags = ["--redis-scripts", "off", "--key-prefix", "mine:"];
        let replicas = [(); 2].map(|()| replica(&store, &flags));
        set(&replicas[0], "user=eve", ban());
        wait_until("the other obeys", || is_denied(&replicas[1], "eve"));
        assert_eq!(redis.key("overrides"), "mine:tk1:op:{overrides}");
        redis.assert_no_key_leaks();
    }
}

#[test]
fn without_the_rights_overrides_are_off_and_decisions_go_on() {
    let redis = Redis::start();
    let store = redis.url_with_minimal_rights();
    redis.query::<()>(&["ACL", "SETUSER", "tollkeeper", "-hget"]);
    let service = replica(&store, &[]);
    let line = "overrides are off: the user `tollkeeper` may not run HGET: docs/redis.md lists";
    service.wait_for_log(line);
    assert!(condition(&service).is_some_and(|text| text.starts_with(line)));
    assert!(!is_denied(&service, "eve"));
    let (status, _) = try_set(&service, "user=eve", ban(), "1m");
    assert_eq!(status, 200);
    redis.query::<()>(&["ACL", "SETUSER", "tollkeeper", "-hset"]);
    let (status, answer) = try_set(&service, "user=mallory", ban(), "1m");
    assert_eq!(status, 503, "{answer}");
    assert!(!is_denied(&service, "mallory"));
    assert_eq!(service.log().matches(line).count(), 1, "{}", service.log());
}

/// The text of the condition about overrides, when the page shows one.
fn condition(service: &Service) -> Option<String> {
    let (_, status) = send(service, "GET", "/status", "");
    let conditions = status["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|one| one["about"] == "overrides")?;
    assert_eq!(found["severity"], "amber");
    Some(found["text"].as_str().unwrap().to_owned())
}

#[test]
fn what_cannot_be_read_in_the_store_is_logged_once_and_a_condition() {
    let (redis, key) = (Redis::start(), "tk1:op:{overrides}");
    let service = replica(&redis.url(), &[]);
    set(&service, "user=eve", ban());
    assert_eq!(condition(&service), None);
    redis.query::<()>(&["HSET", key, "deadbeef", "garbage", "\n", "{}"]);
    let unread = "overrides that cannot be read, and are not in force here: 2 (\\x0a, deadbeef); a newer version may have set them";
    eventually("the page says so", || (condition(&service)? == unread).then_some(()));
    set(&service, "user=mallory", ban());
    assert!(is_denied(&service, "eve"));

    let replace = "redis.call('RENAME', KEYS[1], 'away') redis.call('SET', KEYS[1], 'text')";
    redis.query::<()>(&["EVAL", replace, "1", key]);
    let other = "the key of the overrides holds something else; the last known overrides apply";
    eventually("the page says so", || (condition(&service)? == other).then_some(()));
    assert!(is_denied(&service, "eve"));
    redis.query::<()>(&["RENAME", "away", key]);
    redis.query::<()>(&["HDEL", key, "deadbeef", "\n"]);
    wait_until("all is read", || condition(&service).is_none());
    let log = service.log();
    assert_eq!(log.matches("holds something else").count(), 1, "{log}");
    assert!((1..3).contains(&log.matches(": 2 (").count()), "{log}");
}

#[test]
fn the_1001st_is_refused_and_ended_ones_are_removed() {
    let redis = Redis::start();
    let service = replica(&redis.url(), &[]);
    set_for(&service, "user=short", ban(), "1s");
    for number in 1..1000 {
        set(&service, &format!("user=u{number}"), ban());
    }
    wait_until("the short one has ended", || !is_denied(&service, "short"));
    set(&service, "user=last", ban());
    let (status, answer) = try_set(&service, "user=more", ban(), "1m");
    let message = "1000 overrides are in force, the most; end one first";
    assert_eq!((status, answer["error"].as_str().unwrap()), (409, message));
    let kept: usize = redis.query(&["HLEN", "tk1:op:{overrides}"]);
    assert_eq!(kept, 1001, "1,000 and the version");
    let page = list(&service, "?limit=100");
    assert_eq!(page["overrides"].as_array().unwrap().len(), 100);
}

#[test]
fn a_query_for_changes_is_one_small_exchange() {
    let redis = Redis::start();
    let service = replica(&redis.url(), &[]);
    set(&service, "user=eve", ban());
    let before = [redis.runs_of("hgetall"), redis.runs_of("hget")];
    wait_until("it has asked ten times", || redis.runs_of("hget") >= before[1] + 10);
    assert_eq!(redis.runs_of("hgetall"), before[0], "nothing has changed");
    drop(send(&service, "GET", "/overrides", ""));
}
