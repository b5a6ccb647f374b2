//! Slots that move while calls are made.

use crate::support::{
    charges::prelude::*,
    cluster_calls::{
        ALGORITHMS, ask, charge, follow, masters, rules, serve, slot_of, used, values_on, years,
    },
    cluster_load::{Counted, Load},
    prelude::*,
};

/// How often all nodes together have sent clients elsewhere.
fn redirections(cluster: &Cluster) -> u64 {
    let of = |info: String| {
        let moved = info.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
        moved.map_or(0, |count| count.parse().unwrap())
    };
    cluster.nodes.iter().map(|node| of(node.query(&["INFO", "errorstats"]))).sum()
}

/// So it is for a moment in a failover, on a node that hears of it from the old owner first.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_knows_no_owner_of_a_slot_does_not_hide_the_owner() {
    let cluster = masters(Version::Redis7);
    let value = values_on(&cluster, 0, "fixed_window", "hidden", 1).remove(0);
    cluster.forget_node(0);
    let limit = years(100).remove(0);
    // Each asks another node first, at random.
    for _ in 0..10 {
        let store = follow(&cluster.url(), Duration::from_secs(5));
        ask(&store, &[charge("fixed_window", &value, Hits::Charge(1), &limit)]).await;
    }
}

/// Calls on one counter and on three, on every algorithm, lose nothing and get no wrong answer.
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_under_load_cost_no_answer_and_no_hit() {
    let cluster = masters(Version::Redis7);
    let rules = rules(9_000, &[("small", 15)]);
    let services = [serve(&cluster, &rules, &[]), serve(&cluster, &rules, &[])];
    let mut calls: Vec<Vec<Counted>> = Vec::new();
    for (index, name) in ALGORITHMS.into_iter().enumerate() {
        let next = ALGORITHMS[(index + 1) % 5];
        for number in 0..4 {
            calls.push(vec![(name, format!("one{number}"))]);
            calls.push(
                [(name, "a"), (next, "b"), (name, "c")]
                    .map(|(key, value)| (key, format!("{value}{number}")))
                    .into(),
            );
        }
        calls.push(vec![(name, "small".to_owned())]);
    }
    let counted: Vec<Counted> = calls.concat();
    let slots: Vec<u16> =
        counted.iter().map(|(key, value)| slot_of(&cluster, key, value)).collect();
    let load = Load::start(&[&services[0], &services[1]], 8, calls, usize::MAX).await;
    let mut dice = Dice(number("SEED", 1));
    let count = number("MOVED_SLOTS", 60);
    for number in 0..count {
        let slot = slots[dice.below(slots.len() as u64) as usize];
        let from = cluster.node_of(slot);
        let migration = cluster.begin_move(slot, (from + 1 + dice.below(2) as usize) % 3);
        if number % 4 == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        migration.move_keys();
        migration.finish();
    }
    let ledger = load.stop().await;
    let longest = ledger.longest;
    println!("{count} slots moved, {} calls, the longest took {longest:?}", ledger.calls);
    assert_eq!(ledger.failed, []);
    for (key, value) in &counted {
        let admitted = ledger.admitted[&(*key, value.clone())];
        assert_eq!(used(&services[0], key, value), admitted, "{key}={value}");
        let is_within = if value == "small" { admitted == 15 } else { admitted < 9_000 };
        assert!(is_within, "{key}={value}: {admitted}");
    }
    cluster.assert_no_key_leaks();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_has_moved_is_searched_once() {
    let cluster = masters(Version::Redis7);
    let store = follow(&cluster.url(), Duration::from_secs(10));
    let mut redirected = 0;
    for year in years(100) {
        let call = [charge("user", "moved", Hits::Charge(1), &year)];
        ask(&store, &call).await;
        let slot = slot_of(&cluster, "user", "moved");
        let before = redirections(&cluster);
        cluster.move_slot(slot, (cluster.node_of(slot) + 1) % 3);
        ask(&store, &call).await;
        let first = redirections(&cluster) - before;
        for _ in 0..20 {
            ask(&store, &call).await;
        }
        let all = redirections(&cluster) - before;
        // The run is redirected, and then the call by itself; neither if the map was read again just before.
        assert!(first <= 4 && all == first, "{first}, then {}", all - first);
        redirected += first;
    }
    assert!(redirected > 0);
}

/// What a counter has left.
async fn left(store: &tollkeeper::store::redis::RedisStore, one: &Charge) -> u64 {
    let no_hits = [Charge { hits: Hits::Check, ..one.clone() }];
    crate::support::charges::left(&ask(store, &no_hits).await.tallies[0]).unwrap_or(0)
}

/// Keys of a slot that is half moved are at either end: existing ones at the old owner, new ones at the new one, and
/// a call that needs one of each waits until the slot has moved.
async fn check_half_moved_slot(version: Version) {
    let cluster = masters(version);
    let store = follow(&cluster.url(), Duration::from_secs(10));
    for (round, year) in years(100).into_iter().enumerate() {
        let value = values_on(&cluster, 0, "user", &format!("half{round}"), 1).remove(0);
        let one = charge("user", &value, Hits::Charge(1), &year);
        let others = [1, 2].map(|node| {
            let value = values_on(&cluster, node, "user", &format!("other{round}"), 1).remove(0);
            charge("user", &value, Hits::Charge(1), &year)
        });
        ask(&store, std::slice::from_ref(&one)).await;
        let migration = cluster.begin_move(slot_of(&cluster, "user", &value), 1);
        let three = [one.clone(), others[0].clone(), others[1].clone()];
        let waiting = {
            let (store, one, three) = (Arc::clone(&store), [one.clone()], three.clone());
            tokio::spawn(async move {
                ask(&store, &one).await;
                ask(&store, &three).await;
            })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        migration.move_keys();
        tokio::time::sleep(Duration::from_millis(50)).await;
        migration.finish();
        waiting.await.unwrap();
        assert_eq!(left(&store, &one).await, 97, "{version:?} {year:?}");
        for other in &others {
            assert_eq!(left(&store, other).await, 99, "{version:?} {year:?}");
        }
    }
    cluster.assert_no_key_leaks();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_half_moved_serves_every_algorithm() {
    for version in Version::ALL {
        check_half_moved_slot(version).await;
    }
}

/// The old owner has the key, and could not create it again: the run would fail half-way, and all of its calls would be
/// asked again.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_a_refund_empties_is_charged_in_a_slot_that_moves() {
    let cluster = masters(Version::Redis7);
    let store = follow(&cluster.url(), Duration::from_secs(5));
    let log = Algorithm::SlidingLog { remember: None };
    let limit = Arc::new(limit(100, Unit::Year, log));
    let value = values_on(&cluster, 0, "user", "log", 1).remove(0);
    let [charged, refunded] =
        [Hits::Charge(3), Hits::Refund(3)].map(|hits| charge("user", &value, hits, &limit));
    ask(&store, std::slice::from_ref(&charged)).await;
    let migration = cluster.begin_move(slot_of(&cluster, "user", &value), 1);
    for _ in 0..3 {
        ask(&store, &[refunded.clone(), charged.clone()]).await;
        assert_eq!(left(&store, &charged).await, 97);
    }
    let keys = [0, 1].map(|node: usize| cluster.nodes[node].keys().len());
    assert_eq!(keys, [1, 0], "the calls were decided by the old owner");
    migration.move_keys();
    migration.finish();
    assert_eq!(left(&store, &charged).await, 97);
    cluster.assert_no_key_leaks();
}

/// So it is after a move that was given up. A `sliding_window` needs two keys, of which neither exists.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_stays_half_moved_serves_new_counters_of_every_algorithm() {
    for version in Version::ALL {
        let cluster = masters(version);
        let store = follow(&cluster.url(), Duration::from_secs(5));
        for (round, year) in years(100).into_iter().enumerate() {
            let value = values_on(&cluster, 0, "user", &format!("new{round}"), 1).remove(0);
            let one = [charge("user", &value, Hits::Charge(1), &year)];
            let migration = cluster.begin_move(slot_of(&cluster, "user", &value), 1);
            for _ in 0..3 {
                ask(&store, &one).await;
            }
            migration.move_keys();
            migration.finish();
            assert_eq!(left(&store, &one[0]).await, 97, "{version:?} {year:?}");
        }
        cluster.assert_no_key_leaks();
    }
}

/// A debit whose caller does not wait until its slot has moved is still charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_debit_on_a_slot_that_moves_is_not_lost() {
    let cluster = masters(Version::Redis7);
    let store = follow(&cluster.url(), Duration::from_millis(100));
    let limit = Arc::new(Limit {
        when_denied: WhenDenied::Counted,
        ..limit(100, Unit::Year, Algorithm::SlidingWindow)
    });
    let patient = follow(&cluster.url(), Duration::from_secs(10));
    let one = charge("user", "debit", Hits::Charge(1), &limit);
    ask(&patient, std::slice::from_ref(&one)).await;
    let slot = slot_of(&cluster, "user", "debit");
    let migration = cluster.begin_move(slot, (cluster.node_of(slot) + 1) % 3);
    let call = [one.clone()];
    let charged = tokio::time::timeout(
        Duration::from_millis(100),
        store.charge(&call, crate::support::redis_store::soon()),
    )
    .await;
    assert!(charged.is_err(), "the slot is half moved: {charged:?}");
    migration.move_keys();
    migration.finish();
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while left(&patient, &one).await != 98 {
        assert!(std::time::Instant::now() < deadline, "the debit is lost");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
