//! A Redis whose ACL forbids scripts: `--redis-scripts off`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tollkeeper::{
    engine::{
        ledger::Charge,
        request::Hits,
        rule::{Limit, Unit},
    },
    rls::pb::rate_limit_response::Code,
};

use crate::{
    algorithms,
    support::{
        redis_proxy::Gate,
        redis_server::Redis,
        redis_store,
        service::{Options, Service, descriptor, give_back, hits, request, spell, tollkeeper},
    },
};

/// Nobody is kept waiting so long, unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

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
    let plants: [&[&str]; 4] = [
        &["RPUSH", &key, "x"],
        &["SET", &key, "x"],
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

#[tokio::test]
async fn a_negative_count_is_read_as_0_and_repaired_by_the_next_write() {
    let redis = Redis::start();
    let service = service(&redis);
    let one = |count| request("shop", vec![hits(descriptor(&[("user", "a")]), count)]);
    service.ask(one(1)).await.unwrap();
    let key = redis.key("user=a");
    redis.query::<()>(&["SET", &key, "-7", "KEEPTTL"]);
    assert_eq!(spell(&service.ask(one(0)).await.unwrap()), "OK: OK 100/100 YEAR");
    assert_eq!(spell(&service.ask(one(101)).await.unwrap()), "OVER_LIMIT: OVER_LIMIT 0/100 YEAR");
    assert_eq!(spell(&service.ask(one(40)).await.unwrap()), "OK: OK 60/100 YEAR");
    assert_eq!(redis.query::<i64>(&["GET", &key]), 40);
    redis.query::<()>(&["SET", &key, "-7", "KEEPTTL"]);
    let refund = request("shop", vec![give_back(descriptor(&[("user", "a")]), 3)]);
    assert_eq!(spell(&service.ask(refund).await.unwrap()), "OK: OK 100/100 YEAR");
    assert_eq!(redis.query::<i64>(&["GET", &key]), 0);
}

/// A caller, and how many hits it takes; negative, how many it gives back.
type Caller = (char, i64);

fn charge_of((_, hits): Caller) -> Charge {
    let hits = match u64::try_from(hits) {
        Ok(hits) => Hits::Take(hits),
        Err(_) => Hits::GiveBack(hits.unsigned_abs()),
    };
    algorithms::charge("everyone", hits, &Arc::new(Limit::new(5, Unit::Year, 100).unwrap()))
}

/// Runs the callers' transactions on a counter that holds `used`, in every order that is possible. Each
/// caller has its own way to Redis, with a gate that lets one of its transactions through at a time.
async fn in_every_order(used: u64, callers: &[Caller], check: impl Fn(&str, &[bool], i64)) {
    let redis = Redis::start();
    // The orders that are still to be tried, as far as they are fixed.
    let mut orders = vec![String::new()];
    while let Some(fixed) = orders.pop() {
        redis.query::<()>(&["FLUSHALL"]);
        let direct = redis_store::transactions(&redis.url(), PATIENCE);
        if used > 0 {
            let call = [charge_of((' ', i64::try_from(used).unwrap()))];
            assert!(!direct.charge(&call).await.unwrap().denied);
        }
        let mut running = Vec::new();
        for caller in callers {
            let gate = Gate::start(&redis).await;
            let store = redis_store::transactions(&gate.url, PATIENCE);
            store.reached().await;
            gate.close();
            let call = [charge_of(*caller)];
            let task = tokio::spawn(async move { store.charge(&call).await });
            running.push((caller.0, gate, task));
        }
        let mut order = String::new();
        loop {
            // Each caller that has not ended waits before its gate.
            let mut ready = Vec::new();
            for (name, gate, task) in &running {
                while !task.is_finished() {
                    let waits = gate.question();
                    if tokio::time::timeout(Duration::from_millis(5), waits).await.is_ok() {
                        ready.push((*name, gate));
                        break;
                    }
                }
            }
            let Some((first, _)) = ready.first() else { break };
            let next = fixed.chars().nth(order.len()).unwrap_or_else(|| {
                let others = ready.iter().skip(1);
                orders.extend(others.map(|(name, _)| format!("{order}{name}")));
                *first
            });
            let (_, gate) = ready.iter().find(|(name, _)| *name == next).unwrap();
            order.push(next);
            gate.pass();
            assert!(order.len() < 30, "{order} does not end");
        }
        let mut admitted = Vec::new();
        for (_, _, task) in running {
            let answer = task.await.unwrap();
            admitted.push(!answer.unwrap_or_else(|error| panic!("{order}: {error}")).denied);
        }
        let count: Option<i64> = redis.query(&["GET", &redis.key("everyone")]);
        check(&order, &admitted, count.unwrap_or(0));
        redis.assert_no_key_leaks();
    }
}

/// One is denied and gives its charge back, while the other gives back more than was taken.
#[tokio::test(flavor = "multi_thread")]
async fn in_every_order_of_two_transactions_and_a_refund_nobody_gets_an_error() {
    in_every_order(4, &[('t', 3), ('r', -5)], |order, admitted, count| {
        let used = if admitted[0] { 3 } else { 0 };
        assert!(admitted[1], "{order}: a refund is never denied");
        // The refund may be floored by what the other then gives back: at most that is lacking.
        assert!((used - 3..=used).contains(&count), "{order}: {admitted:?}, {count}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_every_order_of_charges_and_a_refund_of_what_was_taken_the_count_is_exact() {
    in_every_order(4, &[('a', 1), ('b', 3), ('r', -2)], |order, admitted, count| {
        let hits = [1, 3, -2].into_iter().zip(admitted).filter(|(_, admitted)| **admitted);
        let expected: i64 = 4 + hits.map(|(hits, _)| hits).sum::<i64>();
        assert_eq!(count, expected, "{order}: {admitted:?}");
        assert!(count <= 5, "{order}: {admitted:?}");
    })
    .await;
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
    assert!(told.contains(":4:17: algorithm: sliding_log needs a script"), "{told}");
}
