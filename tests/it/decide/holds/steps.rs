//! Random calls with holds in all forms, beside limits without, while rules are reloaded and counters are read and reset.
//!
//! CI runs a few steps; docs/internals/correctness.md has long runs, and how to repeat them.

use tollkeeper::{
    engine::{
        hold::{Abandoned, Estimate},
        ledger::{self, CommitOutcome, GiveBack},
    },
    store::{Clear, redis::script::KeyDeclaration},
};

use crate::support::{backends::*, charges::prelude::*, model::holds::HoldModel, prelude::*};

/// After this number of steps all counters are removed, and the clock is set to [`BEGIN`].
const STEPS_OF_A_CASE: u64 = 200;

/// At most this number of tokens, and of reservations, are remembered.
const REMEMBERED: usize = 12;

/// A limit before and after a reload. Both have one counter.
type Reloaded = [Arc<Limit>; 2];

/// A charge of a take that has a token.
struct Token {
    charge: Charge,
    id: HoldId,
    hits: u64,
    made: Timestamp,
}

fn holding(before: Limit, policy: HoldPolicy) -> Reloaded {
    let after = Limit { requests_per_unit: before.requests_per_unit * 2 / 3, ..before.clone() };
    let estimate = |hits| {
        let estimate = Estimate { default: Some(hits), ..policy.estimate.clone() };
        HoldPolicy { estimate, ..policy.clone() }
    };
    // Estimates and lifetimes change too.
    let hits = 1 + policy.lifetime_ms % 7;
    let (first, second) = (estimate(hits), estimate(hits + 1));
    let second = HoldPolicy { lifetime_ms: policy.lifetime_ms * 3 / 2, ..second };
    let held = |limit: Limit, policy| Arc::new(Limit { hold: Some(Arc::new(policy)), ..limit });
    [held(before, first), held(after, second)]
}

/// Every limit that may hold.
fn holding_limits() -> Vec<Reloaded> {
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
                let limit = Limit { mode, ..limit(requests, unit, algorithm.clone()) };
                limits.push(holding(limit, policy));
            }
        }
    }
    limits.extend(in_flight_limits());
    limits
}

fn in_flight_limits() -> Vec<Reloaded> {
    let (mut limits, in_flight) = (Vec::new(), Algorithm::InFlight { remember: None });
    for by in HoldBy::ALL {
        for (calls, unit, lifetime_ms, mode) in
            [(4, Unit::Second, 5000, Mode::Enforced), (3, Unit::Minute, 60_000, Mode::Shadow)]
        {
            let policy = HoldPolicy { by, ..HoldPolicy::new(lifetime_ms) };
            let limit = Limit { mode, ..limit(calls, unit, in_flight.clone()) };
            limits.push(holding(limit, policy));
        }
    }
    limits
}

/// Limits without holds, on counters of their own.
fn plain_limits() -> Vec<Reloaded> {
    let mut limits = Vec::new();
    let idle = Algorithm::FirstHitWindow { idle_ms: Some(700) };
    let bucket = Algorithm::TokenBucket { burst: 9 };
    for algorithm in [Algorithm::FixedWindow, idle, LOG, Algorithm::SlidingWindow, bucket] {
        for (multiplier, when_denied, mode) in [
            (3, WhenDenied::Free, Mode::Enforced),
            (5, WhenDenied::Counted, Mode::Enforced),
            (7, WhenDenied::Free, Mode::Quota),
        ] {
            if algorithm == LOG && multiplier > 3 {
                continue;
            }
            let limit = Limit::new(9, Unit::Second, multiplier).unwrap();
            let limit = Limit { algorithm: algorithm.clone(), when_denied, mode, ..limit };
            let after = Limit { requests_per_unit: 6, ..limit.clone() };
            limits.push([limit, after].map(Arc::new));
        }
    }
    limits
}

/// What is done besides calls.
enum Administration {
    Nothing,
    Reads(Arc<Limit>, usize, Clear),
    GivesBack(GiveBack),
}

/// Makes random calls.
struct Caller<'a> {
    dice: Dice,
    users: &'a [String; 2],
    /// 1 while the rules are reloaded.
    version: usize,
    tokens: Vec<Token>,
    /// What admitted calls have charged, any of which may have been reservations.
    reserved: Vec<GiveBack>,
    /// The next nonce.
    next: u128,
}

impl Caller<'_> {
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
        match self.dice.below(60) {
            0 => -passed,
            1 => -(self.dice.below(90_000) as i64),
            _ => passed,
        }
    }

    fn any_limit(&mut self, limits: &[Reloaded]) -> Arc<Limit> {
        Arc::clone(&limits[self.dice.below(limits.len() as u64) as usize][self.version])
    }

    fn any_charge(&mut self, limits: &[Reloaded], take: HoldId) -> Charge {
        let limit = self.any_limit(limits);
        let user = &self.users[self.dice.below(2) as usize];
        let most = if limit.counts_calls() { 2 } else { 4 };
        let some = Hits::Charge(1 + self.dice.below(most));
        let hits = match self.dice.below(12) {
            0 => Hits::Check,
            1 => Hits::Refund(self.dice.below(5)),
            _ => some,
        };
        let policy = limit.hold.as_ref().filter(|_| hits == some);
        let beside = limit.hold.as_ref().filter(|_| limit.has_open_holds());
        let beside = beside.map(|policy| HoldAction::Beside { abandoned: policy.abandoned });
        let (hits, hold) = match policy {
            Some(_) if beside.is_some() && self.dice.below(6) == 0 => (some, beside),
            Some(policy) => self.hold(policy, limit.counts_calls(), some, take),
            None => (hits, beside),
        };
        let is_quota = limit.mode == Mode::Quota;
        let quota_group = if is_quota { self.dice.below(3) as usize } else { 0 };
        Charge { hold, quota_group, ..charge(user, hits, &limit) }
    }

    fn hold(
        &mut self,
        policy: &HoldPolicy,
        occupies: bool,
        some: Hits,
        take: HoldId,
    ) -> (Hits, Option<HoldAction>) {
        let HoldPolicy { lifetime_ms, abandoned, .. } = *policy;
        let estimate = policy.estimate.default.unwrap();
        match policy.by {
            HoldBy::Counter if self.dice.below(2) == 0 => {
                (some, Some(HoldAction::EndOldest { abandoned }))
            }
            HoldBy::Token | HoldBy::Counter if occupies => {
                (some, Some(HoldAction::Occupy { id: take, lifetime_ms }))
            }
            HoldBy::Token => (Hits::Charge(1 + self.dice.below(8)), None),
            HoldBy::Id => {
                let id = HoldId::from_caller(&[self.dice.below(6) as u8]);
                let used = (self.dice.below(2) == 0).then(|| self.dice.below(9));
                let is_end = self.dice.below(4) == 0;
                (some, Some(HoldAction::ById { id, used, is_end, lifetime_ms }))
            }
            HoldBy::Counter => {
                let hits = if self.dice.below(2) == 0 { Hits::Check } else { Hits::Charge(1) };
                // A call may announce an estimate of its own.
                let estimate =
                    if self.dice.below(3) == 0 { 1 + self.dice.below(6) } else { estimate };
                (hits, Some(HoldAction::Open { id: take, estimate, lifetime_ms, abandoned }))
            }
        }
    }

    /// Commits one charge of a token, or all, as the service does; or a call in flight that nobody took.
    fn commits(&mut self, now: Timestamp) -> Vec<Charge> {
        let index = self.dice.below(self.tokens.len() as u64) as usize;
        let (share, whole) = (self.dice.below(8), self.dice.below(2) == 0);
        let id = self.tokens[index].id;
        let (is_unknown, unknown) = (self.dice.below(9) == 0, self.nonce());
        let tokens = self.tokens.iter().enumerate();
        let named = tokens.filter(|(at, token)| *at == index || whole && token.id == id);
        let commit = |Token { charge, hits: held, made, .. }: &Token| {
            let used = match share {
                0 | 1 => 0,
                2 | 3 => *held,
                share => 2 * held * (share - 3) / 5,
            };
            let lifetime_ms = charge.counter.limit.hold.as_ref().unwrap().lifetime_ms;
            let is_unknown = is_unknown && charge.counter.limit.counts_calls();
            let (id, made) = if is_unknown { (unknown, now) } else { (id, *made) };
            let deadline = made.plus_millis(lifetime_ms);
            let hold = HoldAction::Commit { id, held: *held, used, made, deadline };
            Charge { hold: Some(hold), ..Charge::new(charge.counter.clone(), Hits::Commit) }
        };
        named.map(|(_, token)| commit(token)).collect()
    }

    /// A call, and the id of what it takes.
    fn call(&mut self, limits: &[Reloaded], now: Timestamp) -> (Vec<Charge>, HoldId) {
        let (count, take) = (1 + self.dice.below(3), self.nonce());
        let commits = self.dice.below(8) == 0;
        let mut call = Vec::new();
        for _ in 0..count {
            if !self.tokens.is_empty() && (commits || self.dice.below(4) == 0) {
                call.extend(self.commits(now));
            } else {
                call.push(self.any_charge(limits, take));
            }
        }
        (without_neighbours(&call), take)
    }

    fn administration(&mut self, limits: &[Reloaded]) -> Administration {
        if self.dice.below(30) == 0 {
            self.version = 1 - self.version;
        }
        match self.dice.below(60) {
            0..=4 if !self.reserved.is_empty() => {
                let index = self.dice.below(self.reserved.len() as u64) as usize;
                Administration::GivesBack(self.reserved.remove(index))
            }
            5..=8 => {
                let user = self.dice.below(2) as usize;
                Administration::Reads(self.any_limit(limits), user, Clear::No)
            }
            9 => {
                let user = self.dice.below(2) as usize;
                Administration::Reads(self.any_limit(limits), user, Clear::Yes)
            }
            _ => Administration::Nothing,
        }
    }

    /// Remembers what an admitted call has taken.
    fn taken(&mut self, charges: &[Charge], tallies: &[Tally], id: HoldId, now: Timestamp) {
        let judged = charges.iter().zip(tallies);
        let (judged, tallies): (Vec<_>, Vec<_>) = judged
            .filter(|(_, tally)| !matches!(tally.fit, Fit::Commit(_)))
            .map(|(charge, tally)| (charge.clone(), *tally))
            .unzip();
        if ledger::denies(&judged, &tallies) {
            return;
        }
        for (charge, tally) in judged.iter().zip(&tallies) {
            let (Hits::Charge(hits), Fit::Fits { .. }) = (charge.hits, tally.fit) else { continue };
            let Charge { counter, caller, hold, .. } = charge.clone();
            let by = counter.limit.hold.as_ref().map(|policy| policy.by);
            let is_known =
                |token: &&mut Token| token.id == id && token.charge.counter.same_counter(&counter);
            match self.tokens.iter_mut().find(is_known) {
                _ if by != Some(HoldBy::Token) => {}
                Some(known) => known.hits += hits,
                None => self.tokens.push(Token { charge: charge.clone(), id, hits, made: now }),
            }
            let is_open = matches!(
                hold,
                Some(
                    HoldAction::Open { .. }
                        | HoldAction::EndOldest { .. }
                        | HoldAction::Beside { .. }
                )
            );
            if !is_open {
                self.reserved.push(GiveBack { counter, hits, made: now, caller, hold });
            }
        }
        self.tokens.drain(..self.tokens.len().saturating_sub(REMEMBERED));
        self.reserved.drain(..self.reserved.len().saturating_sub(REMEMBERED));
    }
}

/// The call without the charges on a sliding window that a token of the call commits: they would read the window before as
/// it was before the call.
fn without_neighbours(call: &[Charge]) -> Vec<Charge> {
    let commits_sliding = |charge: &&Charge| {
        let is_sliding = charge.counter.limit.algorithm == Algorithm::SlidingWindow;
        is_sliding && matches!(charge.hold, Some(HoldAction::Commit { .. }))
    };
    let is_apart = |charge: &&Charge| {
        let mut commits = call.iter().filter(commits_sliding);
        let first = commits.find(|commit| commit.counter.same_counter(&charge.counter));
        first.is_none_or(|first| std::ptr::eq(first, *charge))
    };
    call.iter().filter(is_apart).cloned().collect()
}

/// A step in short, for the message of a failure.
fn spell(charges: &[Charge], tallies: &[Tally], now: Timestamp) -> String {
    let mut text = format!("at {} ms:", now.millis_since(BEGIN));
    for (index, Charge { counter, hits, hold, .. }) in charges.iter().enumerate() {
        let (key, tally) = (counter.key(BEGIN), tallies.get(index));
        text += &format!("\n  {key} {:?} {hits:?} {hold:?}: {tally:?}", counter.limit.mode);
    }
    text
}

/// What one step of a run compares.
struct Compared<'a> {
    backends: Vec<&'a mut dyn Backend>,
    number: u64,
    seed: u64,
    recent: Vec<String>,
}

impl Compared<'_> {
    /// The answer of the first, which all others must give.
    fn same<T: PartialEq + std::fmt::Debug>(
        &mut self,
        step: impl Fn() -> String,
        answer: impl Fn(&mut dyn Backend) -> T,
    ) -> T {
        let (first, others) = self.backends.split_first_mut().unwrap();
        let answers = answer(*first);
        for other in others {
            let theirs = answer(*other);
            let before = self.recent.iter().rev().take(12).rev();
            assert!(
                answers == theirs,
                "{} and {} differ at step {} of seed {}, after\n{}\n{}\n{answers:?}\n{theirs:?}",
                first.name(),
                other.name(),
                self.number,
                self.seed,
                before.cloned().collect::<Vec<_>>().join("\n"),
                step(),
            );
        }
        answers
    }
}

/// Runs this number of steps on all, and panics where they differ from the first. Each case has users of its own.
fn compare(steps: u64, seed: u64, users: &[[String; 2]], backends: Vec<&mut dyn Backend>) {
    let (began, limits, plain) = (Instant::now(), holding_limits(), plain_limits());
    let in_flight = in_flight_limits();
    let (mut dice, mut now, mut outcomes) = (Dice(seed), BEGIN, [0_u64; 5]);
    let names: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
    let mut compared = Compared { backends, number: 0, seed, recent: Vec::new() };
    let (tokens, reserved) = (Vec::new(), Vec::new());
    let mut caller =
        Caller { dice: Dice(seed), users: &users[0], version: 0, tokens, reserved, next: 0 };
    let mut of_case = Vec::new();
    for number in 0..steps {
        compared.number = number;
        if number % STEPS_OF_A_CASE == 0 {
            compared.backends.iter_mut().for_each(|backend| backend.clear());
            (now, compared.recent) = (BEGIN, Vec::new());
            (caller.tokens, caller.reserved) = (Vec::new(), Vec::new());
            caller.users = &users[dice.below(users.len() as u64) as usize];
            let any = |limits: &[Reloaded], dice: &mut Dice| {
                limits[dice.below(limits.len() as u64) as usize].clone()
            };
            of_case = (0..=dice.below(4)).map(|_| any(&limits, &mut dice)).collect();
            of_case.extend((0..dice.below(3)).map(|_| any(&plain, &mut dice)));
            // Commits on fixed windows have a script of their own.
            of_case.extend(limits.get((number / STEPS_OF_A_CASE % 8) as usize).cloned());
            if dice.below(2) == 0 {
                of_case.extend([any(&in_flight, &mut dice), any(&in_flight, &mut dice)]);
            }
        }
        now = now.shifted(caller.passed());
        match caller.administration(&of_case) {
            Administration::Nothing => {}
            Administration::Reads(limit, user, clear) => {
                let counter = charge(&caller.users[user], Hits::Check, &limit).counter;
                let step = || format!("reads {}, {clear:?}, at {now:?}", counter.key(BEGIN));
                let state = compared.same(step, |backend| backend.read(&counter, clear, now));
                compared.recent.push(format!("{}: {state:?}", step()));
            }
            Administration::GivesBack(give_back) => {
                // The model has no tally of windows that have ended.
                let step = || format!("gives back {give_back:?} at {now:?}");
                compared.same(step, |backend| {
                    backend.give_back(&give_back, now);
                });
                compared.recent.push(step());
            }
        }
        let (call, take) = caller.call(&of_case, now);
        if call.is_empty() {
            continue;
        }
        let tallies =
            compared.same(|| spell(&call, &[], now), |backend| backend.charge(&call, now));
        for tally in &tallies {
            outcomes[match tally.fit {
                Fit::Fits { .. } => 0,
                Fit::Over => 1,
                Fit::Commit(CommitOutcome::Applied) => 2,
                Fit::Commit(CommitOutcome::Repeated) => 3,
                Fit::Commit(CommitOutcome::Late) => 4,
            }] += 1;
        }
        compared.recent.push(spell(&call, &tallies, now));
        compared.recent.drain(..compared.recent.len().saturating_sub(12));
        caller.taken(&call, &tallies, take, now);
    }
    assert!(outcomes.iter().all(|count| *count >= steps / 200), "{outcomes:?}");
    println!(
        "{steps} steps of seed {seed}: {} agree; fits, over, applied, repeated, late: {outcomes:?}; {:.0?}",
        names.join(" and "),
        began.elapsed()
    );
}

fn users() -> [[String; 2]; 1] {
    [["a", "b"].map(str::to_owned)]
}

/// `HOLD_STEPS=1000000` makes it longer, and `SEED=7` another.
fn steps_and_seed() -> (u64, u64) {
    (number("HOLD_STEPS", 10_000), number("SEED", 1).max(1))
}

#[test]
fn memory_holds_as_the_model_does() {
    let (steps, seed) = steps_and_seed();
    // One seed for each core.
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                let (mut model, mut memory) = (HoldModel::default(), memory());
                let backends: Vec<&mut dyn Backend> = vec![&mut model, &mut memory];
                compare(steps / 2, 2 * seed + half, &users(), backends);
            });
        }
    });
}

#[test]
fn redis_holds_as_the_model_does() {
    let (steps, seed) = steps_and_seed();
    let mut redis = ScriptInRedis::start();
    compare(steps, seed + 1, &users(), vec![&mut HoldModel::default(), &mut redis]);
    assert!(redis.committed > steps / 400, "{} by the commit script", redis.committed);
    redis.redis.assert_no_key_leaks();
}

#[test]
fn redis_holds_as_memory_does_with_undeclared_keys() {
    let (steps, seed) = steps_and_seed();
    let mut redis = ScriptInRedis::start_with(KeyDeclaration::Undeclared);
    compare(steps, seed + 2, &users(), vec![&mut memory(), &mut redis]);
    assert!(redis.committed > steps / 400, "{} by the commit script", redis.committed);
    redis.redis.assert_no_key_leaks();
}

#[test]
fn the_simulated_redis_holds_as_the_model_does() {
    let (steps, seed) = steps_and_seed();
    for (keys, seed) in
        [(KeyDeclaration::Declared, seed + 1), (KeyDeclaration::Undeclared, seed + 2)]
    {
        let mut redis = ScriptInRedis::simulate(keys);
        compare(steps, seed, &users(), vec![&mut HoldModel::default(), &mut redis]);
        assert!(redis.committed > steps / 400, "{} by the commit script", redis.committed);
    }
}

#[test]
fn the_nodes_of_a_cluster_hold_as_the_model_does() {
    let (steps, seed) = steps_and_seed();
    let mut cluster = ScriptsInCluster::start();
    let users = cluster.users.clone();
    compare(steps, seed + 3, &users, vec![&mut HoldModel::default(), &mut cluster]);
    cluster.cluster.assert_no_key_leaks();
}
