//! Each algorithm's decisions over time: timelines that run on the model, in memory and in Redis.

use std::sync::Arc;

use tollkeeper::engine::{calendar::Calendar, ledger::GiveBack, window::Window};

use crate::support::{
    backends::*,
    charges::{left, one_of_each, prelude::*},
    model::Model,
};

/// Runs a timeline on one counter of every backend. A line such as `0.2s +2 ok 1 left` charges two hits
/// 0.2 s after [`BEGIN`], which pass and leave one; `?` is a check, `-2` refunds two; `over in 0.8s` is a
/// denial and its reset. `0.9s <2@0.2 done` gives back two hits of a reservation that was charged 0.2 s after it.
#[track_caller]
fn check(limit: Limit, timeline: &str) {
    check_from(BEGIN, limit, timeline);
}

/// Like [`check`], but the timeline starts at `begin`.
#[track_caller]
fn check_from(begin: Timestamp, limit: Limit, timeline: &str) {
    let limit = Arc::new(limit);
    let expected: Vec<&str> =
        timeline.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut redis = ScriptInRedis::start();
    let backends: [&mut dyn Backend; 3] = [&mut Model::default(), &mut memory(), &mut redis];
    for backend in backends {
        let mut actual = Vec::new();
        for line in &expected {
            actual.push(run(backend, begin, &limit, line));
        }
        assert_eq!(actual.join("\n"), expected.join("\n"), "on {}", backend.name());
    }
    redis.redis.assert_no_key_leaks();
}

/// Runs the time and hits of one line, and returns the line with the actual result.
fn run(backend: &mut dyn Backend, begin: Timestamp, limit: &Arc<Limit>, line: &str) -> String {
    let [at, what, ..] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let now = time(begin, at.trim_end_matches('s'));
    if let Some(reservation) = what.strip_prefix('<') {
        let (hits, made) = reservation.split_once('@').unwrap();
        let Charge { counter, caller, .. } = charge("alice", Hits::Check, limit);
        let made = time(begin, made);
        backend.give_back(
            &GiveBack { counter, hits: hits.parse().unwrap(), made, caller, hold: None },
            now,
        );
        return format!("{at} {what} done");
    }
    let hits = match what.split_at(1) {
        ("+", hits) => Hits::Charge(hits.parse().unwrap()),
        ("-", hits) => Hits::Refund(hits.parse().unwrap()),
        _ => Hits::Check,
    };
    let [tally] = backend.charge(&[charge("alice", hits, limit)], now)[..] else {
        panic!("one charge has one tally");
    };
    format!("{at} {what} {}", spell(tally))
}

fn time(begin: Timestamp, seconds: &str) -> Timestamp {
    begin.plus_millis((seconds.parse::<f64>().unwrap() * 1000.0).round() as u64)
}

fn spell(tally: Tally) -> String {
    match tally.fit {
        Fit::Fits { remaining } => format!("ok {remaining} left"),
        Fit::Over | Fit::Commit(_) => {
            format!("over in {}s", tally.reset.as_millis() as f64 / 1000.0)
        }
    }
}

#[test]
fn a_fixed_window_is_aligned_to_the_clock() {
    check(
        limit(3, Unit::Second, Algorithm::FixedWindow),
        "0.2s +2 ok 1 left
         0.4s +2 over in 0.6s
         0.9s +1 ok 0 left
         0.9s ? over in 0.1s
         1.0s +3 ok 0 left
         1.1s -2 ok 2 left
         1.1s -9 ok 3 left
         9.0s ? ok 3 left",
    );
}

#[test]
fn a_fixed_window_of_several_units_is_aligned_to_the_epoch() {
    let five_minutes = Limit::new(1, Unit::Minute, 5).unwrap();
    check(five_minutes, "299s +1 ok 0 left\n299.5s +1 over in 0.5s\n300s +1 ok 0 left");
}

#[test]
fn a_calendar_day_ends_at_midnight_of_its_time_zone() {
    let berlin = Calendar::new(Unit::Day, "Europe/Berlin").unwrap();
    let day = Limit {
        window: Window::of_calendar(berlin),
        ..limit(2, Unit::Day, Algorithm::FixedWindow)
    };
    // In Berlin it is 01:00, so 23 hours are left.
    check(day, "0s +2 ok 0 left\n1s ? over in 82799s\n82799s ? over in 1s\n82800s ? ok 2 left");
}

#[test]
fn a_first_hit_window_opens_at_the_first_hit() {
    check(
        limit(3, Unit::Second, Algorithm::FirstHitWindow { idle_ms: None }),
        "0.2s ? ok 3 left
         0.3s -1 ok 3 left
         0.5s +2 ok 1 left
         1.0s +2 over in 0.5s
         1.4s +1 ok 0 left
         1.5s +3 ok 0 left
         1.6s -1 ok 1 left
         2.4s +2 over in 0.1s
         2.5s ? ok 3 left
         2.6s -1 ok 3 left
         3.0s +1 ok 2 left
         3.9s +3 over in 0.1s",
    );
}

#[test]
fn an_idle_window_ends_when_nothing_was_charged_for_that_long_or_at_its_full_length() {
    let idle = || Algorithm::FirstHitWindow { idle_ms: Some(400) };
    check(
        limit(3, Unit::Second, idle()),
        "0.2s ? ok 3 left
         0.5s +1 ok 2 left
         0.8s +1 ok 1 left
         1.1s +2 over in 0.1s
         1.1s ? ok 1 left
         1.2s +1 ok 2 left
         1.5s +1 ok 1 left
         1.8s -1 ok 2 left
         1.8s ? ok 2 left
         1.8s +1 ok 1 left
         2.1s +1 ok 0 left
         2.1s +1 over in 0.1s
         2.2s +1 ok 2 left",
    );
    // What is charged though it is denied keeps the window open.
    let counted = Limit { when_denied: WhenDenied::Counted, ..limit(3, Unit::Second, idle()) };
    check(
        counted,
        "0.2s +3 ok 0 left
         0.5s +1 over in 0.4s
         0.8s +1 over in 0.4s
         1.1s +1 over in 0.1s
         1.2s ? ok 3 left",
    );
    // A give-back of an earlier window changes nothing, and none opens one.
    check(
        limit(3, Unit::Second, idle()),
        "0.2s +2 ok 1 left
         0.6s <2@0.2 done
         0.6s +3 ok 0 left
         0.7s <2@0.2 done
         0.7s ? over in 0.3s
         0.7s <1@0.6 done
         0.7s ? ok 1 left",
    );
    // The clock was ahead; since it is right, the hits count for the idle time.
    check(
        limit(3, Unit::Second, idle()),
        "600s +3 ok 0 left
         0.1s +1 over in 0.4s
         0.4s +1 over in 0.1s
         0.5s +1 ok 2 left",
    );
}

#[test]
fn a_sliding_log_limits_every_span_of_its_length() {
    check(
        limit(3, Unit::Second, LOG),
        "0.2s +2 ok 1 left
         0.9s +1 ok 0 left
         1.1s +1 over in 0.1s
         1.1s +3 over in 0.8s
         1.2s +2 ok 0 left
         1.3s -1 ok 1 left
         1.3s +1 ok 0 left
         1.9s ? ok 1 left
         1.9s +4 over in 0.4s
         2.2s ? ok 2 left
         2.3s ? ok 3 left
         2.3s +3 ok 0 left
         2.4s -9 ok 3 left
         2.5s +3 ok 0 left
         9.0s ? ok 3 left",
    );
}

/// Redis's clock was ten minutes ahead, and is right again.
#[test]
fn hits_of_a_clock_that_was_ahead_count_for_one_window_after_it_is_right() {
    check(
        limit(3, Unit::Second, Algorithm::FirstHitWindow { idle_ms: None }),
        "600s +3 ok 0 left
         0.1s +1 over in 1s
         1.0s +1 over in 0.1s
         1.1s +1 ok 2 left",
    );
    check(
        limit(3, Unit::Second, LOG),
        "0.2s +1 ok 2 left
         600.0s +1 ok 2 left
         600.1s +2 ok 0 left
         0.3s +1 over in 1s
         1.2s +1 over in 0.1s
         1.2s -1 ok 1 left
         1.2s +1 ok 0 left
         1.3s +1 ok 1 left",
    );
    // The hit before the clock was ahead is there still.
    check(
        limit(3, Unit::Minute, LOG),
        "0s +1 ok 2 left
         59s +1 ok 1 left
         100s +1 ok 1 left
         30s +1 ok 0 left
         30s +1 over in 89s",
    );
    check(
        limit(2, Unit::Second, Algorithm::TokenBucket { burst: 2 }),
        "600s +2 ok 0 left
         0.1s +1 over in 0.5s
         0.5s +1 over in 0.1s
         0.6s +1 ok 0 left",
    );
}

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
fn a_sliding_window_weights_the_previous_window() {
    check(
        limit(10, Unit::Second, Algorithm::SlidingWindow),
        "0.0s +10 ok 0 left
         0.9s +1 over in 0.2s
         1.0s +1 over in 0.1s
         1.1s +1 ok 0 left
         1.5s +4 ok 0 left
         1.5s +1 over in 0.1s
         1.5s -2 ok 2 left
         1.5s +11 over in 1.5s
         2.0s ? ok 7 left
         9.0s ? ok 10 left",
    );
}

/// The first window of a hundred years since the epoch ends on 7 December 2069.
#[test]
fn the_first_sliding_window_since_the_epoch_has_no_previous_window() {
    check_from(
        Timestamp::from_secs(1_900_000_000),
        Limit { algorithm: Algorithm::SlidingWindow, ..Limit::new(4, Unit::Year, 100).unwrap() },
        "0s +2 ok 2 left
         1s ? ok 2 left
         2s +2 ok 0 left
         3s +1 over in 2041999997s
         4s -1 ok 1 left
         1253600000s ? ok 1 left
         1253600000s +2 over in 1051200000s",
    );
}

#[test]
fn a_token_bucket_refills_at_an_even_rate() {
    check(
        limit(10, Unit::Second, Algorithm::TokenBucket { burst: 4 }),
        "0.0s +4 ok 0 left
         0.0s +1 over in 0.1s
         0.1s +1 ok 0 left
         0.3s +3 over in 0.1s
         0.3s -1 ok 3 left
         0.3s +5 over in 0.1s
         0.4s ? ok 4 left
         9.0s +4 ok 0 left",
    );
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

#[test]
fn a_bucket_that_never_refills_still_reports_a_reset() {
    let limit = limit(0, Unit::Second, Algorithm::TokenBucket { burst: 0 });
    let counted = Limit { when_denied: WhenDenied::Counted, ..limit };
    check(counted, "0s ? over in 0s\n1s +1 over in 1s\n2s ? over in 1s");
}

#[test]
fn count_denied_charges_hits_that_do_not_fit() {
    let counted = |algorithm| Limit {
        when_denied: WhenDenied::Counted,
        ..limit(10, Unit::Second, algorithm)
    };
    let fixed = "0.0s +8 ok 2 left\n0.5s +8 over in 0.5s\n0.9s -9 ok 3 left\n1.0s ? ok 10 left";
    check(counted(Algorithm::FixedWindow), fixed);
    let first_hit = "0.2s +8 ok 2 left\n0.5s +8 over in 0.7s\n1.1s -9 ok 3 left\n1.2s ? ok 10 left";
    check(counted(Algorithm::FirstHitWindow { idle_ms: None }), first_hit);
    let sliding = "0.0s +8 ok 2 left\n0.5s +8 over in 1.375s\n1.5s ? ok 2 left\n1.5s -9 ok 2 left";
    check(counted(Algorithm::SlidingWindow), sliding);
    let bucket = "0.0s +8 ok 2 left\n0.5s +8 over in 0.9s\n1.4s ? ok 8 left";
    check(counted(Algorithm::TokenBucket { burst: 10 }), bucket);
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

#[test]
fn a_give_back_returns_hits_to_the_fixed_window_that_held_them() {
    check(
        limit(5, Unit::Second, Algorithm::FixedWindow),
        "0.2s +2 ok 3 left
         0.3s +1 ok 2 left
         0.9s <2@0.2 done
         0.9s ? ok 4 left
         0.9s +1 ok 3 left
         1.1s +3 ok 2 left
         1.2s <1@0.9 done
         1.2s ? ok 2 left
         1.2s <9@1.1 done
         1.3s ? ok 5 left
         1.3s +5 ok 0 left
         1.4s <1@9.9 done
         1.4s ? over in 0.6s",
    );
}

#[test]
fn a_give_back_returns_hits_to_the_previous_sliding_window_too() {
    check(
        limit(10, Unit::Second, Algorithm::SlidingWindow),
        "0.5s +4 ok 6 left
         0.6s +6 ok 0 left
         1.5s +1 ok 4 left
         1.5s <4@0.5 done
         1.5s ? ok 6 left
         1.6s <1@1.5 done
         1.6s ? ok 7 left
         2.0s ? ok 10 left
         2.1s <6@0.6 done
         2.1s ? ok 10 left",
    );
}

#[test]
fn a_give_back_returns_hits_to_a_first_hit_window_that_is_still_open() {
    check(
        limit(3, Unit::Second, Algorithm::FirstHitWindow { idle_ms: None }),
        "0.2s +2 ok 1 left
         0.5s +1 ok 0 left
         0.6s <2@0.2 done
         0.6s ? ok 2 left
         0.7s +2 ok 0 left
         1.2s +3 ok 0 left
         1.3s <2@0.7 done
         1.3s ? over in 0.9s
         1.3s <1@1.2 done
         1.3s ? ok 1 left",
    );
}

#[test]
fn a_give_back_returns_only_the_entries_of_its_reservation_to_a_log() {
    check(
        limit(6, Unit::Second, LOG),
        "0.1s +1 ok 5 left
         0.2s +2 ok 3 left
         0.4s +1 ok 2 left
         0.5s +2 ok 0 left
         0.6s <2@0.3 done
         0.6s ? over in 0.5s
         0.6s <1@0.2 done
         0.6s +2 over in 0.5s
         0.6s <9@0.2 done
         0.6s +2 ok 0 left
         0.7s +1 over in 0.4s
         1.1s ? ok 1 left
         1.3s +2 over in 0.1s
         1.4s ? ok 2 left
         1.5s ? ok 4 left
         1.5s <2@0.5 done
         1.5s <2@0.6 done
         1.5s ? ok 6 left",
    );
}

#[test]
fn a_give_back_to_a_bucket_stops_at_what_has_not_been_refilled() {
    check(
        limit(10, Unit::Second, Algorithm::TokenBucket { burst: 10 }),
        "0.0s +4 ok 6 left
         0.0s <4@0.0 done
         0.0s ? ok 10 left
         0.0s +4 ok 6 left
         0.2s +5 ok 3 left
         0.2s <4@0.0 done
         0.2s ? ok 5 left
         0.4s +7 ok 0 left
         0.9s <3@0.4 done
         0.9s ? ok 8 left",
    );
}
