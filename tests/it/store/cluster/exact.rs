//! Promises "exactly the limit" and "all or nothing", without faults.

use tollkeeper::store::redis::RedisStore;

use crate::support::{
    charges::{left, prelude::*},
    cluster_calls::{ALGORITHMS, ask, charge, follow, masters, rules, serve, used, values_on},
    cluster_load::{Counted, Load},
    overrides::set,
    prelude::*,
    redis_store::{answers, judges_as_memory, long_limits},
};

/// Over three nodes, on every algorithm.
#[tokio::test(flavor = "multi_thread")]
async fn two_services_admit_exactly_each_limit_and_no_call_is_charged_in_part() {
    const LIMIT: u64 = 150;
    let cluster = masters(Version::Redis7);
    let rules = rules(LIMIT, &[]);
    let services = [serve(&cluster, &rules, &[]), serve(&cluster, &rules, &[])];
    let services: Vec<_> = services.iter().collect();
    let single: Vec<Vec<Counted>> = ALGORITHMS.map(|name| vec![(name, "one".to_owned())]).into();
    let ledger = Load::start(&services, 24, single, 2 * LIMIT as usize).await.end().await;
    assert_eq!(ledger.failed, []);
    for name in ALGORITHMS {
        let one = (name, "one".to_owned());
        assert_eq!(ledger.admitted[&one], LIMIT, "{name}");
        assert_eq!(used(services[0], name, "one"), LIMIT, "{name}");
    }

    // Three counters of three nodes, of which the calls share one, two or none.
    let mut calls: Vec<Vec<Counted>> = Vec::new();
    for (index, name) in ALGORITHMS.into_iter().enumerate() {
        let others = ALGORITHMS[(index + 1) % 5];
        let on = |node, key, count| values_on(&cluster, node, key, "three", count);
        let (first, second, third) = (on(0, name, 1), on(1, others, 2), on(2, name, 3));
        for number in 0..6 {
            calls.push(vec![
                (name, first[0].clone()),
                (others, second[number % 2].clone()),
                (name, third[number % 3].clone()),
            ]);
        }
    }
    let counted: Vec<Counted> = calls.concat();
    let ledger = Load::start(&services, 24, calls, 60).await.end().await;
    assert_eq!(ledger.failed, []);
    assert!(ledger.denied > 0);
    for counted in counted {
        let (admitted, (key, value)) = (ledger.admitted[&counted], &counted);
        assert!(admitted <= LIMIT, "{counted:?}: {admitted}");
        assert_eq!(used(services[1], key, value), admitted, "{counted:?}");
    }
    cluster.assert_no_key_leaks();
}

/// A call that is denied by a counter of another node leaves the holds that it commits committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_call_over_nodes_gives_back_no_hold_that_it_commits() {
    const RULES: &str = "
domain: shop
descriptors:
  - { key: full, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 100, hold: { for: 1h, by: id, estimate: 20 } } }
  - { key: slots, rate_limit: { algorithm: in_flight, requests_per_unit: 5, hold: { for: 1h, by: id } } }
";
    let cluster = masters(Version::Redis7);
    let service = serve(&cluster, RULES, &[]);
    let full = values_on(&cluster, 0, "full", "f", 1).remove(0);
    let tokens = values_on(&cluster, 1, "tokens", "t", 1).remove(0);
    let slots = values_on(&cluster, 2, "slots", "s", 1).remove(0);
    let by_id = |number: usize, used: &str| {
        let id = format!("id{number}");
        let entries = |key, value| {
            let used = (!used.is_empty()).then_some(("hold.used", used));
            let entries: Vec<_> =
                [(key, value), ("hold.id", &*id)].into_iter().chain(used).collect();
            descriptor(&entries)
        };
        vec![entries("tokens", &*tokens), entries("slots", &*slots)]
    };
    let mut passed = 0;
    for number in 0..8 {
        let ask = async |call| service.ask(request("shop", call)).await.unwrap().overall_code();
        if ask(by_id(number, "")).await == Code::Ok {
            passed += 1;
            // Its end is denied for another reason, and sent again alone.
            let ended = by_id(number, "20");
            let denied = [ended.clone(), vec![descriptor(&[("full", &full)])]].concat();
            assert_eq!(ask(denied).await, Code::OverLimit);
            assert_eq!(ask(ended).await, Code::Ok);
        }
        assert_eq!(used(&service, "tokens", &tokens), 20 * passed, "after {}", number + 1);
        assert_eq!(used(&service, "slots", &slots), 0, "after {}", number + 1);
    }
    assert_eq!(passed, 5);
}

/// Holds by counter are in one slot, and other counters of the call on other nodes.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_another_node_denies_leaves_and_shows_no_open_hold_and_an_end_knows_what_was_held()
 {
    const RULES: &str = "
domain: shop
descriptors:
  - { key: full, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: other, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: quota, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: route, rate_limit: { unit: year, requests_per_unit: 100, hold: { for: 1h, by: counter, estimate: 20 } } }
";
    let cluster = masters(Version::Redis7);
    let service = serve(&cluster, RULES, &[]);
    let left = async |descriptors| {
        let answer = service.ask(request("shop", descriptors)).await.unwrap();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    let take = || hits(descriptor(&[("route", "r")]), 0);
    let take_of_one = || descriptor(&[("route", "r")]);
    for number in 0..6 {
        let full = values_on(&cluster, number / 2, "full", "f", 1).remove(0);
        let full = descriptor(&[("full", &full)]);
        let taken = if number % 2 == 0 { take() } else { take_of_one() };
        let denied = vec![taken, full.clone()];
        assert_eq!(left(denied).await, (Code::OverLimit, 100), "{number}");
        // What a reservation has charged beyond its limit was not left before.
        let quota = |count| hits(descriptor(&[("quota", &number.to_string())]), count);
        left(vec![quota(5)]).await;
        let denied = vec![refund(quota(0), 1), quota(3), full];
        assert_eq!(left(denied).await, (Code::OverLimit, 1), "{number}");
    }
    wait_until("the holds are given back", || used_and_held(&service) == (0, 0));
    assert_eq!(left(vec![take()]).await, (Code::Ok, 80));
    assert_eq!(used_and_held(&service), (0, 20));
    for node in 0..3 {
        let other = values_on(&cluster, node, "other", "o", 1).remove(0);
        let end = hits(descriptor(&[("route", "r")]), 21);
        left(vec![end, descriptor(&[("other", &other)])]).await;
        left(vec![take()]).await;
    }
    let metrics = service.get("/metrics");
    let overruns = "ratelimit_holds_total{outcome=\"overrun\",rule=\"route\"} 3";
    assert!(metrics.lines().any(|line| line == overruns), "{metrics}");
}

fn used_and_held(service: &Service) -> (u64, u64) {
    let counter = service.counter("shop", "route=r");
    (counter["used"].as_u64().unwrap(), counter["held"].as_u64().unwrap_or(0))
}

/// A part over several nodes is found by checks, and reserved.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_over_nodes_is_what_fits_on_all_of_them_or_charges_nothing() {
    const RULES: &str = "
domain: shop
descriptors:
  - { key: small, rate_limit: { unit: year, requests_per_unit: 5, count_denied: true } }
  - { key: quota, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 8 } }
  - { key: large, rate_limit: { unit: year, requests_per_unit: 100 } }
  - { key: exempt, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 8 } }
";
    let cluster = masters(Version::Redis7);
    let service = serve(&cluster, RULES, &[]);
    let keys = ["small", "quota", "large", "exempt"];
    let values: Vec<_> = keys
        .into_iter()
        .zip([0, 1, 2, 0])
        .map(|(key, node)| (key, values_on(&cluster, node, key, "v", 1).remove(0)))
        .collect();
    set(&service, "exempt=*", json!({ "action": "allow" }));
    let part = |keys: &[&str], hits: u64| {
        let named = values.iter().filter(|(key, _)| keys.contains(key));
        let descriptors: Vec<_> = named
            .map(|(key, value)| json!({ "entries": [{ "key": key, "value": value }] }))
            .collect();
        let call = json!({ "mode": "PART", "hits": hits, "descriptors": descriptors });
        let body = json!({ "domain": "shop", "calls": [call] }).to_string();
        let answer = service.post("/v1/decide", &body);
        answer["verdicts"][0]["hits"].as_u64().unwrap_or(0)
    };
    for (keys, asked, hits, then_used) in [
        (&keys[..3], 3, 3, [3, 3, 3, 0]),
        (&keys[..3], 20, 2, [5, 5, 5, 0]),
        (&keys[..3], 20, 0, [5, 5, 5, 0]),
        (&keys[1..3], 20, 3, [5, 8, 8, 0]),
        (&keys[1..3], 20, 0, [5, 8, 8, 0]),
        (&keys[2..], 6, 6, [5, 8, 14, 0]),
        (&keys[2..3], 200, 86, [5, 8, 100, 0]),
    ] {
        assert_eq!(part(keys, asked), hits, "{asked} of {keys:?}");
        let found: Vec<_> = values.iter().map(|(key, value)| used(&service, key, value)).collect();
        assert_eq!(found, then_used, "after {asked} of {keys:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_over_several_nodes_are_judged_as_in_memory() {
    let cluster = masters(Version::Redis7);
    let store = follow(&cluster.url(), Duration::from_secs(10));
    // A count that has stopped at its maximum gives back nothing that was reserved.
    judges_as_memory(&store, &long_limits(), 9).await;
    cluster.assert_no_key_leaks();
}

/// Calls on many hash slots of one node, at once: number of scripts that Redis runs for them.
async fn runs_for(cluster: &Cluster, store: &RedisStore, users: &[String]) -> u64 {
    let limit = Arc::new(Limit::new(3, Unit::Year, 1).unwrap());
    let before = cluster.nodes[0].runs_of("evalsha");
    let calls = users.iter().map(|user| [charge("user", user, Hits::Charge(1), &limit)]);
    let calls: Vec<_> = calls.collect();
    join_all(calls.iter().map(|call| ask(store, call))).await;
    cluster.nodes[0].runs_of("evalsha") - before
}

/// Each version takes node-wide runs, and admits exactly the limit in them.
async fn check_node_wide_runs(version: Version) {
    let cluster = masters(version);
    let store = follow(&cluster.url(), Duration::from_secs(10));
    let users = values_on(&cluster, 0, "user", "wide", 40);
    let deadline = Instant::now() + Duration::from_secs(10);
    while runs_for(&cluster, &store, &users).await > 8 {
        assert!(Instant::now() < deadline, "{version:?} takes no node-wide runs");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let limit = Arc::new(Limit::new(20, Unit::Year, 2).unwrap());
    let users_of =
        |number| if number % 2 == 0 { 0..1 } else { 0..3 }.map(move |of| (number + of) % 5);
    let one = |user: usize| charge("user", &users[user], Hits::Charge(1), &limit);
    let calls = (0..300).map(|number| users_of(number).map(one).collect::<Vec<_>>());
    let answers = answers(&store, calls).await;
    let mut admitted = [0; 5];
    for (number, answer) in answers.iter().enumerate() {
        if !answer.as_ref().unwrap().denied {
            users_of(number).for_each(|user| admitted[user] += 1);
        }
    }
    // Whatever the order, single hits of the next calls fill every limit.
    assert!(admitted.iter().all(|admitted| *admitted <= 20), "{admitted:?}");
    for (user, admitted) in admitted.into_iter().enumerate() {
        let verdict = ask(&store, &[Charge { hits: Hits::Check, ..one(user) }]).await;
        assert_eq!(left(&verdict.tallies[0]).unwrap_or(0), 20 - admitted, "{user}");
    }
    cluster.assert_no_key_leaks();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_decides_calls_on_many_slots_in_one_run() {
    for version in Version::ALL {
        check_node_wide_runs(version).await;
    }
}
