//! Holds, on every store: takes and commits in all forms. Random steps on simulated time compare a naive model with memory
//! and with the scripts in a Redis.

use std::sync::Arc;

use tollkeeper::{
    engine::{
        hold::{Abandoned, HoldBy, HoldPolicy},
        hold_id::HoldId,
        ledger::{self, Charge, CommitOutcome, Fit, HoldAction},
        request::Hits,
        rule::{Algorithm, Limit, Mode, Unit},
        time::Timestamp,
    },
    store::redis::script::KeyDeclaration,
};

use crate::support::{
    backends::{Backend, ScriptInRedis, memory},
    charges::{BEGIN, charge, limit},
    dice::{Dice, number},
    model::holds::HoldModel,
};

/// After this number of steps all counters are removed, and the clock is set to [`BEGIN`].
const STEPS_OF_A_CASE: u64 = 200;

/// At most this number of tokens are remembered.
const TOKENS: usize = 12;

/// A charge of a take that has a token.
struct Token {
    charge: Charge,
    id: HoldId,
    hits: u64,
    made: Timestamp,
}

/// Every limit that may hold.
fn limits() -> Vec<Arc<Limit>> {
    let mut limits = Vec::new();
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::FirstHitWindow { idle_ms: None },
        Algorithm::TokenBucket { burst: 20 },
        Algorithm::SlidingWindow,
    ];
    for (by, algorithms) in [(HoldBy::Token, 4), (HoldBy::Id, 3), (HoldBy::Counter, 3)]
        .map(|(by, count)| (by, &algorithms[..count]))
    {
        for algorithm in algorithms {
            for (requests, unit, lifetime_ms, mode, abandoned) in [
                (20, Unit::Second, 1000, Mode::Enforced, Abandoned::Keep),
                (20, Unit::Minute, 5000, Mode::Enforced, Abandoned::Release),
                (12, Unit::Hour, 90_000, Mode::Enforced, Abandoned::Keep),
                (9, Unit::Day, 3000, Mode::Quota, Abandoned::Keep),
                (9, Unit::Week, 3000, Mode::Shadow, Abandoned::Keep),
            ] {
                let policy = HoldPolicy { by, abandoned, ..HoldPolicy::new(lifetime_ms) };
                let hold = Some(Arc::new(policy));
                let limit = limit(requests, unit, algorithm.clone());
                limits.push(Arc::new(Limit { hold, mode, ..limit }));
            }
        }
    }
    limits
}

/// Makes random calls.
struct Caller {
    dice: Dice,
    tokens: Vec<Token>,
    /// The next nonce.
    next: u128,
}

impl Caller {
    fn nonce(&mut self) -> HoldId {
        self.next += 1;
        HoldId::new(self.next)
    }

    fn passed(&mut self) -> i64 {
        let passed = match self.dice.below(40) {
            0..=19 => 0,
            20..=31 => self.dice.below(200),
            32..=35 => self.dice.below(1500),
            36..=37 => self.dice.below(7000),
            38 => self.dice.below(200_000),
            _ => self.dice.below(8_000_000),
        } as i64;
        if self.dice.below(60) == 0 { -passed } else { passed }
    }

    fn any_charge(&mut self, limits: &[Arc<Limit>], take: HoldId) -> Charge {
        if !self.tokens.is_empty() && self.dice.below(4) == 0 {
            return self.commit_of_a_token();
        }
        let limit = &limits[self.dice.below(limits.len() as u64) as usize];
        let user = ["a", "b"][self.dice.below(2) as usize];
        let policy = limit.hold.clone().unwrap();
        let some = Hits::Charge(1 + self.dice.below(4));
        let plain = match self.dice.below(12) {
            0 => Some(Hits::Check),
            1 => Some(Hits::Refund(self.dice.below(5))),
            _ => None,
        };
        let estimate = 1 + policy.lifetime_ms % 7;
        let (lifetime_ms, abandoned) = (policy.lifetime_ms, policy.abandoned);
        let (hits, hold) = match (plain, policy.by) {
            (Some(hits), _) => (hits, None),
            (None, HoldBy::Token) => (Hits::Charge(1 + self.dice.below(8)), None),
            (None, HoldBy::Id) => {
                let id = HoldId::from_caller(&[self.dice.below(6) as u8]);
                let used = (self.dice.below(2) == 0).then(|| self.dice.below(9));
                (some, Some(HoldAction::ById { id, used, lifetime_ms }))
            }
            (None, HoldBy::Counter) if self.dice.below(2) == 0 => {
                (some, Some(HoldAction::EndOldest { estimate, abandoned }))
            }
            (None, HoldBy::Counter) => {
                let hits = if self.dice.below(2) == 0 { Hits::Check } else { Hits::Charge(1) };
                (hits, Some(HoldAction::Open { id: take, estimate, lifetime_ms, abandoned }))
            }
        };
        Charge { hold, ..charge(user, hits, limit) }
    }

    fn commit_of_a_token(&mut self) -> Charge {
        let index = self.dice.below(self.tokens.len() as u64) as usize;
        let Token { charge, id, hits: held, made } = &self.tokens[index];
        let used = match self.dice.below(4) {
            0 => 0,
            1 => *held,
            _ => self.dice.below(2 * held),
        };
        let deadline = made.plus_millis(charge.counter.limit.hold.as_ref().unwrap().lifetime_ms);
        let hold = HoldAction::Commit { id: *id, held: *held, used, made: *made, deadline };
        Charge { hold: Some(hold), ..Charge::new(charge.counter.clone(), Hits::Refund(0)) }
    }

    fn step(&mut self, limits: &[Arc<Limit>]) -> Vec<Charge> {
        let (count, take) = (1 + self.dice.below(3), self.nonce());
        let commits = !self.tokens.is_empty() && self.dice.below(8) == 0;
        let charge = |_| match commits {
            true => self.commit_of_a_token(),
            false => self.any_charge(limits, take),
        };
        let call: Vec<Charge> = (0..count).map(charge).collect();
        // A charge on the next window reads the present one as it was before the call.
        let is_commit_of_before = |charge: &&Charge| {
            let is_sliding = charge.counter.limit.algorithm == Algorithm::SlidingWindow;
            is_sliding && matches!(charge.hold, Some(HoldAction::Commit { .. }))
        };
        match call.iter().find(is_commit_of_before) {
            Some(commit) => vec![commit.clone()],
            None => call,
        }
    }

    /// Remembers the tokens of the takes of a call.
    fn taken(&mut self, charges: &[Charge], tallies: &[ledger::Tally], now: Timestamp) {
        let judged = charges.iter().zip(tallies);
        let (judged, tallies): (Vec<_>, Vec<_>) = judged
            .filter(|(_, tally)| !matches!(tally.fit, Fit::Commit(_)))
            .map(|(charge, tally)| (charge.clone(), *tally))
            .unzip();
        if ledger::denies(&judged, &tallies) {
            return;
        }
        let id = self.nonce();
        for (charge, tally) in judged.iter().zip(&tallies) {
            let is_by_token = charge.counter.limit.hold.as_ref().unwrap().by == HoldBy::Token;
            if let (Hits::Charge(hits), Fit::Fits { .. }) = (charge.hits, tally.fit)
                && is_by_token
            {
                self.tokens.push(Token { charge: charge.clone(), id, hits, made: now });
            }
        }
        self.tokens.drain(..self.tokens.len().saturating_sub(TOKENS));
    }
}

/// A step in short, for the message of a failure.
fn spell(charges: &[Charge], tallies: &[ledger::Tally], now: Timestamp) -> String {
    let mut text = format!("at {} ms:", now.millis_since(BEGIN));
    for (index, Charge { counter, hits, hold, .. }) in charges.iter().enumerate() {
        let (key, tally) = (counter.key(BEGIN), tallies.get(index));
        text += &format!("\n  {key} {:?} {hits:?} {hold:?}: {tally:?}", counter.limit.mode);
    }
    text
}

/// Runs this number of steps on all, and panics where they differ from the first.
fn compare(steps: u64, seed: u64, backends: &mut [&mut dyn Backend]) {
    let limits = limits();
    let mut caller = Caller { dice: Dice(seed), tokens: Vec::new(), next: 0 };
    let (mut now, mut outcomes) = (BEGIN, [0_u64; 5]);
    let (mut of_case, mut recent) = (Vec::new(), Vec::<String>::new());
    for number in 0..steps {
        if number % STEPS_OF_A_CASE == 0 {
            backends.iter_mut().for_each(|backend| backend.clear());
            (now, caller.tokens, recent) = (BEGIN, Vec::new(), Vec::new());
            let few = 1 + caller.dice.below(4);
            let any = |_| Arc::clone(&limits[caller.dice.below(limits.len() as u64) as usize]);
            of_case = (0..few).map(any).collect();
            // Commits on fixed windows have a script of their own.
            of_case.extend(limits.get(number as usize / STEPS_OF_A_CASE as usize % 8).cloned());
        }
        now = now.shifted(caller.passed());
        let call = caller.step(&of_case);
        let (first, others) = backends.split_first_mut().unwrap();
        let tallies = first.charge(&call, now);
        for other in others {
            let theirs = other.charge(&call, now);
            let before = recent.iter().rev().take(12).rev().cloned().collect::<Vec<_>>().join("\n");
            assert_eq!(
                tallies,
                theirs,
                "{} and {} differ at step {number} of seed {seed}, after\n{before}\n{}",
                first.name(),
                other.name(),
                spell(&call, &[], now)
            );
        }
        for tally in &tallies {
            outcomes[match tally.fit {
                Fit::Fits { .. } => 0,
                Fit::Over => 1,
                Fit::Commit(CommitOutcome::Applied) => 2,
                Fit::Commit(CommitOutcome::Repeated) => 3,
                Fit::Commit(CommitOutcome::Late) => 4,
            }] += 1;
        }
        recent.push(spell(&call, &tallies, now));
        caller.taken(&call, &tallies, now);
    }
    assert!(outcomes.iter().all(|count| *count >= steps / 200), "{outcomes:?}");
    println!("{steps} steps of seed {seed}: fits, over, applied, repeated, late: {outcomes:?}");
}

/// `HOLD_STEPS=1000000` makes it longer, and `SEED=7` another.
fn steps_and_seed() -> (u64, u64) {
    (number("HOLD_STEPS", 10_000), number("SEED", 1).max(1))
}

#[test]
fn memory_holds_as_the_model_does() {
    let (steps, seed) = steps_and_seed();
    compare(steps, seed, &mut [&mut HoldModel::default(), &mut memory()]);
}

#[test]
fn redis_holds_as_the_model_does() {
    let (steps, seed) = steps_and_seed();
    let mut redis = ScriptInRedis::start();
    compare(steps, seed + 1, &mut [&mut HoldModel::default(), &mut redis]);
    assert!(redis.committed > steps / 200, "{} by the commit script", redis.committed);
    redis.redis.assert_no_key_leaks();
}

#[test]
fn redis_holds_as_memory_does_with_undeclared_keys() {
    let (steps, seed) = steps_and_seed();
    let mut redis = ScriptInRedis::start_with(KeyDeclaration::Undeclared);
    compare(steps, seed + 2, &mut [&mut memory(), &mut redis]);
    assert!(redis.committed > steps / 200, "{} by the commit script", redis.committed);
    redis.redis.assert_no_key_leaks();
}
