//! Counters in memory: many threads at once, and no more of them than there may be.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tollkeeper::{
    engine::{
        ledger::{Charge, Verdict},
        request::Hits,
        rule::{Algorithm, Limit, Unit},
        time::Timestamp,
    },
    store::memory::MemoryStore,
    telemetry::MemoryMetrics,
};

use crate::{
    algorithms::{BEGIN, LOG, charge, limit},
    steps::Dice,
    support::service::{Options, Service, descriptor, request, spell},
};

/// The least that may be set.
const COUNTERS_MAX: usize = 1000;

fn bounded(counters_max: usize) -> MemoryStore {
    let metrics = MemoryMetrics::new(&opentelemetry::global::meter("test"));
    MemoryStore::bounded(|| BEGIN, counters_max, metrics)
}

fn per(unit: Unit) -> Arc<Limit> {
    Arc::new(limit(10, unit, Algorithm::FixedWindow))
}

/// Takes one hit for each of these users.
fn take(store: &MemoryStore, users: std::ops::Range<usize>, limit: &Arc<Limit>, now: Timestamp) {
    for user in users {
        store.charge_at(&[charge(&user.to_string(), Hits::Take(1), limit)], now);
    }
}

/// How many of these users have a hit to their name.
fn remembered(
    store: &MemoryStore,
    users: std::ops::Range<usize>,
    limit: &Arc<Limit>,
    now: Timestamp,
) -> usize {
    let used = |user: &usize| {
        let look = charge(&user.to_string(), Hits::Look, limit);
        store.charge_at(&[look], now).tallies[0].verdict == Verdict::Fits { remaining: 9 }
    };
    users.filter(used).count()
}

/// P1, P5: whatever the order in which calls name their counters, nobody waits for ever, no hit is
/// lost, and a call that is denied on one counter has charged none.
#[test]
fn threads_that_charge_the_same_counters_in_any_order_lose_no_hit_and_end() {
    const CALLS: u64 = 5_000;
    const ADMITTED: u32 = 1_000;
    let scarce = Arc::new(limit(ADMITTED, Unit::Year, Algorithm::FixedWindow));
    let algorithms = [Algorithm::FixedWindow, Algorithm::FirstHitWindow, LOG];
    let slides = [Algorithm::SlidingWindow, Algorithm::TokenBucket { burst: 100_000 }];
    let plenty: Vec<Arc<Limit>> = algorithms
        .into_iter()
        .chain(slides)
        .map(|it| Arc::new(limit(100_000, Unit::Day, it)))
        .collect();
    let (store, admitted) = (bounded(1_000_000), AtomicU64::new(0));
    let call = |dice: &mut Dice| -> Vec<Charge> {
        let mut call: Vec<Charge> = plenty
            .iter()
            .enumerate()
            .map(|(user, it)| charge(&user.to_string(), Hits::Take(1), it))
            .collect();
        call.push(charge("all", Hits::Take(1), &scarce));
        (1..call.len()).for_each(|last| call.swap(last, dice.below(last as u64 + 1) as usize));
        call
    };
    thread::scope(|scope| {
        for seed in 1..=8 {
            let (store, admitted, call) = (&store, &admitted, &call);
            scope.spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..CALLS {
                    let tallies = store.charge_at(&call(&mut dice), BEGIN).tallies;
                    if tallies.iter().all(|tally| tally.verdict != Verdict::Over) {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), u64::from(ADMITTED));
    for (user, limit) in plenty.iter().enumerate() {
        let look = charge(&user.to_string(), Hits::Look, limit);
        let left = Verdict::Fits { remaining: 100_000 - ADMITTED };
        assert_eq!(store.charge_at(&[look], BEGIN).tallies[0].verdict, left, "{limit:?}");
    }
    assert_eq!(store.counters(), plenty.len() + 1);
}

#[test]
fn so_many_counters_are_kept_and_no_more_whoever_adds_them() {
    for counters_max in [COUNTERS_MAX, 20_000] {
        let (store, limit) = (bounded(counters_max), per(Unit::Day));
        take(&store, 0..counters_max, &limit, BEGIN);
        assert_eq!(store.counters(), counters_max);
        assert_eq!(
            remembered(&store, 0..counters_max, &limit, BEGIN),
            counters_max,
            "none has gone"
        );
        thread::scope(|scope| {
            for part in 1..=4 {
                let (store, limit) = (&store, &limit);
                let users = part * counters_max..(part + 1) * counters_max;
                scope.spawn(move || take(store, users, limit, BEGIN));
            }
        });
        assert_eq!(store.counters(), counters_max);
        assert_eq!(remembered(&store, 0..5 * counters_max, &limit, BEGIN), counters_max);
    }
}

#[test]
fn what_has_ended_makes_room_before_a_live_counter_goes() {
    for ended in [1, 10, 500, COUNTERS_MAX] {
        let (store, day, second) = (bounded(COUNTERS_MAX), per(Unit::Day), per(Unit::Second));
        let live = COUNTERS_MAX - ended;
        take(&store, 0..live, &day, BEGIN);
        take(&store, live..COUNTERS_MAX, &second, BEGIN);
        let later = BEGIN.plus_millis(1000);
        take(&store, live..COUNTERS_MAX, &day, later);
        assert_eq!(remembered(&store, 0..COUNTERS_MAX, &day, later), COUNTERS_MAX);
        assert_eq!(store.counters(), COUNTERS_MAX);
    }
}

#[test]
fn where_a_live_counter_must_go_it_is_one_that_ends_soon() {
    let (store, day, minute) = (bounded(COUNTERS_MAX), per(Unit::Day), per(Unit::Minute));
    take(&store, 0..500, &day, BEGIN);
    take(&store, 500..COUNTERS_MAX, &minute, BEGIN);
    take(&store, COUNTERS_MAX..COUNTERS_MAX + 250, &day, BEGIN);
    assert_eq!(remembered(&store, 0..500, &day, BEGIN), 500);
    assert_eq!(remembered(&store, COUNTERS_MAX..COUNTERS_MAX + 250, &day, BEGIN), 250);
    assert_eq!(remembered(&store, 500..COUNTERS_MAX, &minute, BEGIN), 250);
}

#[test]
fn what_has_ended_is_swept_and_what_lives_is_not() {
    let (store, day, second) = (bounded(1_000_000), per(Unit::Day), per(Unit::Second));
    take(&store, 0..3000, &day, BEGIN);
    for number in 0..100 {
        take(&store, 0..1000, &second, BEGIN.plus_millis(1000 * number));
    }
    assert!(store.counters() < 3000 + 3 * 1000, "{} are kept", store.counters());
    assert_eq!(remembered(&store, 0..3000, &day, BEGIN.plus_millis(100_000)), 3000);
}

#[tokio::test]
async fn values_without_end_cause_no_error_and_are_told() {
    let flags = &["--memory-counters-max", "1000"];
    let service = Service::start(Options { flags, ..Options::default() });
    let mut client = service.client().await;
    let mut ask = async |users: std::ops::Range<usize>| {
        for first in users.step_by(50) {
            let user = |number: usize| descriptor(&[("user", &format!("u{number}"))]);
            let call = request("shop", (first..first + 50).map(user).collect());
            let answer = client.should_rate_limit(call).await.unwrap().into_inner();
            assert!(spell(&answer).starts_with("OK: OK 9/10 YEAR"), "{}", spell(&answer));
        }
    };
    let evicted = |service: &Service| {
        let metrics = service.get("/metrics");
        let line =
            metrics.lines().find_map(|it| it.strip_prefix("ratelimit_counters_evicted_total "));
        line.map(str::to_owned)
    };
    ask(0..1000).await;
    assert_eq!(evicted(&service), None);
    assert!(!service.log().contains("--memory-counters-max"), "{}", service.log());
    ask(1000..1500).await;
    assert_eq!(evicted(&service).as_deref(), Some("500"));
    assert_eq!(service.log().matches("--memory-counters-max").count(), 1, "said once a minute");
}
