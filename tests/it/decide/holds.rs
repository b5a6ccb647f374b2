//! Holds, on every store: takes and commits in all forms.
//!
//! `steps` compares a naive model with memory, with the scripts in a Redis and with those in a Cluster over random calls, on
//! simulated time. Here is what its steps have shown.

mod orders;
mod steps;
mod table;

use std::sync::Arc;

use tollkeeper::{
    engine::{
        hold::{Abandoned, Estimate},
        ledger::CommitOutcome,
    },
    store::Clear,
};

use crate::support::{
    backends::*,
    charges::{left, prelude::*},
    model::holds::HoldModel,
};

/// How long the holds of these tests stay open.
const LIFETIME_MS: u64 = 5000;

fn holding(by: HoldBy, limit: Limit) -> Arc<Limit> {
    let policy = HoldPolicy::new(LIFETIME_MS);
    let estimate = Estimate { default: Some(4), ..policy.estimate };
    let hold = Some(Arc::new(HoldPolicy { by, estimate, ..policy }));
    Arc::new(Limit { hold, ..limit })
}

fn acting(hits: Hits, limit: &Arc<Limit>, hold: HoldAction) -> Charge {
    Charge { hold: Some(hold), ..charge("a", hits, limit) }
}

/// The commit of a take that was made at [`BEGIN`].
fn commit(id: HoldId, held: u64, used: u64, limit: &Arc<Limit>) -> Charge {
    let deadline = BEGIN.plus_millis(LIFETIME_MS);
    acting(Hits::Commit, limit, HoldAction::Commit { id, held, used, made: BEGIN, deadline })
}

fn at(ms: u64) -> Timestamp {
    BEGIN.plus_millis(ms)
}

/// Runs a scenario on the model, on memory and on a Redis.
fn on_each_backend(scenario: impl Fn(&mut dyn Backend)) {
    scenario(&mut HoldModel::default());
    scenario(&mut memory());
    let mut redis = ScriptInRedis::start();
    scenario(&mut redis);
    redis.redis.assert_no_key_leaks();
}

#[test]
fn reading_a_counter_charges_no_hold_whose_time_has_passed() {
    let window = Algorithm::FirstHitWindow { idle_ms: None };
    let limit = holding(HoldBy::Counter, limit(10, Unit::Minute, window));
    let (lifetime_ms, abandoned) = (LIFETIME_MS, Abandoned::Keep);
    let open = HoldAction::Open { id: HoldId::new(1), estimate: 4, lifetime_ms, abandoned };
    let take = acting(Hits::Check, &limit, open);
    on_each_backend(|backend| {
        backend.charge(std::slice::from_ref(&take), BEGIN);
        let read = backend.read(&take.counter, Clear::No, at(6000));
        assert_eq!((read.used, read.held), (4, 0), "on {}", backend.name());
        // The window opened at the deadline, and neither at the reading nor at the next call.
        let check = backend.charge(std::slice::from_ref(&take), at(9000));
        assert_eq!(check[0].reset.as_millis(), 56_000, "on {}", backend.name());
    });
}

#[test]
fn reading_calls_in_flight_while_the_clock_is_set_back_changes_none() {
    let in_flight = Algorithm::InFlight { remember: None };
    let limit = holding(HoldBy::Token, limit(3, Unit::Second, in_flight));
    let occupy = HoldAction::Occupy { id: HoldId::new(1), lifetime_ms: LIFETIME_MS };
    let take = acting(Hits::Charge(1), &limit, occupy);
    on_each_backend(|backend| {
        backend.charge(std::slice::from_ref(&take), at(2000));
        let read = backend.read(&take.counter, Clear::No, at(1000));
        assert_eq!((read.used, read.reset.as_millis()), (1, 5000), "on {}", backend.name());
        let read = backend.read(&take.counter, Clear::No, at(3000));
        assert_eq!((read.used, read.reset.as_millis()), (1, 4000), "on {}", backend.name());
    });
}

/// A take by counter with this estimate.
fn open(number: u128, estimate: u64, limit: &Arc<Limit>) -> Charge {
    let lifetime_ms = limit.hold.as_ref().unwrap().lifetime_ms;
    let abandoned = Abandoned::Keep;
    let id = HoldId::new(number);
    acting(Hits::Check, limit, HoldAction::Open { id, estimate, lifetime_ms, abandoned })
}

fn living(lifetime_ms: u64, limit: &Arc<Limit>) -> Arc<Limit> {
    let policy = HoldPolicy { lifetime_ms, ..HoldPolicy::clone(limit.hold.as_ref().unwrap()) };
    Arc::new(Limit { hold: Some(Arc::new(policy)), ..Limit::clone(limit) })
}

#[test]
fn the_estimate_of_a_later_call_changes_no_open_hold() {
    let limit = holding(HoldBy::Counter, limit(100, Unit::Hour, Algorithm::FixedWindow));
    on_each_backend(|backend| {
        for number in 0..2 {
            backend.charge(&[open(number, 50, &limit)], BEGIN);
        }
        let later = backend.charge(&[open(2, 1, &limit)], BEGIN);
        assert_eq!(left(&later[0]), None, "on {}", backend.name());
        let counter = open(0, 1, &limit).counter;
        let read = backend.read(&counter, Clear::No, BEGIN);
        assert_eq!((read.held, read.open_holds), (100, 2), "on {}", backend.name());
        // Each is charged when it is abandoned.
        let read = backend.read(&counter, Clear::No, at(LIFETIME_MS));
        assert_eq!((read.used, read.held), (100, 0), "on {}", backend.name());
    });
}

#[test]
fn a_changed_lifetime_moves_no_deadline() {
    let in_flight = Algorithm::InFlight { remember: None };
    let before = holding(HoldBy::Token, limit(2, Unit::Second, in_flight));
    let after = living(600_000, &before);
    let occupy = |number, limit: &Arc<Limit>| {
        let lifetime_ms = limit.hold.as_ref().unwrap().lifetime_ms;
        let hold = HoldAction::Occupy { id: HoldId::new(number), lifetime_ms };
        acting(Hits::Charge(1), limit, hold)
    };
    on_each_backend(|backend| {
        backend.charge(&[occupy(1, &before)], BEGIN);
        backend.charge(&[occupy(2, &after)], BEGIN);
        // A token of before the reload, and a replica that has not reloaded.
        backend.charge(&[commit(HoldId::new(1), 1, 1, &before)], at(1));
        backend.charge(&[charge("a", Hits::Check, &before)], at(2));
        let read = backend.read(&occupy(2, &after).counter, Clear::No, at(2 * LIFETIME_MS));
        assert_eq!((read.used, read.reset.as_millis()), (1, 590_000), "on {}", backend.name());
    });
}

#[test]
fn what_began_while_the_clock_was_ahead_begins_now() {
    let hour_ahead = at(3_600_000);
    let routes = holding(HoldBy::Counter, limit(10, Unit::Hour, Algorithm::FixedWindow));
    let slots =
        holding(HoldBy::Token, limit(1, Unit::Second, Algorithm::InFlight { remember: None }));
    let occupy = HoldAction::Occupy { id: HoldId::new(1), lifetime_ms: LIFETIME_MS };
    let take = [open(1, 10, &routes), acting(Hits::Charge(1), &slots, occupy)];
    on_each_backend(|backend| {
        backend.charge(&take, hour_ahead);
        let denied = backend.charge(&[open(2, 10, &routes)], BEGIN);
        assert_eq!(left(&denied[0]), None, "on {}", backend.name());
        let denied = backend.charge(&[charge("a", Hits::Check, &slots)], BEGIN);
        assert_eq!(denied[0].reset.as_millis(), LIFETIME_MS.into(), "on {}", backend.name());
        let read = |backend: &mut dyn Backend, index: usize| {
            let state = backend.read(&take[index].counter, Clear::No, at(LIFETIME_MS));
            (state.used, state.held)
        };
        assert_eq!(read(backend, 0), (10, 0), "on {}", backend.name());
        assert_eq!(read(backend, 1), (0, 0), "on {}", backend.name());
    });
}

#[test]
fn a_ban_that_began_while_the_clock_was_ahead_begins_now() {
    let ban = Some(HoldAction::Ban { for_ms: 3000 });
    let limit =
        Arc::new(Limit { ban_ms: Some(3000), ..limit(1, Unit::Year, Algorithm::FixedWindow) });
    let hit = |hits| [Charge { hold: ban, ..charge("a", hits, &limit) }];
    let mut redis = ScriptInRedis::start();
    for backend in [&mut memory() as &mut dyn Backend, &mut redis] {
        backend.charge(&hit(Hits::Charge(2)), at(3_600_000));
        let reset_ms = |backend: &mut dyn Backend, ms| {
            backend.charge(&hit(Hits::Check), at(ms))[0].reset.as_millis()
        };
        assert_eq!(reset_ms(backend, 0), 3000, "on {}", backend.name());
        assert_eq!(reset_ms(backend, 1000), 2000, "on {}", backend.name());
        let after = backend.charge(&hit(Hits::Check), at(3000));
        assert_eq!(left(&after[0]), Some(1), "on {}", backend.name());
    }
}

#[test]
fn a_bucket_refills_from_the_deadline_of_an_abandoned_hold_on() {
    let bucket = Algorithm::TokenBucket { burst: 20 };
    let limit = holding(HoldBy::Counter, limit(20, Unit::Hour, bucket));
    on_each_backend(|backend| {
        backend.charge(&[open(1, 5, &limit)], BEGIN);
        let state = |backend: &mut dyn Backend, ms| {
            let state = backend.read(&open(1, 5, &limit).counter, Clear::No, at(ms));
            (state.used, state.remaining)
        };
        assert_eq!(state(backend, LIFETIME_MS), (5, 15), "on {}", backend.name());
        assert_eq!(state(backend, LIFETIME_MS + 180_000), (4, 16), "on {}", backend.name());
        assert_eq!(state(backend, LIFETIME_MS + 900_000), (0, 20), "on {}", backend.name());
    });
}

#[test]
fn debits_and_refunds_report_what_open_holds_leave() {
    let limit = holding(HoldBy::Counter, limit(100, Unit::Hour, Algorithm::FixedWindow));
    let debited =
        Arc::new(Limit { hold: None, when_denied: WhenDenied::Counted, ..Limit::clone(&limit) });
    let beside = HoldAction::Beside { abandoned: Abandoned::Keep };
    on_each_backend(|backend| {
        backend.charge(&[open(1, 10, &limit)], BEGIN);
        let debit = backend.charge(&[acting(Hits::Charge(4), &debited, beside)], BEGIN);
        assert_eq!(left(&debit[0]), Some(86), "on {}", backend.name());
        let debit = backend.charge(&[acting(Hits::Charge(87), &debited, beside)], BEGIN);
        assert_eq!(left(&debit[0]), None, "on {}", backend.name());
        let refund = backend.charge(&[acting(Hits::Refund(90), &limit, beside)], BEGIN);
        assert_eq!(left(&refund[0]), Some(89), "on {}", backend.name());
        // What has been abandoned is charged before it is given back.
        let refund = backend.charge(&[acting(Hits::Refund(5), &limit, beside)], at(LIFETIME_MS));
        assert_eq!(left(&refund[0]), Some(94), "on {}", backend.name());
    });
}

#[test]
fn limits_of_one_bucket_each_refill_it_at_their_own_rate_in_one_call() {
    let bucket = || Algorithm::TokenBucket { burst: 60 };
    let before = holding(HoldBy::Token, limit(60, Unit::Minute, bucket()));
    let after = holding(HoldBy::Token, limit(6, Unit::Minute, bucket()));
    on_each_backend(|backend| {
        backend.charge(&[charge("a", Hits::Charge(60), &before)], BEGIN);
        // A commit has the limit of its take, though the rule has changed.
        let call = [commit(HoldId::new(1), 1, 1, &before), charge("a", Hits::Check, &after)];
        let tallies = backend.charge(&call, at(30_000));
        assert_eq!(tallies[0].reset.as_millis(), 30_000, "on {}", backend.name());
        assert_eq!(left(&tallies[1]), Some(3), "on {}", backend.name());
    });
}

#[test]
fn a_commit_of_less_leaves_a_bucket_as_if_only_that_had_been_taken() {
    let bucket = Algorithm::TokenBucket { burst: 1000 };
    let limit = holding(HoldBy::Token, limit(1000, Unit::Second, bucket));
    let take = charge("a", Hits::Charge(1000), &limit);
    for (used, meanwhile, left_then) in
        [(500, 0, 1000), (800, 0, 700), (0, 0, 1000), (500, 100, 900)]
    {
        on_each_backend(|backend| {
            backend.clear();
            backend.charge(std::slice::from_ref(&take), BEGIN);
            if meanwhile > 0 {
                backend.charge(&[charge("a", Hits::Charge(meanwhile), &limit)], at(500));
            }
            backend.charge(&[commit(HoldId::new(1), 1000, used, &limit)], at(500));
            let read = backend.read(&take.counter, Clear::No, at(500));
            let case = format!("{used} used, {meanwhile} by others, on {}", backend.name());
            assert_eq!(read.remaining, left_then, "{case}");
        });
    }
}

#[test]
fn a_take_that_charges_a_counter_twice_is_committed_as_one() {
    let limit = holding(HoldBy::Id, limit(100, Unit::Hour, Algorithm::FixedWindow));
    let by_id = |hits, used| {
        let (id, lifetime_ms) = (HoldId::new(1), LIFETIME_MS);
        acting(
            Hits::Charge(hits),
            &limit,
            HoldAction::ById { id, used, is_end: false, lifetime_ms },
        )
    };
    on_each_backend(|backend| {
        let taken = backend.charge(&[by_id(30, None), by_id(40, None)], BEGIN);
        assert_eq!(left(&taken[0]), Some(30), "on {}", backend.name());
        let ended = backend.charge(&[by_id(30, Some(7)), by_id(40, Some(7))], at(1));
        assert!(ended.iter().all(|tally| matches!(tally.fit, Fit::Commit(_))));
        let used = backend.read(&by_id(1, None).counter, Clear::No, at(2)).used;
        assert_eq!(used, 7, "on {}", backend.name());
    });
}

#[test]
fn a_commit_whose_deadline_no_hold_can_have_is_late() {
    let fixed = holding(HoldBy::Token, limit(100, Unit::Hour, Algorithm::FixedWindow));
    let places =
        holding(HoldBy::Token, limit(100, Unit::Second, Algorithm::InFlight { remember: None }));
    on_each_backend(|backend| {
        for limit in [&fixed, &places] {
            for ahead_ms in [HoldPolicy::AHEAD_MS_MAX + 1, 9_000_000_000_000_000, u64::MAX] {
                let (id, made, deadline) = (HoldId::new(1), BEGIN, BEGIN.plus_millis(ahead_ms));
                let hold = HoldAction::Commit { id, held: 1, used: 9, made, deadline };
                let tallies = backend.charge(&[acting(Hits::Commit, limit, hold)], BEGIN);
                let late = Fit::Commit(CommitOutcome::Late);
                assert_eq!(tallies[0].fit, late, "{ahead_ms} on {}", backend.name());
            }
            assert_eq!(
                backend.read(&charge("a", Hits::Check, limit).counter, Clear::No, at(1)).used,
                0
            );
        }
    });
}

#[test]
fn a_reset_under_rules_without_holds_leaves_nothing_to_give_back() {
    let plain = Arc::new(limit(100, Unit::Hour, Algorithm::FixedWindow));
    let holding = holding(HoldBy::Token, Limit::clone(&plain));
    on_each_backend(|backend| {
        backend.charge(&[charge("a", Hits::Charge(4), &holding)], BEGIN);
        backend.read(&charge("a", Hits::Check, &plain).counter, Clear::Yes, at(1));
        backend.charge(&[charge("a", Hits::Charge(9), &holding)], at(2));
        backend.charge(&[commit(HoldId::new(1), 4, 0, &holding)], at(3));
        let used = backend.read(&charge("a", Hits::Check, &holding).counter, Clear::No, at(4)).used;
        assert_eq!(used, 9, "on {}", backend.name());
    });
}

#[test]
fn the_end_of_the_newest_call_shows_none_that_ends_later_than_one_that_begins_now() {
    let places = Algorithm::InFlight { remember: None };
    let places = holding(HoldBy::Token, limit(100, Unit::Second, places));
    let occupies = |id, lifetime_ms| {
        let occupy = HoldAction::Occupy { id: HoldId::new(id), lifetime_ms };
        [acting(Hits::Charge(1), &places, occupy)]
    };
    on_each_backend(|backend| {
        backend.charge(&occupies(2, 7500), at(500));
        backend.charge(&occupies(1, 5000), at(1000));
        let (id, made, deadline) = (HoldId::new(2), at(500), at(8000));
        let hold = HoldAction::Commit { id, held: 1, used: 0, made, deadline };
        // The clock is set back by 200 ms.
        let take = HoldAction::Occupy { id: HoldId::new(3), lifetime_ms: 5000 };
        let call = [acting(Hits::Commit, &places, hold), acting(Hits::Charge(100), &places, take)];
        let tallies = backend.charge(&call, at(800));
        assert_eq!(tallies[1].fit, Fit::Over);
        assert!(
            tallies.iter().all(|tally| tally.reset.as_millis() == 5000),
            "on {}",
            backend.name()
        );
    });
}

#[test]
fn the_end_of_a_take_sets_back_what_a_clock_ahead_has_left_on_all_its_counters() {
    let bucket =
        |unit| holding(HoldBy::Counter, limit(13, unit, Algorithm::TokenBucket { burst: 20 }));
    let [second, hour] = [Unit::Second, Unit::Hour].map(bucket);
    let abandoned = Abandoned::Keep;
    let open = |id, lifetime_ms, limit| {
        let open = HoldAction::Open { id: HoldId::new(id), estimate: 8, lifetime_ms, abandoned };
        acting(Hits::Check, limit, open)
    };
    on_each_backend(|backend| {
        backend.charge(&[open(1, 1500, &second), open(1, 90_000, &hour)], BEGIN);
        backend.charge(&[open(2, 1500, &second)], at(1763));
        // The clock is set back, and the hold on the other counter ends.
        let end = acting(Hits::Charge(1), &hour, HoldAction::EndOldest { abandoned });
        backend.charge(&[end], at(1627));
        // The second hold began then at the latest: it was charged after 3.127 s, and the bucket is full again.
        let beside = acting(Hits::Check, &second, HoldAction::Beside { abandoned });
        let tallies = backend.charge(&[beside], at(3787));
        assert_eq!(tallies[0].fit, Fit::Fits { remaining: 20 }, "on {}", backend.name());
    });
}

#[test]
fn an_abandoned_estimate_may_be_charged_until_its_bucket_would_be_full_again_and_a_window_longer() {
    let bucket = limit(1, Unit::Second, Algorithm::TokenBucket { burst: 20 });
    let limit = holding(HoldBy::Counter, bucket);
    assert_eq!(limit.terms(BEGIN).counts_ms, 21_000);
    let (id, lifetime_ms, abandoned) = (HoldId::new(1), 1500, Abandoned::Keep);
    let open = HoldAction::Open { id, estimate: 20, lifetime_ms, abandoned };
    let mut redis = ScriptInRedis::start();
    redis.charge(&[acting(Hits::Check, &limit, open)], BEGIN);
    let keys: Vec<String> = redis.redis.query(&["KEYS", "tk1:*"]);
    let [holds] = &keys[..] else { panic!("{keys:?}") };
    let ends: u64 = redis.redis.query(&["PEXPIRETIME", holds]);
    assert_eq!(ends, at(1500 + 21_000).as_millis());
}
