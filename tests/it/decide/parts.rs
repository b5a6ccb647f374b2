//! Calls in parts: random calls of all algorithms and modes, split over several stores, of which some fail. Each
//! part is reserved, and what does not stay is given back, as `store/redis/topology/reservation.rs` does on a Cluster.
//!
//! `PARTS_CASES` is the number of histories of each property; docs/internals/correctness.md has long runs.

use proptest::prelude::*;
use tollkeeper::{
    engine::{
        ledger::{GiveBack, JudgedBy, PartsVerdict, judge_parts, reservation},
        rule::FailureMode,
    },
    store::memory::MemoryStore,
};

use crate::support::{backends::memory, charges::prelude::*, prelude::*};

const NODES: usize = 4;

/// What becomes of a part that is sent to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    /// It was not executed.
    Lost,
    /// It was executed, and its answer was lost.
    Unanswered,
}

/// One call, and what becomes of it.
#[derive(Debug, Clone)]
struct Call {
    /// The time before it, and between its reservations and its give-backs, in milliseconds.
    passed: u64,
    took: u64,
    charges: Vec<Charge>,
    /// For each node.
    fates: [Fate; NODES],
    /// For each node: whether give-backs reach it.
    gives_back: [bool; NODES],
}

/// Limits of every algorithm, mode, failure mode and way to count denied calls.
fn limits() -> Vec<Arc<Limit>> {
    let mut limits = Vec::new();
    for algorithm in Algorithm::of_time(6, None) {
        for mode in [Mode::Enforced, Mode::Enforced, Mode::Shadow, Mode::Quota] {
            for when_denied in [WhenDenied::Free, WhenDenied::Counted] {
                for on_store_failure in FailureMode::ALL {
                    let limit = Limit::new(6, Unit::Second, 1).unwrap();
                    let algorithm = algorithm.clone();
                    let limit = Limit { algorithm, mode, when_denied, on_store_failure, ..limit };
                    limits.push(Arc::new(limit));
                }
            }
        }
    }
    limits
}

/// Some of the limits, so that charges follow each other on one counter.
const LIMITS_OF_A_HISTORY: u64 = 7;

fn call(seed: u64, family: u64, limits: &[Arc<Limit>]) -> Call {
    let mut dice = Dice(seed | 1);
    let draws_first = dice.below(3) == 0;
    let charges = (0..1 + dice.below(6)).map(|_| {
        let number = family.wrapping_mul(31).wrapping_add(37 * dice.below(LIMITS_OF_A_HISTORY));
        let number = (number % limits.len() as u64) as usize;
        let hits = match dice.below(10) {
            0..=6 => Hits::Charge(1 + dice.below(3)),
            7..=8 => Hits::Check,
            _ => Hits::Refund(1 + dice.below(4)),
        };
        // Limits of different modes share the counters of fixed windows, as overrides do.
        let user = match limits[number].algorithm {
            Algorithm::FixedWindow => format!("{}", dice.below(3)),
            _ => format!("{number}-{}", dice.below(2)),
        };
        let quota_group = dice.below(3) as usize;
        let always_fits = limits[number].mode == Mode::Shadow && dice.below(3) == 0;
        Charge { quota_group, draws_first, always_fits, ..charge(&user, hits, &limits[number]) }
    });
    let charges = charges.collect();
    let fate = |dice: &mut Dice| match dice.below(8) {
        0 => Fate::Lost,
        1 => Fate::Unanswered,
        _ => Fate::Answered,
    };
    Call {
        passed: [0, dice.below(50), dice.below(400), dice.below(1500)][dice.below(4) as usize],
        took: [0, 0, dice.below(20), dice.below(1200)][dice.below(4) as usize],
        charges,
        fates: [(); NODES].map(|()| fate(&mut dice)),
        gives_back: [(); NODES].map(|()| dice.below(6) > 0),
    }
}

fn any_history() -> impl Strategy<Value = Vec<Call>> {
    (any::<u64>(), prop::collection::vec(any::<u64>(), 1..40)).prop_map(|(family, seeds)| {
        let limits = limits();
        seeds.into_iter().map(|seed| call(seed, family % 1000, &limits)).collect()
    })
}

/// Such calls with holds by id beside other charges: the second call with an id is a commit.
fn any_history_by_id() -> impl Strategy<Value = Vec<Call>> {
    (any::<u64>(), prop::collection::vec(any::<u64>(), 1..40)).prop_map(|(family, seeds)| {
        let (plain, holding) = (limits(), limits_by_id());
        let call = |seed| {
            let mut call = call(seed, family % 1000, &plain);
            let mut dice = Dice(seed | 1);
            for number in 0..dice.below(3) {
                let limit = &holding[dice.below(holding.len() as u64) as usize];
                let (used, lifetime_ms) = ((dice.below(3) > 0).then(|| dice.below(7)), 700);
                let id = HoldId::from_caller(&[dice.below(4) as u8]);
                let user = format!("{number}-{}", dice.below(3));
                let taken = charge(&user, Hits::Charge(1 + dice.below(4)), limit);
                let is_end = dice.below(4) == 0;
                let hold = Some(HoldAction::ById { id, used, is_end, lifetime_ms });
                call.charges.push(Charge { hold, ..taken });
            }
            call
        };
        seeds.into_iter().map(call).collect()
    })
}

fn limits_by_id() -> Vec<Arc<Limit>> {
    let mut limits = Vec::new();
    let bucket = Algorithm::TokenBucket { burst: 6 };
    let in_flight = Algorithm::InFlight { remember: None };
    for algorithm in [Algorithm::FixedWindow, bucket, in_flight] {
        for mode in [Mode::Enforced, Mode::Shadow, Mode::Quota] {
            let policy = HoldPolicy { by: HoldBy::Id, ..HoldPolicy::new(700) };
            let (hold, limit) = (Some(Arc::new(policy)), Limit::new(6, Unit::Minute, 1).unwrap());
            limits.push(Arc::new(Limit { algorithm: algorithm.clone(), mode, hold, ..limit }));
        }
    }
    limits
}

/// What became of a call in parts.
struct Decided {
    /// `None` if no part was answered.
    verdict: Option<PartsVerdict>,
    tallies: Vec<Tally>,
}

/// Counters on several nodes.
struct Nodes([MemoryStore; NODES]);

impl Nodes {
    fn of(charge: &Charge) -> usize {
        let name = charge.counter.key(BEGIN);
        name.bytes().fold(7, |sum, byte| (sum * 31 + usize::from(byte)) % 1009) % NODES
    }

    fn charge(&self, call: &Call, now: Timestamp) -> Decided {
        let Call { charges, .. } = call;
        let parts: Vec<usize> = charges.iter().map(Self::of).collect();
        let absent = |charge| Tally::by_failure_mode(charge, JudgedBy::Absent);
        let mut tallies: Vec<Tally> = charges.iter().map(absent).collect();
        for (number, node) in self.0.iter().enumerate() {
            let indices: Vec<usize> =
                (0..charges.len()).filter(|index| parts[*index] == number).collect();
            let fate = call.fates[number];
            if indices.is_empty() || fate == Fate::Lost {
                continue;
            }
            let part: Vec<_> = indices.iter().map(|index| reservation(&charges[*index])).collect();
            let verdict = node.charge_at(&part, now);
            if fate == Fate::Answered {
                for (index, tally) in indices.into_iter().zip(verdict.tallies) {
                    tallies[index] = tally;
                }
            }
        }
        if tallies.iter().all(|tally| tally.judged_by == JudgedBy::Absent) {
            return Decided { verdict: None, tallies };
        }
        let judged = judge_parts(charges, &tallies, &parts);
        for (index, gives_back) in judged.gives_back.iter().enumerate() {
            let Charge { counter, hits, caller, hold, .. } = charges[index].clone();
            if let (Hits::Charge(hits), true) = (hits, *gives_back && call.gives_back[parts[index]])
            {
                let give_back = GiveBack { counter, hits, made: now, caller, hold };
                self.0[parts[index]].give_back_at(&give_back, now.plus_millis(call.took));
            }
        }
        Decided { verdict: Some(judged.verdict), tallies }
    }

    fn checked(&self, charge: &Charge, now: Timestamp) -> Tally {
        checked(&self.0[Self::of(charge)], charge, now)
    }

    /// Opens the window of the call's first-hit windows here and in `other`. One that a reservation opens ends
    /// too early for the hits that come after its give-back, see docs/internals/correctness.md.
    fn open_windows(&self, other: &MemoryStore, charges: &[Charge], now: Timestamp) {
        for charge in charges {
            if matches!(charge.counter.limit.algorithm, Algorithm::FirstHitWindow { .. }) {
                for store in [&self.0[Self::of(charge)], other] {
                    for hits in [Hits::Charge(1), Hits::Refund(1)] {
                        store.charge_at(&[Charge { hits, ..always(charge) }], now);
                    }
                }
            }
        }
    }
}

/// The charge as one that is made whether it fits or not.
fn always(charge: &Charge) -> Charge {
    let limit = Limit {
        mode: Mode::Shadow,
        when_denied: WhenDenied::Counted,
        ..Limit::clone(&charge.counter.limit)
    };
    Charge { counter: charge.counter.with_limit(Arc::new(limit)), ..charge.clone() }
}

fn checked(store: &MemoryStore, charge: &Charge, now: Timestamp) -> Tally {
    store.charge_at(&[Charge { hits: Hits::Check, hold: None, ..charge.clone() }], now).tallies[0]
}

fn remaining(tally: Tally) -> u64 {
    match tally.fit {
        Fit::Fits { remaining } => remaining,
        Fit::Over | Fit::Commit(_) => 0,
    }
}

fn fits(tally: &Tally) -> bool {
    tally.fit != Fit::Over
}

fn cases() -> ProptestConfig {
    ProptestConfig { cases: number("PARTS_CASES", 300) as u32, ..ProptestConfig::default() }
}

/// Whether hits count after a call of this outcome: all hits of an admitted call, and hits that count when denied.
fn stays(charge: &Charge, tally: &Tally, verdict: PartsVerdict) -> bool {
    let Limit { mode, when_denied, .. } = *charge.counter.limit;
    let (JudgedBy::Counter, Hits::Charge(_)) = (tally.judged_by, charge.hits) else { return false };
    let is_counted = when_denied == WhenDenied::Counted;
    match verdict {
        PartsVerdict::Admitted => fits(tally) || is_counted || mode == Mode::Quota,
        PartsVerdict::Denied | PartsVerdict::Failed => is_counted,
        PartsVerdict::Again => false,
    }
}

fn check_whole(history: Vec<Call>) -> Result<(), TestCaseError> {
    let (nodes, whole) = (Nodes([(); NODES].map(|()| memory())), memory());
    let mut now = BEGIN;
    for call in history {
        let call =
            Call { took: 0, fates: [Fate::Answered; NODES], gives_back: [true; NODES], ..call };
        now = now.plus_millis(call.passed);
        nodes.open_windows(&whole, &call.charges, now);
        let Decided { verdict, tallies } = nodes.charge(&call, now);
        let expected = whole.charge_at(&call.charges, now);
        prop_assert_eq!(verdict == Some(PartsVerdict::Denied), expected.denied, "{:?}", call);
        for ((tally, expected), charge) in tallies.iter().zip(&expected.tallies).zip(&call.charges)
        {
            assert_eq!(tally.judged_by, JudgedBy::Counter, "every part is known");
            prop_assert_eq!(fits(tally), fits(expected), "{:?} of {:?}", charge, call);
            let counters = (nodes.checked(charge, now), checked(&whole, charge, now));
            prop_assert_eq!(counters.0, counters.1, "{:?} of {:?}", charge, call);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_call_in_parts_is_decided_and_counted_as_a_whole_one(history in any_history()) {
        check_whole(history)?;
    }

    #[test]
    fn a_call_in_parts_that_commits_holds_is_decided_and_counted_as_a_whole_one(
        history in any_history_by_id(),
    ) {
        check_whole(history)?;
    }

    #[test]
    fn a_call_in_parts_of_which_some_fail_never_admits_too_much(history in any_history()) {
        // What was admitted, and what counts of denied calls, less refunds.
        let (nodes, ledger) = (Nodes([(); NODES].map(|()| memory())), memory());
        let mut counters = BTreeMap::new();
        let mut now = BEGIN;
        for mut call in history {
            // What stays is reckoned by each charge alone.
            for charge in &mut call.charges {
                (charge.draws_first, charge.always_fits) = (false, false);
            }
            now = now.plus_millis(call.passed);
            nodes.open_windows(&ledger, &call.charges, now);
            let Decided { verdict, tallies } = nodes.charge(&call, now);
            for charge in &call.charges {
                counters.insert(charge.counter.key(BEGIN), charge.clone());
                if charge.hits.asks_nothing() && call.fates[Nodes::of(charge)] != Fate::Lost {
                    ledger.charge_at(std::slice::from_ref(charge), now);
                }
            }
            let stays: Vec<&Charge> = call.charges.iter().zip(&tallies)
                .filter(|(charge, tally)| verdict.is_some_and(|verdict| stays(charge, tally, verdict)))
                .map(|(charge, _)| charge)
                .collect();
            let made: Vec<Charge> = stays.iter().map(|charge| always(charge)).collect();
            let made = ledger.charge_at(&made, now).tallies;
            if verdict == Some(PartsVerdict::Admitted) {
                let fit = |mode| {
                    let all = stays.iter().zip(&made);
                    all.filter(move |(charge, _)| charge.counter.limit.mode == mode).map(|(_, tally)| fits(tally))
                };
                prop_assert!(fit(Mode::Enforced).all(|fits| fits), "{:?}", call);
                let mut quotas = fit(Mode::Quota).peekable();
                let checks_quota = call.charges.iter().any(|charge| {
                    charge.hits == Hits::Check && charge.counter.limit.mode == Mode::Quota
                });
                prop_assert!(
                    checks_quota || quotas.peek().is_none() || quotas.any(|fits| fits),
                    "{:?}", call
                );
            }
            now = now.plus_millis(call.took);
            for charge in counters.values() {
                let (left, expected) = (nodes.checked(charge, now), checked(&ledger, charge, now));
                prop_assert!(remaining(left) <= remaining(expected), "{:?} after {:?}", charge, call);
            }
        }
    }
}
