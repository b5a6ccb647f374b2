//! Counters in memory: many threads at once, and the maximum number of counters.

use tollkeeper::{
    engine::{hold::Abandoned, ledger::CommitOutcome},
    store::memory::{
        MemoryStore,
        metrics::{MemoryMetrics, MemorySize},
    },
};

use crate::support::{charges::prelude::*, prelude::*, redis_server::nobody};

/// The smallest `--memory-counters-max`.
const COUNTERS_MAX: usize = 1000;

fn bounded(counters: usize) -> MemoryStore {
    of_size(MemorySize { counters, bytes: 1 << 30 })
}

fn of_size(max: MemorySize) -> MemoryStore {
    let metrics = MemoryMetrics::of_meter(&opentelemetry::global::meter("test"));
    MemoryStore::bounded(|| BEGIN, max, metrics)
}

fn algorithms() -> [Algorithm; 5] {
    let bucket = Algorithm::TokenBucket { burst: 10 };
    [
        Algorithm::FixedWindow,
        Algorithm::FirstHitWindow { idle_ms: None },
        LOG,
        Algorithm::SlidingWindow,
        bucket,
    ]
}

fn per(unit: Unit) -> Arc<Limit> {
    Arc::new(limit(10, unit, Algorithm::FixedWindow))
}

/// Charges one hit for each of these users.
fn charge_once(
    store: &MemoryStore,
    users: std::ops::Range<usize>,
    limit: &Arc<Limit>,
    now: Timestamp,
) {
    for user in users {
        store.charge_at(&[charge(&user.to_string(), Hits::Charge(1), limit)], now);
    }
}

/// How many of these users have exactly one hit on their counter.
fn remembered(
    store: &MemoryStore,
    users: std::ops::Range<usize>,
    limit: &Arc<Limit>,
    now: Timestamp,
) -> usize {
    let used = |user: &usize| {
        let no_hits = charge(&user.to_string(), Hits::Check, limit);
        store.charge_at(&[no_hits], now).tallies[0].fit == Fit::Fits { remaining: 9 }
    };
    users.filter(used).count()
}

/// Promises "exactly the limit" and "all or nothing", whatever the order in which calls name their counters; and a call that is denied on one counter
/// charges none.
#[test]
fn threads_that_charge_the_same_counters_in_any_order_lose_no_hit_and_never_deadlock() {
    const CALLS: u64 = 5_000;
    const ADMITTED: u64 = 1_000;
    let scarce = Arc::new(limit(ADMITTED, Unit::Year, Algorithm::FixedWindow));
    let algorithms = [Algorithm::FixedWindow, Algorithm::FirstHitWindow { idle_ms: None }, LOG];
    let slides = [Algorithm::SlidingWindow, Algorithm::TokenBucket { burst: 100_000 }];
    let plenty: Vec<Arc<Limit>> = algorithms
        .into_iter()
        .chain(slides)
        .map(|algorithm| Arc::new(limit(100_000, Unit::Day, algorithm)))
        .collect();
    let (store, admitted) = (bounded(1_000_000), AtomicU64::new(0));
    let call = |dice: &mut Dice| -> Vec<Charge> {
        let mut call: Vec<Charge> = plenty
            .iter()
            .enumerate()
            .map(|(user, limit)| charge(&user.to_string(), Hits::Charge(1), limit))
            .collect();
        call.push(charge("all", Hits::Charge(1), &scarce));
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
                    if tallies.iter().all(|tally| tally.fit != Fit::Over) {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), ADMITTED);
    for (user, limit) in plenty.iter().enumerate() {
        let no_hits = charge(&user.to_string(), Hits::Check, limit);
        let left = Fit::Fits { remaining: 100_000 - ADMITTED };
        assert_eq!(store.charge_at(&[no_hits], BEGIN).tallies[0].fit, left, "{limit:?}");
    }
    assert_eq!(store.counters(), plenty.len() + 1);
}

#[test]
fn exactly_the_maximum_number_of_counters_is_kept() {
    for counters_max in [COUNTERS_MAX, 20_000] {
        let (store, limit) = (bounded(counters_max), per(Unit::Day));
        charge_once(&store, 0..counters_max, &limit, BEGIN);
        assert_eq!(store.counters(), counters_max);
        assert_eq!(
            remembered(&store, 0..counters_max, &limit, BEGIN),
            counters_max,
            "none is evicted"
        );
        thread::scope(|scope| {
            for part in 1..=4 {
                let (store, limit) = (&store, &limit);
                let users = part * counters_max..(part + 1) * counters_max;
                scope.spawn(move || charge_once(store, users, limit, BEGIN));
            }
        });
        assert_eq!(store.counters(), counters_max);
        assert_eq!(remembered(&store, 0..5 * counters_max, &limit, BEGIN), counters_max);
    }
}

#[test]
fn ended_counters_are_evicted_before_live_ones() {
    for ended in [1, 10, 500, COUNTERS_MAX] {
        let (store, day, second) = (bounded(COUNTERS_MAX), per(Unit::Day), per(Unit::Second));
        let live = COUNTERS_MAX - ended;
        charge_once(&store, 0..live, &day, BEGIN);
        charge_once(&store, live..COUNTERS_MAX, &second, BEGIN);
        let later = BEGIN.plus_millis(1000);
        charge_once(&store, live..COUNTERS_MAX, &day, later);
        assert_eq!(remembered(&store, 0..COUNTERS_MAX, &day, later), COUNTERS_MAX);
        assert_eq!(store.counters(), COUNTERS_MAX);
    }
}

#[test]
fn of_equally_used_counters_the_one_that_ends_sooner_is_evicted() {
    let (store, day, minute) = (bounded(COUNTERS_MAX), per(Unit::Day), per(Unit::Minute));
    charge_once(&store, 0..500, &day, BEGIN);
    charge_once(&store, 500..COUNTERS_MAX, &minute, BEGIN);
    charge_once(&store, COUNTERS_MAX..COUNTERS_MAX + 250, &day, BEGIN);
    assert_eq!(remembered(&store, 0..500, &day, BEGIN), 500);
    assert_eq!(remembered(&store, COUNTERS_MAX..COUNTERS_MAX + 250, &day, BEGIN), 250);
    assert_eq!(remembered(&store, 500..COUNTERS_MAX, &minute, BEGIN), 250);
}

/// Charges these hits for each of these users.
fn charge_each(store: &MemoryStore, users: std::ops::Range<usize>, hits: u64, limit: &Arc<Limit>) {
    for user in users {
        store.charge_at(&[charge(&user.to_string(), Hits::Charge(hits), limit)], BEGIN);
    }
}

/// How many of these users have no hit left.
fn exhausted(store: &MemoryStore, users: std::ops::Range<usize>, limit: &Arc<Limit>) -> usize {
    let over = |user: &usize| {
        let no_hits = charge(&user.to_string(), Hits::Check, limit);
        store.charge_at(&[no_hits], BEGIN).tallies[0].fit == Fit::Over
    };
    users.filter(over).count()
}

#[test]
fn exhausted_counters_are_evicted_last_whenever_they_end() {
    let sizes = algorithms().map(|algorithm| (algorithm, COUNTERS_MAX));
    for (algorithm, counters_max) in sizes.into_iter().chain([(Algorithm::FixedWindow, 20_000)]) {
        let store = bounded(counters_max);
        let per = |unit| Arc::new(limit(10, unit, algorithm.clone()));
        let (second, day) = (per(Unit::Second), per(Unit::Day));
        charge_each(&store, 0..50, 10, &second);
        charge_each(&store, 50..100, 10, &day);
        charge_each(&store, 100..3 * counters_max, 1, &day);
        assert_eq!(exhausted(&store, 0..50, &second), 50, "{algorithm:?}");
        assert_eq!(exhausted(&store, 50..100, &day), 50, "{algorithm:?}");
        assert_eq!(store.counters(), counters_max);
    }
}

/// Whatever a table of a shard looks like when the hand comes by.
#[test]
fn a_thousand_times_the_store_in_invented_values_reopens_no_exhausted_limit() {
    let (store, day) = (bounded(COUNTERS_MAX), per(Unit::Day));
    let half = COUNTERS_MAX / 2;
    charge_each(&store, 0..half, 10, &day);
    charge_each(&store, half..1000 * COUNTERS_MAX, 1, &day);
    assert_eq!(exhausted(&store, 0..half, &day), half);
    assert_eq!(store.counters(), COUNTERS_MAX);
}

/// Also beside counters that are much larger, and where each hit of a log adds to its counter.
#[test]
fn counters_take_at_most_the_maximum_size() {
    const BYTES_MAX: usize = 4 << 20;
    let store = of_size(MemorySize { counters: 1_000_000, bytes: BYTES_MAX });
    let (day, log) = (per(Unit::Day), Arc::new(limit(10_000, Unit::Day, LOG)));
    charge_each(&store, 0..50, 10, &day);
    let mut most = 0;
    for user in 50..40_000 {
        let long = format!("{user}{}", "%".repeat(100));
        for (name, limit) in [(&long, &day), (&user.to_string(), &day), (&"log".to_owned(), &log)] {
            if user < 10_000 || !Arc::ptr_eq(limit, &log) {
                store.charge_at(&[charge(name, Hits::Charge(1), limit)], BEGIN);
            }
        }
        most = most.max(store.reporter()().used.bytes);
    }
    // The log is larger than what could be evicted for it where it is.
    assert!((BYTES_MAX / 2..=BYTES_MAX + BYTES_MAX / 8).contains(&most), "{most} bytes");
    assert_eq!(exhausted(&store, 0..50, &day), 50);
    let left = store.charge_at(&[charge("log", Hits::Check, &log)], BEGIN).tallies[0].fit;
    assert_eq!(left, Fit::Fits { remaining: 50 });
}

/// The limit of a commit is not the rule's: it has what a token says.
#[test]
fn a_commit_leaves_its_counter_and_its_record_among_the_last_to_be_evicted() {
    for algorithm in algorithms().into_iter().filter(|algorithm| *algorithm != LOG) {
        let store = bounded(COUNTERS_MAX);
        let of_rule = Arc::new(limit(10, Unit::Day, algorithm));
        let hold = Some(Arc::new(HoldPolicy::new(600_000)));
        let of_token = Arc::new(Limit { requests_per_unit: 0, hold, ..Limit::clone(&of_rule) });
        let commit = |used| {
            let deadline = BEGIN.plus_millis(600_000);
            let id = HoldId::from_caller(b"id");
            let hold = HoldAction::Commit { id, held: 1, used, made: BEGIN, deadline };
            let charge = charge("a", Hits::Commit, &of_token);
            store.charge_at(&[Charge { hold: Some(hold), ..charge }], BEGIN).tallies[0].fit
        };
        charge_each(&store, 5..COUNTERS_MAX / 2, 3, &of_rule);
        store.charge_at(&[charge("a", Hits::Charge(1), &of_rule)], BEGIN);
        assert_eq!(commit(10), Fit::Commit(CommitOutcome::Applied));
        charge_each(&store, COUNTERS_MAX..5 * COUNTERS_MAX, 8, &of_rule);
        let after = store.charge_at(&[charge("a", Hits::Check, &of_rule)], BEGIN).tallies[0].fit;
        assert_eq!(after, Fit::Over, "{:?}", of_rule.algorithm);
        assert_eq!(commit(0), Fit::Commit(CommitOutcome::Repeated), "{:?}", of_rule.algorithm);
    }
}

/// Takes without an id that are never committed.
#[test]
fn takes_that_are_open_on_two_counters_take_a_bounded_amount_of_memory() {
    let store = of_size(MemorySize { counters: 1_000_000, bytes: 1 << 20 });
    let day = per(Unit::Day);
    let take = |user: u64| {
        let id = HoldId::from_caller(&user.to_be_bytes());
        let hold = HoldAction::Open {
            id,
            estimate: 1,
            lifetime_ms: 86_400_000,
            abandoned: Abandoned::Release,
        };
        let counters = [user.to_string(), format!("{user}-")];
        let open =
            |name: &String| Charge { hold: Some(hold), ..charge(name, Hits::Charge(1), &day) };
        store.charge_at(&counters.each_ref().map(open), BEGIN);
    };
    for user in 0..20_000 {
        take(user);
        let MemorySize { bytes, .. } = store.reporter()().used;
        assert!(bytes <= (1 << 20) + 4096, "{user}: {bytes} bytes");
    }
}

#[test]
fn the_counter_that_has_used_least_of_its_limit_is_evicted_first() {
    let store = bounded(COUNTERS_MAX);
    let (minute, day) = (per(Unit::Minute), per(Unit::Day));
    let large = Arc::new(limit(1_000_000, Unit::Day, Algorithm::FixedWindow));
    charge_each(&store, 0..50, 3, &minute);
    // Counters with two hits of ten evict only counters that have used less than a fifth of their limit.
    charge_each(&store, 100..2 * COUNTERS_MAX, 2, &day);
    charge_each(&store, 0..50, 7, &minute);
    assert_eq!(exhausted(&store, 0..50, &minute), 50);

    // Of limits of a million, a counter with one hit is evicted before one with two.
    let store = bounded(COUNTERS_MAX);
    let large_minute = Arc::new(limit(1_000_000, Unit::Minute, Algorithm::FixedWindow));
    charge_each(&store, 0..50, 2, &large_minute);
    charge_each(&store, 100..2 * COUNTERS_MAX, 1, &large);
    charge_each(&store, 0..50, 999_998, &large_minute);
    assert_eq!(exhausted(&store, 0..50, &large_minute), 50);
}

/// A limit of 0 denies every call without its counter.
#[test]
fn counters_of_a_limit_of_0_evict_no_others() {
    let store = bounded(COUNTERS_MAX);
    let (day, banned) = (per(Unit::Day), limit(0, Unit::Year, Algorithm::FixedWindow));
    let banned = Arc::new(Limit { when_denied: WhenDenied::Counted, ..banned });
    charge_each(&store, 0..500, 5, &day);
    charge_each(&store, 500..3 * COUNTERS_MAX, 1, &banned);
    charge_each(&store, 0..500, 5, &day);
    assert_eq!(exhausted(&store, 0..500, &day), 500);
}

#[test]
fn ended_counters_are_swept_and_live_ones_are_kept() {
    let (store, day, second) = (bounded(1_000_000), per(Unit::Day), per(Unit::Second));
    charge_once(&store, 0..3000, &day, BEGIN);
    for number in 0..100 {
        charge_once(&store, 0..1000, &second, BEGIN.plus_millis(1000 * number));
    }
    assert!(store.counters() < 3000 + 3 * 1000, "{} counters", store.counters());
    assert_eq!(remembered(&store, 0..3000, &day, BEGIN.plus_millis(100_000)), 3000);
}

/// Also while memory stands in for Redis.
#[tokio::test]
async fn made_up_values_reopen_no_exhausted_limit() {
    let rules = "
domain: shop
descriptors:
  - { key: address, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: account, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }
";
    let flags = ["--memory-counters-max", "1000", "--on-store-failure", "local"];
    let flags = &[&flags[..], &["--decision-budget", "50ms"]].concat();
    let gone = nobody();
    for store in ["memory://", &format!("redis://{gone}")] {
        let service = Service::with(rules).on(store).flags(flags).start();
        let mut client = service.client().await;
        let mut ask = async |descriptors| {
            let answer = client.should_rate_limit(request("shop", descriptors)).await.unwrap();
            spell(&answer.into_inner())
        };
        let exhausted = || hits(descriptor(&[("account", "x")]), 5);
        assert_eq!(ask(vec![exhausted()]).await, "OK: OK 0/5 DAY");
        // If a minute ends meanwhile, the next round starts with other values.
        for round in 0..3 {
            let address = descriptor(&[("address", &format!("x{round}"))]);
            let begin = minute();
            ask(vec![hits(address.clone(), 5)]).await;
            for first in (0..1050).step_by(50) {
                let user = |number| descriptor(&[("user", &format!("u{round}-{number}"))]);
                ask((first..first + 50).map(user).collect()).await;
            }
            let address = ask(vec![address]).await;
            if begin == minute() {
                assert_eq!(address, "OVER_LIMIT: OVER_LIMIT 0/5 MINUTE", "{store}");
                break;
            }
            assert!(round < 2, "a minute ended in each of three rounds");
        }
        let account = ask(vec![descriptor(&[("account", "x")])]).await;
        assert_eq!(account, "OVER_LIMIT: OVER_LIMIT 0/5 DAY", "{store}");
    }
}

/// The current minute of the clock.
fn minute() -> u64 {
    tollkeeper::store::system_clock().as_secs() / 60
}

#[tokio::test]
async fn more_values_than_counters_cause_no_error_and_are_reported() {
    let service = Service::shop().flags(&["--memory-counters-max", "1000"]).start();
    let mut client = service.client().await;
    let mut ask = async |users: std::ops::Range<usize>| {
        for first in users.step_by(50) {
            let user = |number: usize| descriptor(&[("user", &format!("u{number}"))]);
            let call = request("shop", (first..first + 50).map(user).collect());
            let answer = client.should_rate_limit(call).await.unwrap().into_inner();
            assert!(spell(&answer).starts_with("OK: OK 9/10 YEAR"), "{}", spell(&answer));
        }
    };
    let evicted = || service.metric("ratelimit_counters_evicted_total ");
    ask(0..1000).await;
    assert_eq!(evicted(), 0.0);
    assert!(!service.log().contains("--memory-counters-max"), "{}", service.log());
    ask(1000..1500).await;
    assert_eq!(evicted(), 500.0);
    assert_eq!(service.log().matches("--memory-counters-max").count(), 1, "logged once a minute");
}
