//! Holds, on every store: takes and commits in all forms.
//!
//! `steps` compares a naive model with memory, with the scripts in a Redis and with those in a Cluster over random calls, on
//! simulated time. `timelines/holds.txt` has what its steps have shown, and here is what is not said by a line of it.

mod orders;
mod steps;
mod table;

use std::sync::Arc;

use tollkeeper::{
    engine::{hold::Abandoned, ledger::CommitOutcome},
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
    let hold = Some(Arc::new(HoldPolicy { by, ..HoldPolicy::new(LIFETIME_MS) }));
    Arc::new(Limit { hold, ..limit })
}

fn acting(hits: Hits, limit: &Arc<Limit>, hold: HoldAction) -> Charge {
    Charge { hold: Some(hold), ..charge("a", hits, limit) }
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
