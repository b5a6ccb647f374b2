//! What algorithms have in common, on the model, in memory and in Redis, and what they cost. `timelines/algorithms.txt` has the
//! decisions of each over time.

use std::sync::Arc;

use crate::support::{
    backends::*,
    charges::{left, one_of_each, prelude::*},
    model::Model,
};

#[test]
fn a_refund_of_a_full_log_looks_at_few_of_its_entries() {
    let limit = Arc::new(limit(1000, Unit::Minute, LOG));
    let mut redis = ScriptInRedis::start();
    for _ in 0..10 {
        redis.charge(&vec![charge("a", Hits::Charge(1), &limit); 100], BEGIN);
    }
    let runs = |redis: &ScriptInRedis| ["lindex", "ltrim"].map(|name| redis.redis.runs_of(name));
    let before = runs(&redis);
    let tally =
        redis.charge(&[charge("a", Hits::Refund(990), &limit)], BEGIN.plus_millis(1)).remove(0);
    assert_eq!(left(&tally), Some(990));
    let after = runs(&redis);
    let [searches, removals] = [after[0] - before[0], after[1] - before[1]];
    assert!(searches <= 30 && removals == 1, "{searches} searches, {removals} removals");
    redis.redis.assert_no_key_leaks();
}

#[test]
fn a_bucket_whose_limit_is_lowered_keeps_its_debt_as_long_as_it_counts() {
    let bucket = |requests| {
        let algorithm = Algorithm::TokenBucket { burst: requests };
        Arc::new(limit(requests, Unit::Second, algorithm))
    };
    let (before, after) = (bucket(60), bucket(1));
    let mut redis = ScriptInRedis::start();
    let taken = charge("a", Hits::Charge(60), &before);
    redis.charge(std::slice::from_ref(&taken), BEGIN);
    let ttl =
        |redis: &ScriptInRedis| redis.redis.query::<i64>(&["PTTL", &taken.counter.key(BEGIN)]);
    let first = ttl(&redis);
    let denied = redis.charge(&[charge("a", Hits::Charge(1), &after)], BEGIN.plus_millis(500));
    assert_eq!(denied[0].reset.as_millis(), 59_500);
    assert!(ttl(&redis) - first > 50_000, "{first} ms, and then {}", ttl(&redis));
}

/// Promise "all or nothing": no sibling is charged, whatever the position of the charge that does not fit, and
/// whatever the algorithms.
#[test]
fn a_denied_call_charges_no_sibling_of_any_algorithm() {
    let mut redis = ScriptInRedis::start();
    let backends: [&mut dyn Backend; 3] = [&mut Model::default(), &mut memory(), &mut redis];
    for backend in backends {
        for denies in one_of_each() {
            for index in 0..=one_of_each().len() {
                for hits in [Hits::Charge(11), Hits::Check] {
                    let name = backend.name();
                    backend.clear();
                    if hits == Hits::Check {
                        backend.charge(&[charge("full", Hits::Charge(10), &denies)], BEGIN);
                    }
                    let siblings = one_of_each();
                    let mut call = charge_siblings(Hits::Charge(3), &siblings);
                    call.insert(index, charge("full", hits, &denies));
                    let verdicts: Vec<_> =
                        backend.charge(&call, BEGIN).iter().map(|tally| tally.fit).collect();
                    let mut expected = vec![Fit::Fits { remaining: 10 }; siblings.len()];
                    expected.insert(index, Fit::Over);
                    assert_eq!(verdicts, expected, "{name}: {denies:?} at {index}");

                    let checks = charge_siblings(Hits::Check, &siblings);
                    for tally in backend.charge(&checks, BEGIN) {
                        assert_eq!(tally.fit, Fit::Fits { remaining: 10 }, "{name}");
                    }
                }
            }
        }
    }
}

fn charge_siblings(hits: Hits, limits: &[Arc<Limit>]) -> Vec<Charge> {
    limits.iter().map(|limit| charge("sibling", hits, limit)).collect()
}

/// Promise "all or nothing": refunds apply first, even in a denied call; hits on one counter are summed; checks
/// see the call's refunds and not its charges.
#[test]
fn refunds_sums_and_checks_work_alike_in_every_algorithm() {
    let mut redis = ScriptInRedis::start();
    let backends: [&mut dyn Backend; 3] = [&mut Model::default(), &mut memory(), &mut redis];
    for backend in backends {
        for limit in one_of_each() {
            backend.clear();
            // One call of these hits; the hits that each charge leaves, or `None` if it is over.
            let mut check = |call: &[Hits], expected: &[Option<u64>]| {
                let call: Vec<_> = call.iter().map(|hits| charge("a", *hits, &limit)).collect();
                let tallies = backend.charge(&call, BEGIN);
                let actual: Vec<_> = tallies.iter().map(left).collect();
                assert_eq!(actual, expected, "{}: {limit:?}", backend.name());
            };
            use Hits::{Charge, Check, Refund};
            check(&[Charge(6), Charge(5)], &[None, None]);
            check(&[Charge(6), Check, Charge(4)], &[Some(0), Some(10), Some(0)]);
            check(&[Charge(2), Refund(3)], &[Some(1), Some(1)]);
            check(&[Charge(4), Refund(2), Check], &[None, Some(3), Some(3)]);
            check(&[Refund(Hits::MAX)], &[Some(10)]);
            check(&[Charge(Hits::MAX), Charge(Hits::MAX)], &[None, None]);
            check(&[Check], &[Some(10)]);
        }
    }
}
