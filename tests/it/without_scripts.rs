//! A Redis whose ACL forbids scripts: `--redis-scripts off`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tollkeeper::rls::pb::rate_limit_response::Code;

use crate::support::{
    redis_server::Redis,
    service::{Options, Service, descriptor, give_back, hits, request, spell, tollkeeper},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 100 }
  - key: deny
    rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: deny }
";

fn service(redis: &Redis) -> Service {
    let (store, flags) = (redis.url_without_scripts(), &["--redis-scripts", "off"]);
    Service::start(Options { rules: RULES, store: &store, flags, ..Options::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn of_300_calls_by_16_clients_on_a_limit_of_100_exactly_100_pass() {
    let redis = Redis::start();
    let service = service(&redis);
    let (asked, passed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let mut client = service.client().await;
        let (asked, passed) = (Arc::clone(&asked), Arc::clone(&passed));
        clients.spawn(async move {
            while asked.fetch_add(1, Ordering::Relaxed) < 300 {
                let call = request("shop", vec![descriptor(&[("user", "everyone")])]);
                let answer = client.should_rate_limit(call).await.unwrap().into_inner();
                let ok = usize::from(answer.overall_code() == Code::Ok);
                passed.fetch_add(ok, Ordering::Relaxed);
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    assert_eq!(passed.load(Ordering::Relaxed), 100);
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("everyone")]), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_that_meet_charges_lose_nothing_and_stop_at_zero() {
    let redis = Redis::start();
    let service = service(&redis);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..8_u64 {
        let mut client = service.client().await;
        clients.spawn(async move {
            for _ in 0..50 {
                let user = descriptor(&[("user", "everyone")]);
                let it = if number % 2 == 0 { hits(user, 1) } else { give_back(user, 1) };
                let answer = client.should_rate_limit(request("shop", vec![it])).await.unwrap();
                assert!(answer.into_inner().statuses[0].limit_remaining <= 100);
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    for key in redis.keys() {
        let used: i64 = redis.query(&["GET", &key]);
        assert!((0..=100).contains(&used), "{used} are used");
    }
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn what_a_denied_call_charged_is_given_back_before_the_answer() {
    let redis = Redis::start();
    let service = service(&redis);
    let user = |name, count| hits(descriptor(&[("user", name)]), count);
    let call = || request("shop", vec![user("a", 60), user("b", 60)]);
    assert_eq!(spell(&service.ask(call()).await.unwrap()), "OK: OK 40/100 YEAR, OK 40/100 YEAR");
    let one = request("shop", vec![user("b", 1)]);
    assert_eq!(spell(&service.ask(one).await.unwrap()), "OK: OK 39/100 YEAR");
    let call = request("shop", vec![user("a", 40), user("b", 40)]);
    let denied = "OVER_LIMIT: OK 40/100 YEAR, OVER_LIMIT 0/100 YEAR";
    assert_eq!(spell(&service.ask(call).await.unwrap()), denied);
    let used = |name| redis.query::<u64>(&["GET", &redis.key(name)]);
    assert_eq!((used("user=a"), used("user=b")), (60, 61));
}

#[tokio::test]
async fn a_counter_that_holds_no_count_charges_no_sibling() {
    let redis = Redis::start();
    let service = service(&redis);
    let both = || request("shop", vec![descriptor(&[("user", "a")]), descriptor(&[("deny", "b")])]);
    assert_eq!(spell(&service.ask(both()).await.unwrap()), "OK: OK 99/100 YEAR, OK 9/10 YEAR");
    let key = redis.key("deny=b");
    let plants: [&[&str]; 5] = [
        &["RPUSH", &key, "x"],
        &["SET", &key, "x"],
        &["SET", &key, "-7"],
        &["SET", &key, "9007199254740992"],
        &["SET", &key, "9223372036854775807"],
    ];
    for plant in plants {
        redis.query::<i64>(&["DEL", &key]);
        redis.query::<redis::Value>(plant);
        let before: redis::Value = redis.query(&["DUMP", &key]);
        let answer = spell(&service.ask(both()).await.unwrap());
        assert_eq!(answer, "OVER_LIMIT: OK 99/100 YEAR, OVER_LIMIT 0/10 YEAR", "{plant:?}");
        assert_eq!(redis.query::<redis::Value>(&["DUMP", &key]), before, "{plant:?}");
    }
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("user=a")]), 1);
}

#[test]
fn any_other_algorithm_is_refused_at_load_in_words() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("rules.yaml");
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 1, algorithm: sliding_log }\n";
    std::fs::write(&file, rules).unwrap();
    let output = tollkeeper()
        .args(["serve", "--redis-scripts", "off", "--rules", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(":4:17: algorithm: sliding_log needs scripts"), "{told}");
}
