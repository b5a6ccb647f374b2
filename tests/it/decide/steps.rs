//! Promise "the same on every store": over random calls and with a clock that jumps, the memory store gives the same tallies as the
//! model at every step, and Redis the same as memory.
//!
//! CI runs a few steps; docs/internals/correctness.md has long runs, and how to repeat them.

use proptest::prelude::*;
use tollkeeper::{
    engine::ledger::{self, GiveBack},
    store::redis::script::KeyDeclaration,
};

use crate::support::{backends::*, charges::prelude::*, model::Model, prelude::*};

/// After this number of steps all counters are removed, and the clock is set to [`BEGIN`].
const STEPS_OF_A_CASE: u64 = 200;

/// At most this number of reservations stand at a time.
const RESERVATIONS: usize = 8;

/// One call, and the time that passes before it; perhaps a give-back in front of it.
#[derive(Debug, Clone)]
struct Step {
    /// In milliseconds; negative if the clock is set back.
    passed: i64,
    charges: Vec<Charge>,
    /// Which of the reservations that stand is given back; none if there are fewer.
    gives_back: usize,
}

/// Every limit of the steps. Limits that share a counter are equal, except on fixed windows, where an override
/// may have another limit.
fn limits() -> Vec<Arc<Limit>> {
    let per = |requests, multiplier, unit, algorithm: &Algorithm| Limit {
        algorithm: algorithm.clone(),
        ..Limit::new(requests, unit, multiplier).unwrap()
    };
    let counted = |limit| Limit { when_denied: WhenDenied::Counted, ..limit };
    let bucket = |burst| Algorithm::TokenBucket { burst };
    let fixed = Algorithm::FixedWindow;
    let algorithms = Algorithm::of_time(7, None);
    let mut limits = Vec::new();
    for algorithm in &algorithms {
        limits.extend([per(7, 1, Unit::Second, algorithm), per(13, 1, Unit::Minute, algorithm)]);
        if *algorithm != LOG {
            limits.push(counted(per(5, 2, Unit::Hour, algorithm)));
        }
    }
    // The smallest and the largest limits.
    limits.extend([
        per(0, 1, Unit::Day, &fixed),
        per(0, 1, Unit::Day, &bucket(0)),
        counted(per(Hits::MAX, 1, Unit::Day, &fixed)),
        per(1_000_000, 2, Unit::Day, &Algorithm::SlidingWindow),
        per(2_000_000, 2, Unit::Second, &Algorithm::SlidingWindow),
        counted(per(3, 2, Unit::Second, &bucket(2_000_000_000))),
        per(285_000, 1, Unit::Year, &bucket(285_000)),
    ]);
    for (requests, multiplier, idle_ms) in [(6, 3, 150), (9, 6, 1000), (40, 70, 5000)] {
        let idle = Algorithm::FirstHitWindow { idle_ms: Some(idle_ms) };
        limits.push(per(requests, multiplier, Unit::Second, &idle));
        limits.push(counted(per(requests, multiplier + 1, Unit::Second, &idle)));
    }
    // Shadows and quotas, in windows that no other limit has.
    for algorithm in &algorithms {
        limits.push(Limit { mode: Mode::Shadow, ..per(4, 20, Unit::Second, algorithm) });
        if *algorithm != LOG {
            limits.push(Limit { mode: Mode::Quota, ..per(4, 30, Unit::Second, algorithm) });
            limits.push(Limit { mode: Mode::Quota, ..per(9, 40, Unit::Second, algorithm) });
        }
    }
    limits.extend([counted(Limit { mode: Mode::Shadow, ..per(3, 50, Unit::Second, &fixed) })]);
    // One that is released, as for a class of calls.
    for (requests, from) in [(40, 3), (9, 0)] {
        let released = per(requests, 100, Unit::Second, &fixed);
        limits.push(Limit { opens_from: Some(from), ..released });
    }
    // Penalty boxes.
    for algorithm in &algorithms {
        for (seconds, ban_ms, mode) in [(80, 2500, Mode::Enforced), (90, 100_000, Mode::Shadow)] {
            limits.push(Limit {
                ban_ms: Some(ban_ms),
                mode,
                ..per(4, seconds, Unit::Second, algorithm)
            });
        }
    }
    limits.into_iter().map(Arc::new).collect()
}

impl Dice {
    fn hits(&mut self, limit: &Limit) -> Hits {
        // A hit of a log is one line in the model.
        let most = if limit.algorithm == LOG { 20 } else { Hits::MAX };
        match self.below(20) {
            0..=9 => Hits::Charge(1 + self.below(3)),
            10..=12 => Hits::Charge(1 + self.below(9)),
            13 => Hits::Charge(most),
            14..=16 => Hits::Check,
            17..=18 => Hits::Refund(self.below(5)),
            _ => Hits::Refund(Hits::MAX),
        }
    }

    fn step(&mut self, limits: &[Arc<Limit>]) -> Step {
        let passed = match self.below(40) {
            0..=9 => 0,
            10..=29 => self.below(200),
            30..=34 => self.below(1500),
            35..=36 => self.below(70_000),
            37 => self.below(8_000_000),
            _ => 1,
        };
        // The clock is set back in one step of fifty.
        let back = self.below(50) == 0;
        let draws = self.below(3) == 0;
        let charge = |_| {
            let limit = &limits[self.below(limits.len() as u64) as usize];
            let user = ["a", "b"][self.below(2) as usize];
            let quota_group = self.below(4) as usize;
            let hits = self.hits(limit);
            let ban_ms = limit.ban_ms.filter(|_| !hits.asks_nothing());
            let hold = ban_ms.map(|for_ms| HoldAction::Ban { for_ms });
            let draws_first = draws && limit.mode != Mode::Enforced;
            let always_fits = limit.mode == Mode::Shadow && self.below(3) == 0;
            Charge { quota_group, draws_first, always_fits, hold, ..charge(user, hits, limit) }
        };
        let count = [1, 1, 2, 3][(passed % 4) as usize];
        let mut charges: Vec<Charge> = (0..count).map(charge).collect();
        if self.below(10) == 0 {
            let most = [Hits::MAX - self.below(70), 1 + self.below(12)];
            let hits = Hits::Charge(most[self.below(2) as usize]);
            let part = |charge| Charge { hits, is_part: true, ..charge };
            charges = charges.into_iter().map(part).collect();
            // As each plan does.
            ledger::bound_parts(&mut charges);
        }
        let gives_back = self.below(3 * RESERVATIONS as u64) as usize;
        Step { passed: if back { -(passed as i64) } else { passed as i64 }, charges, gives_back }
    }
}

/// What was charged by the latest admitted calls, any of which may have been reservations.
#[derive(Default)]
struct Reservations(Vec<GiveBack>);

impl Reservations {
    /// Adds what a call has charged.
    fn add(&mut self, charges: &[Charge], tallies: &[Tally], made: Timestamp) {
        // How much of a part was charged is not in its tallies.
        if ledger::denies(charges, tallies) || charges.iter().any(|charge| charge.is_part) {
            return;
        }
        for (Charge { counter, hits, caller, .. }, tally) in charges.iter().zip(tallies) {
            if let (Hits::Charge(hits), Fit::Fits { .. }) = (*hits, tally.fit) {
                let (counter, caller) = (counter.clone(), caller.clone());
                self.0.push(GiveBack { counter, hits, made, caller, hold: None });
            }
        }
        self.0.drain(..self.0.len().saturating_sub(RESERVATIONS));
    }

    fn take(&mut self, index: usize) -> Option<GiveBack> {
        (index < self.0.len()).then(|| self.0.remove(index))
    }
}

/// Performs a step on both. Returns what they answer, to the give-back and to the call.
fn perform(
    step: &Step,
    now: Timestamp,
    reservations: &mut Reservations,
    backends: [&mut dyn Backend; 2],
) -> [(Option<Tally>, Vec<Tally>); 2] {
    let give_back = reservations.take(step.gives_back);
    let mut answers = backends.map(|backend| {
        let given_back = give_back.as_ref().and_then(|taken| backend.give_back(taken, now));
        (given_back, backend.charge(&step.charges, now))
    });
    let [(one, tallies), (other, _)] = &mut answers;
    if one.is_none() || other.is_none() {
        (*one, *other) = (None, None);
    }
    reservations.add(&step.charges, tallies, now);
    answers
}

/// Runs this number of steps on both, and panics where they differ.
fn compare(steps: u64, seed: u64, one: &mut dyn Backend, other: &mut dyn Backend) {
    let (began, limits) = (Instant::now(), limits());
    let mut dice = Dice(seed);
    let (mut now, mut reservations) = (BEGIN, Reservations::default());
    let mut limits_of_case = &limits[..];
    for number in 0..steps {
        if number % STEPS_OF_A_CASE == 0 {
            one.clear();
            other.clear();
            (now, reservations) = (BEGIN, Reservations::default());
            // In every second case on few limits, so that charges follow each other on one counter.
            let first = dice.below(limits.len() as u64 - 3) as usize;
            limits_of_case = if dice.below(2) == 0 { &limits } else { &limits[first..first + 4] };
        }
        let step = dice.step(limits_of_case);
        now = now.shifted(step.passed);
        let [ours, theirs] = perform(&step, now, &mut reservations, [&mut *one, &mut *other]);
        assert_eq!(
            ours,
            theirs,
            "{} and {} differ at step {number} of seed {seed}: {step:?} at {now:?}",
            one.name(),
            other.name()
        );
    }
    let (one, other, took) = (one.name(), other.name(), began.elapsed());
    println!("{steps} steps of seed {seed}: {one} and {other} agree; {took:.0?}");
}

/// The number of steps and the seed, from environment variables such as `MODEL_STEPS=2000000 SEED=7`.
fn steps_and_seed(variable: &str, default: u64) -> (u64, u64) {
    (number(variable, default), number("SEED", 1).max(1))
}

#[test]
fn memory_does_what_the_model_does() {
    let (steps, seed) = steps_and_seed("MODEL_STEPS", 20_000);
    // One seed for each core.
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                compare(steps / 2, 2 * seed + half, &mut Model::default(), &mut memory());
            });
        }
    });
}

#[test]
fn redis_does_what_memory_does() {
    let (steps, seed) = steps_and_seed("REDIS_STEPS", 20_000);
    let mut redis = ScriptInRedis::start();
    compare(steps, seed, &mut memory(), &mut redis);
    redis.redis.assert_no_key_leaks();
}

#[test]
fn the_simulated_redis_does_what_memory_does() {
    let (steps, seed) = steps_and_seed("REDIS_STEPS", 20_000);
    compare(steps, seed, &mut memory(), &mut ScriptInRedis::simulate(KeyDeclaration::Declared));
}

#[test]
fn redis_does_what_memory_does_with_undeclared_keys() {
    let (steps, seed) = steps_and_seed("UNDECLARED_STEPS", 10_000);
    let mut redis = ScriptInRedis::start_with(KeyDeclaration::Undeclared);
    compare(steps, seed, &mut memory(), &mut redis);
    redis.redis.assert_no_key_leaks();
}

fn any_step() -> impl Strategy<Value = Step> {
    any::<u64>().prop_map(|seed| Dice(seed | 1).step(&limits()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// On short sequences, so that a failing one shrinks.
    #[test]
    fn memory_and_the_model_agree_on_any_sequence(steps in prop::collection::vec(any_step(), 1..40)) {
        let (mut model, mut memory) = (Model::default(), memory());
        let (mut now, mut reservations) = (BEGIN, Reservations::default());
        for step in steps {
            now = now.shifted(step.passed);
            let [ours, theirs] = perform(&step, now, &mut reservations, [&mut model, &mut memory]);
            prop_assert_eq!(ours, theirs, "{:?} at {:?}", step, now);
        }
    }
}

/// Promises "Redis's clock" and "exactly the limit", on the log: in any real span of a second no more than the limit passes, even if the clock is set
/// back in between.
#[test]
fn a_log_admits_no_more_when_the_clock_jumps() {
    let limit = Arc::new(limit(7, Unit::Second, LOG));
    let mut dice = Dice(3);
    let (store, mut skew) = (memory(), 0);
    let mut admitted: Vec<Timestamp> = Vec::new();
    for ms in 0..60_000 {
        if dice.below(1000) == 0 {
            // Only back: setting the clock forward by a second would end the window.
            skew -= dice.below(500) as i64;
        }
        let call = [charge("a", Hits::Charge(1), &limit)];
        let tallies = store.charge_at(&call, BEGIN.plus_millis(ms).shifted(skew)).tallies;
        if tallies[0].fit != tollkeeper::engine::ledger::Fit::Over {
            admitted.push(BEGIN.plus_millis(ms));
        }
    }
    assert!(admitted.len() > 100);
    for eight in admitted.windows(8) {
        assert!(eight[7].millis_since(eight[0]) >= 1000, "{eight:?}");
    }
}
