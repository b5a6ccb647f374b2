//! Takes, commits and deadlines of two calls, in every order, on one counter and on two beside a shared one: memory and Redis
//! do what the model does, and a counter holds what was used.

use tollkeeper::{
    engine::{hold::Abandoned, ledger},
    store::Clear,
};

use super::LIFETIME_MS;
use crate::support::{backends::*, charges::prelude::*, model::holds::HoldModel, prelude::*};

/// What one take holds of a window.
const ESTIMATE: u64 = 6;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Take,
    Commit,
    /// The time passes at which its hold ends.
    Deadline,
}

use Event::{Commit, Deadline, Take};

/// What may happen to a call: each commit is sent twice, and may be late.
const COURSES: [&[Event]; 5] = [
    &[Take, Deadline],
    &[Take, Commit, Commit],
    &[Take, Deadline, Commit, Commit],
    &[Take, Commit, Deadline, Commit],
    &[Take, Commit, Commit, Deadline],
];

/// Events of two calls.
type Order = Vec<(usize, Event)>;

/// Every order of two courses.
fn interleaved(one: &[Event], other: &[Event]) -> Vec<Order> {
    let begun_by = |call: usize, first: Event, rest: Vec<Order>| {
        rest.into_iter().map(move |rest| [vec![(call, first)], rest].concat())
    };
    match (one, other) {
        ([], []) => vec![Vec::new()],
        (one, other) => {
            let mut orders = Vec::new();
            if let [first, rest @ ..] = one {
                orders.extend(begun_by(0, *first, interleaved(rest, other)));
            }
            if let [first, rest @ ..] = other {
                orders.extend(begun_by(1, *first, interleaved(one, rest)));
            }
            orders
        }
    }
}

fn every_order() -> Vec<Order> {
    let pairs = COURSES.iter().flat_map(|one| COURSES.iter().map(move |other| (one, other)));
    pairs.flat_map(|(one, other)| interleaved(one, other)).collect()
}

/// What varies besides the order.
#[derive(Debug, Clone, Copy)]
struct Variant {
    /// Whether both takes fit at once.
    is_wide: bool,
    /// The time between two events. The longer one leads through several windows.
    pause_ms: u64,
    /// Whether each call also charges a counter that the other does not.
    is_shared: bool,
    /// What each call uses.
    used: [u64; 2],
}

fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for used in [[2, 9], [9, 2], [0, ESTIMATE]] {
        for (pause_ms, is_shared) in [(1, false), (400, true), (1, true), (400, false)] {
            for is_wide in [false, true] {
                variants.push(Variant { is_wide, pause_ms, is_shared, used });
            }
        }
    }
    variants
}

/// Every way to hold: by which form, on which algorithm, and what becomes of holds without a commit.
fn ways() -> Vec<(HoldBy, Algorithm, Abandoned)> {
    let mut ways = Vec::new();
    for by in HoldBy::ALL {
        for algorithm in Algorithm::all(2 * ESTIMATE, None) {
            let holds = match algorithm {
                Algorithm::SlidingLog { .. } => false,
                Algorithm::SlidingWindow => by == HoldBy::Token,
                _ => true,
            };
            if holds {
                ways.push((by, algorithm.clone(), Abandoned::Keep));
            }
            if holds && by == HoldBy::Counter && algorithm == Algorithm::FixedWindow {
                ways.push((by, algorithm, Abandoned::Release));
            }
        }
    }
    ways
}

/// Two calls on a limit.
struct Calls {
    limit: Arc<Limit>,
    by: HoldBy,
    abandoned: Abandoned,
    variant: Variant,
    /// Distinguishes the counters of this order.
    number: usize,
    /// When each was admitted.
    made: [Option<Timestamp>; 2],
    /// What each has left on the shared counter.
    left: [u64; 2],
}

impl Calls {
    fn new(way: &(HoldBy, Algorithm, Abandoned), variant: Variant, number: usize) -> Self {
        let (by, algorithm, abandoned) = way.clone();
        let takes = if variant.is_wide { 2 } else { 1 };
        let is_in_flight = matches!(algorithm, Algorithm::InFlight { .. });
        let requests = if is_in_flight { takes } else { takes * ESTIMATE + 2 };
        let algorithm = match algorithm {
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst: requests },
            other => other,
        };
        let unit = if variant.pause_ms == 1 { Unit::Hour } else { Unit::Second };
        let policy = HoldPolicy { by, abandoned, ..HoldPolicy::new(LIFETIME_MS) };
        let hold = Some(Arc::new(policy));
        let limit = Arc::new(Limit { hold, ..limit(requests, unit, algorithm) });
        let (made, left) = ([None; 2], [0; 2]);
        Self { limit, by, abandoned, variant, number, made, left }
    }

    /// The users whose counters a call charges, the shared one last.
    fn users(&self, call: usize) -> Vec<String> {
        let shared = format!("shared {}", self.number);
        match self.variant.is_shared {
            true => vec![format!("own {call} {}", self.number), shared],
            false => vec![shared],
        }
    }

    fn id(&self, call: usize) -> HoldId {
        HoldId::new(1 + 2 * self.number as u128 + call as u128)
    }

    fn take(&self, call: usize) -> Vec<Charge> {
        let (id, lifetime_ms, abandoned) = (self.id(call), LIFETIME_MS, self.abandoned);
        let estimate = if self.limit.counts_calls() { 1 } else { ESTIMATE };
        let used = Some(self.variant.used[call]);
        let (hits, hold) = match self.by {
            HoldBy::Id => {
                (estimate, Some(HoldAction::ById { id, used, is_end: false, lifetime_ms }))
            }
            _ if self.limit.counts_calls() => (1, Some(HoldAction::Occupy { id, lifetime_ms })),
            HoldBy::Token => (estimate, None),
            HoldBy::Counter => (0, Some(HoldAction::Open { id, estimate, lifetime_ms, abandoned })),
        };
        let hits = if hits == 0 { Hits::Check } else { Hits::Charge(hits) };
        let on = |user: &String| Charge { hold, ..charge(user, hits, &self.limit) };
        self.users(call).iter().map(on).collect()
    }

    /// The commit of a call; by counter it names one counter of the take. `None` if it needs a token and has none.
    fn commit(&self, call: usize) -> Option<Vec<Charge>> {
        let used = self.variant.used[call];
        let on = |user: &String, hits, hold| Charge {
            hold: Some(hold),
            ..charge(user, hits, &self.limit)
        };
        Some(match self.by {
            HoldBy::Token => {
                let (id, made) = (self.id(call), self.made[call]?);
                let held = if self.limit.counts_calls() { 1 } else { ESTIMATE };
                let deadline = made.plus_millis(LIFETIME_MS);
                let commit = HoldAction::Commit { id, held, used, made, deadline };
                self.users(call).iter().map(|user| on(user, Hits::Commit, commit)).collect()
            }
            HoldBy::Id => self.take(call),
            HoldBy::Counter => {
                let ends = HoldAction::EndOldest { abandoned: self.abandoned };
                let hits = if used == 0 { Hits::Charge(1) } else { Hits::Charge(used) };
                vec![on(&self.users(call)[0], hits, ends)]
            }
        })
    }

    /// What it charges at an event; nothing if only time passes.
    fn at(&self, call: usize, event: Event) -> Vec<Charge> {
        match event {
            Take => self.take(call),
            Commit => self.commit(call).unwrap_or_default(),
            Deadline => Vec::new(),
        }
    }

    fn note(
        &mut self,
        call: usize,
        event: Event,
        charges: &[Charge],
        tallies: &[Tally],
        now: Timestamp,
    ) {
        let is_open = |made: Timestamp| now < made.plus_millis(LIFETIME_MS);
        match (event, self.made[call]) {
            (Take, _) if !ledger::denies(charges, tallies) => {
                (self.made[call], self.left[call]) = (Some(now), ESTIMATE);
            }
            // Only the first commit counts: a second one finds what it has set.
            (Commit, Some(made)) if is_open(made) => self.left[call] = self.variant.used[call],
            _ => {}
        }
    }

    /// What the shared counter holds after all, where that is known without the model: no window has ended.
    fn expected(&self) -> Option<u64> {
        let counts = matches!(
            self.limit.algorithm,
            Algorithm::FixedWindow | Algorithm::FirstHitWindow { .. }
        );
        let is_known = self.by == HoldBy::Token && counts && self.variant.pause_ms == 1;
        is_known.then(|| self.left.iter().sum())
    }
}

/// Runs one order on all backends, and panics where they differ. Returns the number of calls.
fn run(order: &Order, mut calls: Calls, backends: &mut [&mut dyn Backend]) -> usize {
    let (mut now, mut made) = (BEGIN, 0);
    for (call, event) in order {
        now = now.plus_millis(calls.variant.pause_ms);
        if let (Deadline, Some(made)) = (event, calls.made[*call]) {
            now = now.max(made.plus_millis(LIFETIME_MS));
        }
        let charges = calls.at(*call, *event);
        if charges.is_empty() {
            continue;
        }
        let mut tallies = backends.iter_mut().map(|backend| backend.charge(&charges, now));
        let first = tallies.next().unwrap();
        assert!(
            tallies.all(|other| other == first),
            "{:?} {:?} {:?}: they differ at {call} {event:?} in {order:?}",
            calls.by,
            calls.limit,
            calls.variant,
        );
        calls.note(*call, *event, &charges, &first, now);
        made += 1;
    }
    let shared = charge(calls.users(0).last().unwrap(), Hits::Check, &calls.limit).counter;
    let mut states = backends.iter_mut().map(|backend| backend.read(&shared, Clear::No, now));
    let first = states.next().unwrap();
    assert!(states.all(|other| other == first), "{:?} after {order:?}", calls.variant);
    if let Some(expected) = calls.expected() {
        assert_eq!(first.used, expected, "{:?} {:?} after {order:?}", calls.limit, calls.variant);
    }
    made
}

/// Runs every order, each on every `share`-th way to hold with one variant in turn. If `ALL_VARIANTS` is 1, every order
/// runs on every way with every variant.
fn in_every_order(backend: &mut dyn Backend, share: usize) {
    let (orders, ways, variants) = (every_order(), ways(), variants());
    assert_eq!(orders.len(), 976);
    let all = number("ALL_VARIANTS", 0) == 1;
    let (began, mut runs, mut made) = (Instant::now(), 0, 0);
    for (number, way) in ways.iter().enumerate() {
        backend.clear();
        for (index, order) in orders.iter().enumerate() {
            if !all && (index + number) % share > 0 {
                continue;
            }
            let turn = runs % variants.len();
            let mut model = HoldModel::default();
            for variant in if all { &variants[..] } else { &variants[turn..=turn] } {
                runs += 1;
                let calls = Calls::new(way, *variant, runs);
                made += run(order, calls, &mut [&mut model, &mut *backend]);
            }
        }
    }
    println!(
        "{} orders, {} ways to hold: {runs} runs of {made} calls on {}: 0 differences; {:.0?}",
        orders.len(),
        ways.len(),
        backend.name(),
        began.elapsed()
    );
}

#[test]
fn memory_does_what_the_model_does_in_every_order_of_two_calls() {
    in_every_order(&mut memory(), 1);
}

#[test]
fn redis_does_what_the_model_does_in_every_order_of_two_calls() {
    let mut redis = ScriptInRedis::start();
    in_every_order(&mut redis, 7);
    redis.redis.assert_no_key_leaks();
}
