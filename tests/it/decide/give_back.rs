//! Give-backs: what a reservation charged is taken back, on every algorithm, and never more. Their timelines are
//! in `algorithms.rs`, and random ones in `steps.rs`.

use tollkeeper::{
    engine::{ledger::GiveBack, rule::FailureMode},
    store::{
        memory::MemoryStore,
        redis::script::{KeyDeclaration, ScriptVerdict},
    },
};

use crate::support::{
    backends::*,
    charges::{left, one_of_each, prelude::*},
    prelude::*,
};

/// An entry is found among the newest 257 only, so that a give-back rewrites no more of a log.
#[test]
fn a_give_back_looks_for_its_entry_among_the_newest_257_of_a_log() {
    let limit = Arc::new(limit(1000, Unit::Minute, LOG));
    let mut redis = ScriptInRedis::start();
    let backends: [&mut dyn Backend; 2] = [&mut memory(), &mut redis];
    for backend in backends {
        for ms in 0..300 {
            backend.charge(&[charge("a", Hits::Charge(2), &limit)], BEGIN.plus_millis(ms));
        }
        let mut used = 600;
        for (made, found) in [(42, false), (43, true), (299, true), (44, true), (42, true)] {
            let Charge { counter, caller, .. } = charge("a", Hits::Check, &limit);
            let give_back =
                GiveBack { counter, hits: 2, made: BEGIN.plus_millis(made), caller, hold: None };
            let tally = backend.give_back(&give_back, BEGIN.plus_millis(300)).unwrap();
            used -= if found { 2 } else { 0 };
            assert_eq!(left(&tally), Some(1000 - used), "{}: {made}", backend.name());
            let [no_hits] =
                backend.charge(&[charge("a", Hits::Check, &limit)], BEGIN.plus_millis(300))[..]
            else {
                panic!("one tally");
            };
            assert_eq!(no_hits, tally, "{}: {made}", backend.name());
        }
        let later = BEGIN.plus_millis(60_250);
        let [no_hits] = backend.charge(&[charge("a", Hits::Check, &limit)], later)[..] else {
            panic!("one tally");
        };
        // The entries of 251 to 298 are left.
        assert_eq!(left(&no_hits), Some(1000 - 2 * 48), "{}", backend.name());
    }
    redis.redis.assert_no_key_leaks();
}

#[test]
fn a_give_back_leaves_hits_of_another_caller_at_the_same_time() {
    let limit = Arc::new(limit(10, Unit::Second, LOG));
    let of = |caller: &str, hits| Charge {
        caller: Some(caller.into()),
        ..charge("a", Hits::Charge(hits), &limit)
    };
    let mut redis = ScriptInRedis::start();
    let backends: [&mut dyn Backend; 2] = [&mut memory(), &mut redis];
    for backend in backends {
        backend.charge(&[of("ann", 1), of("bob", 2), of("ann", 3), of("eve", 1)], BEGIN);
        let mut give_back = |caller: Option<&str>, hits| {
            let (counter, caller) = (of("", 1).counter, caller.map(Into::into));
            let tally = backend
                .give_back(&GiveBack { counter, hits, made: BEGIN, caller, hold: None }, BEGIN);
            left(&tally.unwrap())
        };
        assert_eq!(give_back(None, 9), Some(3));
        assert_eq!(give_back(Some("an"), 9), Some(3));
        assert_eq!(give_back(Some("bob"), 9), Some(5));
        assert_eq!(give_back(Some("ann"), 2), Some(7));
        assert_eq!(give_back(Some("ann"), 9), Some(9));
        assert_eq!(give_back(Some("eve"), 1), Some(10));
    }
    redis.redis.assert_no_key_leaks();
}

#[test]
fn a_give_back_creates_no_key_and_leaves_none_without_a_count() {
    let mut redis = ScriptInRedis::start_with(KeyDeclaration::Undeclared);
    let keys = |redis: &ScriptInRedis| redis.redis.query::<Vec<String>>(&["KEYS", "tk1:*"]);
    for limit in one_of_each() {
        let Charge { counter, caller, .. } = charge("a", Hits::Check, &limit);
        let give_back = GiveBack { counter, hits: 3, made: BEGIN, caller, hold: None };
        redis.give_back(&give_back, BEGIN);
        assert_eq!(keys(&redis), [""; 0], "{limit:?}");
        redis.charge(&[charge("a", Hits::Charge(3), &limit)], BEGIN);
        redis.give_back(&give_back, BEGIN);
        redis.redis.assert_no_key_leaks();
        // An open window and the time of a bucket are more than a count.
        let is_kept = matches!(
            limit.algorithm,
            Algorithm::FirstHitWindow { .. } | Algorithm::TokenBucket { .. }
        );
        assert_eq!(keys(&redis).len(), usize::from(is_kept), "{limit:?}");
        redis.clear();
    }
}

#[test]
fn a_give_back_to_a_corrupt_counter_says_so_and_changes_nothing() {
    let mut redis = ScriptInRedis::start();
    for limit in one_of_each() {
        for on_store_failure in FailureMode::ALL {
            let limit = Arc::new(Limit { on_store_failure, ..(*limit).clone() });
            let Charge { counter, caller, .. } = charge("a", Hits::Check, &limit);
            let key = counter.key(limit.window.at(BEGIN).start);
            let _: () = redis.redis.query(&["SET", &key, "text", "EX", "1000000000"]);
            let give_back = GiveBack { counter, hits: 3, made: BEGIN, caller, hold: None };
            let outcome = redis.answer_give_back(&give_back, BEGIN);
            assert_eq!(outcome, ScriptVerdict::Corrupt(vec![0]), "{limit:?}");
            assert_eq!(redis.redis.query::<String>(&["GET", &key]), "text");
        }
    }
}

/// A give-back never admits too much: with reservations, nothing is admitted that would not be admitted in a
/// history of the same charges without them, and what remains is never more than there.
///
/// A window that a reservation opens at the first hit is left out: it ends when a later one would still be open.
/// So are refunds of more than others have charged, see docs/internals/correctness.md.
#[test]
fn reservations_and_give_backs_never_leave_more_than_a_history_without_them() {
    let mut dice = Dice(number("SEED", 1));
    let (mut given_back, mut denied_early) = (0, 0);
    for case in 0..number("GIVE_BACK_CASES", 100) {
        for limit in one_of_each() {
            let history = History::run(&limit, &mut dice, case);
            given_back += history.given_back;
            denied_early += history.denied_early;
        }
    }
    assert!(given_back > 1000 && denied_early > 100, "{given_back} {denied_early}");
}

/// The same charges of others in a store with reservations, and in one without.
struct History {
    with: MemoryStore,
    without: MemoryStore,
    /// What others have charged, in the windows in which they did.
    net: MemoryStore,
    reservations: Vec<GiveBack>,
    given_back: u64,
    denied_early: u64,
}

impl History {
    fn run(limit: &Arc<Limit>, dice: &mut Dice, case: u64) -> Self {
        let [with, without, net] = [memory(), memory(), memory()];
        let reservations = Vec::new();
        let mut history = Self { with, without, net, reservations, given_back: 0, denied_early: 0 };
        let mut now = BEGIN;
        for _ in 0..60 {
            now = now.plus_millis(
                [0, 0, dice.below(20), dice.below(300), dice.below(1500)][dice.below(5) as usize],
            );
            history.step(limit, dice, now);
            for ahead in [0, 1, dice.below(1000), dice.below(3000)] {
                let at = now.plus_millis(ahead);
                let [with, without] =
                    [&history.with, &history.without].map(|store| remaining(store, limit, at));
                assert!(with <= without, "{limit:?}, case {case}: {with} > {without} at {at:?}");
            }
        }
        history
    }

    fn step(&mut self, limit: &Arc<Limit>, dice: &mut Dice, now: Timestamp) {
        let hits = 1 + dice.below(4);
        let one = [charge("a", Hits::Charge(hits), limit)];
        match dice.below(6) {
            0 | 1 => {
                let is_free = remaining(&self.without, limit, now) >= hits;
                if !self.with.charge_at(&one, now).denied {
                    assert!(!self.without.charge_at(&one, now).denied, "{limit:?}");
                    self.net.charge_at(&[charge("a", Hits::Charge(hits), &net())], now);
                } else if is_free {
                    self.denied_early += 1;
                }
            }
            2 | 3 => {
                let opens = limit.algorithm == Algorithm::FirstHitWindow { idle_ms: None }
                    && remaining(&self.without, limit, now) == 10;
                if !opens && !self.with.charge_at(&one, now).denied {
                    let [Charge { counter, caller, .. }] = one;
                    self.reservations.push(GiveBack {
                        counter,
                        hits,
                        made: now,
                        caller,
                        hold: None,
                    });
                }
            }
            4 if !self.reservations.is_empty() => {
                let index = dice.below(self.reservations.len() as u64) as usize;
                self.with.give_back_at(&self.reservations.swap_remove(index), now);
                self.given_back += 1;
            }
            _ => {
                let used = 10 - remaining(&self.without, limit, now);
                // A bucket's are rounded up.
                let is_bucket = matches!(limit.algorithm, Algorithm::TokenBucket { .. });
                let used = used.saturating_sub(is_bucket.into());
                let charged = Hits::MAX - remaining(&self.net, &net(), now);
                let hits = hits.min(used.min(charged));
                for (store, limit) in
                    [(&self.with, limit), (&self.without, limit), (&self.net, &net())]
                {
                    store.charge_at(&[charge("a", Hits::Refund(hits), limit)], now);
                }
            }
        }
    }
}

/// A limit without bound, which only counts.
fn net() -> Arc<Limit> {
    Arc::new(limit(Hits::MAX, Unit::Second, Algorithm::FixedWindow))
}

fn remaining(store: &MemoryStore, limit: &Arc<Limit>, now: Timestamp) -> u64 {
    left(&store.charge_at(&[charge("a", Hits::Check, limit)], now).tallies[0]).unwrap_or(0)
}
