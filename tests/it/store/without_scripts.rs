//! `--redis-scripts off`, on a Redis whose ACL forbids scripts.

use crate::support::{
    charges::{self, prelude::*},
    cluster_load::Load,
    prelude::*,
    redis_store::{self, answer, judges_as_memory},
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 100 } }
  - { key: deny, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: deny } }
";

fn service(redis: &Redis) -> Service {
    Service::with(RULES).on(&redis.url_without_scripts()).flags(&["--redis-scripts", "off"]).start()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_300_calls_by_16_clients_on_a_limit_of_100_exactly_100_pass() {
    let redis = Redis::start();
    let service = service(&redis);
    let everyone = ("user", "everyone".to_owned());
    let ledger = Load::start(&[&service], 16, vec![vec![everyone.clone()]], 300).await.end().await;
    assert_eq!((ledger.failed, ledger.calls), (vec![], 300));
    assert_eq!((ledger.admitted[&everyone], redis.count("everyone")), (100, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_charges_and_refunds_keep_a_counter_between_zero_and_its_limit() {
    let redis = Redis::start();
    let service = service(&redis);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..8_u64 {
        let mut client = service.client().await;
        clients.spawn(async move {
            for _ in 0..50 {
                let user = descriptor(&[("user", "everyone")]);
                let one = if number % 2 == 0 { hits(user, 1) } else { refund(user, 1) };
                let answer = client.should_rate_limit(request("shop", vec![one])).await.unwrap();
                assert!(answer.into_inner().statuses[0].limit_remaining <= 100);
            }
        });
    }
    clients.join_all().await;
    for key in redis.keys() {
        let used: i64 = redis.query(&["GET", &key]);
        assert!((0..=100).contains(&used), "{used} are used");
    }
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn a_denied_calls_charges_are_refunded_before_the_answer() {
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
    assert_eq!((redis.count("user=a"), redis.count("user=b")), (60, 61));
}

#[tokio::test]
async fn a_call_on_a_corrupt_counter_charges_no_sibling() {
    let redis = Redis::start();
    let service = service(&redis);
    let both = || shop("user=a deny=b");
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
    assert_eq!(redis.count("user=a"), 1);
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
    assert_eq!(service.answer("user=a(-3)").await, "OK: OK 100/100 YEAR");
    assert_eq!(redis.query::<i64>(&["GET", &key]), 0);
}

/// A caller and its hits; a negative number is a refund.
type Caller = (char, i64);

fn charge_of((_, hits): Caller) -> Charge {
    let hits = match u64::try_from(hits) {
        Ok(hits) => Hits::Charge(hits),
        Err(_) => Hits::Refund(hits.unsigned_abs()),
    };
    charges::charge("everyone", hits, &Arc::new(Limit::new(5, Unit::Year, 100).unwrap()))
}

/// Runs the callers' transactions on a counter with `used` hits, in every possible order. Each caller has its
/// own connection to Redis, through a gate that lets one of its transactions pass at a time. Returns the
/// number of orders.
async fn in_every_order(
    used: u64,
    callers: &[Caller],
    check: impl Fn(&str, &[bool], i64),
) -> usize {
    let redis = Redis::start();
    // The orders that are still to be tried, each by its first steps.
    let (mut orders, mut tried) = (vec![String::new()], 0);
    while let Some(fixed) = orders.pop() {
        redis.query::<()>(&["FLUSHALL"]);
        let direct = redis_store::transactions(&redis.url());
        if used > 0 {
            let call = [charge_of((' ', i64::try_from(used).unwrap()))];
            assert!(!answer(&direct, &call).await.unwrap().denied);
        }
        let mut running = Vec::new();
        for caller in callers {
            let gate = FaultProxy::start(redis.port, 0);
            let store = redis_store::transactions(&gate.url);
            store.reached().await;
            gate.step();
            let call = [charge_of(*caller)];
            let task = tokio::spawn(async move { answer(&store, &call).await });
            running.push((caller.0, gate, task));
        }
        let mut order = String::new();
        loop {
            // Each caller that has not ended waits at its gate.
            let mut ready = Vec::new();
            for (name, gate, task) in &running {
                while !task.is_finished() {
                    let waits = gate.request();
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
        let key = redis.keys().into_iter().find(|key| key.contains("everyone"));
        let count = key.map_or(0, |key| redis.query(&["GET", &key]));
        check(&order, &admitted, count);
        redis.assert_no_key_leaks();
        tried += 1;
    }
    tried
}

/// In every order no call fails. If the refunds do not exceed what was used before, the count is exactly what
/// was admitted less what was refunded.
#[track_caller]
fn check_order(used: u64, callers: &[Caller], order: &str, admitted: &[bool], count: i64) {
    let used = i64::try_from(used).unwrap();
    let (mut charged, mut refunded) = (used, 0);
    for ((_, hits), admitted) in callers.iter().zip(admitted) {
        assert!(*admitted || *hits > 0, "{order}: a refund is never denied");
        match *hits {
            hits if hits < 0 => refunded -= hits,
            hits if *admitted => charged += hits,
            _ => {}
        }
    }
    let what = format!("{used} used, {callers:?} in the order {order}: {admitted:?}, {count}");
    if refunded <= used {
        assert_eq!(count, charged - refunded, "{what}");
    }
    // A denied caller may undo its charge after a refund was floored at zero: then hits are missing, at most one
    // limit for each caller.
    assert!(count <= 5 && count >= -5 * i64::try_from(callers.len()).unwrap(), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_every_order_of_transactions_no_call_fails_and_counts_are_exact() {
    // One caller is denied and undoes its charge, while the other refunds more than was used.
    let mut cases = vec![(4, vec![('a', 3), ('b', -5)]), (4, vec![('a', 1), ('b', 3), ('c', -2)])];
    let mut dice = Dice(5);
    for _ in 0..number("INTERLEAVED_CASES", 4) {
        let hits = |dice: &mut Dice| match dice.below(3) {
            0 => -1 - i64::try_from(dice.below(5)).unwrap(),
            _ => 1 + i64::try_from(dice.below(5)).unwrap(),
        };
        let callers = ['a', 'b', 'c'].map(|name| (name, hits(&mut dice)));
        cases.push((dice.below(6), callers[..2 + dice.below(2) as usize].to_vec()));
    }
    let mut orders = 0;
    for (used, callers) in &cases {
        orders += in_every_order(*used, callers, |order, admitted, count| {
            check_order(*used, callers, order, admitted, count);
        })
        .await;
    }
    println!("{} cases, {orders} orders", cases.len());
}

#[tokio::test]
async fn transactions_do_what_memory_does() {
    let redis = Redis::start();
    let store = redis_store::transactions(&redis.url());
    let limits: Vec<_> = fixed_windows().into_iter().map(Arc::new).collect();
    judges_as_memory(&store, &limits, Hits::MAX).await;
    redis.assert_no_key_leaks();
}

/// Limits of all modes, in windows of decades, so that none ends while a test runs.
fn fixed_windows() -> Vec<Limit> {
    let per = |requests, years| Limit::new(requests, Unit::Year, years).unwrap();
    let counted = |limit| Limit { when_denied: WhenDenied::Counted, ..limit };
    vec![
        per(7, 100),
        per(9, 100),
        per(0, 90),
        counted(per(5, 80)),
        Limit { mode: Mode::Shadow, ..per(4, 70) },
        Limit { mode: Mode::Quota, ..per(4, 60) },
        Limit { mode: Mode::Quota, ..per(6, 95) },
        counted(Limit { mode: Mode::Shadow, ..per(3, 85) }),
    ]
}

#[tokio::test]
async fn of_65_537_charges_that_outlive_their_callers_the_last_is_kept() {
    let mut redis = Redis::start();
    let store = redis_store::transactions(&redis.url());
    redis.stop();
    let counted = &fixed_windows()[3];
    let debit = |user: usize| {
        charges::charge(&user.to_string(), Hits::Charge(1), &Arc::new(counted.clone()))
    };
    let many: Vec<_> = (0..512).map(debit).collect();
    let calls = std::iter::repeat_n(&many[..], 128).chain([&many[..1]]);
    let answers = join_all(calls.map(|call| answer(&store, call))).await;
    let is_kept = |answer: &&Result<Verdict, tollkeeper::store::StoreError>| matches!(answer, Err(error) if error.to_string() == "too many calls go on without their callers");
    assert_eq!(answers.iter().filter(is_kept).count(), 1);
}

#[test]
fn any_other_algorithm_and_a_lease_are_refused_at_load_with_the_reason() {
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 1, algorithm: sliding_log }\n  - key: l\n    rate_limit: { unit: day, requests_per_unit: 1, lease: auto }\n";
    let file = TextFile::new("rules.yaml", rules);
    let output =
        tollkeeper().args(["serve", "--redis-scripts", "off", "--rules", &file]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(":4:17: algorithm: sliding_log needs scripts"), "{stderr}");
    assert!(stderr.contains(":6:59: lease: needs scripts, but --redis-scripts is off"), "{stderr}");
}
