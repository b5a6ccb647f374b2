//! Counters in this process: no network, no sharing, gone with the process.
//!
//! They are spread over shards, each under a lock of its own; how one keeps its counters is in
//! `memory/shard.rs`, how many there may be in `memory/capacity.rs`, and which of them is given up where
//! there are more in `memory/rank.rs`.

mod capacity;
mod rank;
mod shard;

use std::{
    hash::RandomState,
    sync::{Mutex, MutexGuard, PoisonError},
};

use self::{
    capacity::Capacity,
    shard::{Address, Shard},
};
use super::{Clear, Clock};
use crate::{
    engine::{
        algorithm::{AnyAccount, Terms},
        key::Counter,
        ledger::{self, Charge, CounterState, Few, Judgement, Posting},
        rule::Algorithm,
        time::Timestamp,
    },
    telemetry::MemoryMetrics,
};

/// So many counters are kept at most, where nobody says otherwise.
const COUNTERS_MAX: usize = 1_000_000;

/// About so many are in one shard when all are there. However many that is, no call waits long for a
/// shard that moves into a larger table, or looks through all of its own.
const COUNTERS_OF_A_SHARD: usize = 4096;

/// Counters in tables.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    shards: Box<[Mutex<Shard>]>,
    /// Says where a counter is kept. It is keyed with a secret: end users choose values, and must not
    /// choose places.
    hasher: RandomState,
    capacity: Capacity,
}

/// A counter that a call meets, and where it is kept.
struct Line<'call> {
    shard: usize,
    here: Address,
    /// Where the previous window of a sliding window is kept: in the same shard.
    previous: Option<Address>,
    terms: Terms<'call>,
}

impl MemoryStore {
    /// An empty store that tells the time by `clock`.
    pub fn new(clock: Clock) -> Self {
        Self::with_room(clock, Capacity::new(COUNTERS_MAX, None))
    }

    /// The same, that keeps at most so many counters; `metrics` hear of those that are given up.
    pub fn bounded(clock: Clock, counters_max: usize, metrics: MemoryMetrics) -> Self {
        Self::with_room(clock, Capacity::new(counters_max, Some(metrics)))
    }

    fn with_room(clock: Clock, capacity: Capacity) -> Self {
        let shards = (capacity.counters_max / COUNTERS_OF_A_SHARD).next_power_of_two();
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        Self { clock, shards, hasher: RandomState::new(), capacity }
    }

    /// Makes all charges of one call, or none.
    pub fn charge(&self, charges: &[Charge]) -> Judgement {
        self.charge_at(charges, (self.clock)())
    }

    /// The same at a given time.
    pub fn charge_at(&self, charges: &[Charge], now: Timestamp) -> Judgement {
        let mut lines: Few<Line<'_>> = Few::new();
        let mut postings: Few<Posting<'_>> = Few::new();
        for Charge { counter, hits, caller } in charges {
            let line = self.line(counter, now);
            let terms = line.terms;
            let account = lines.iter().position(|it| it.here == line.here).unwrap_or_else(|| {
                lines.push(line);
                lines.len() - 1
            });
            let account = Some(account);
            postings.push(Posting { account, hits: *hits, caller: caller.as_deref(), terms });
        }

        let mut open = Open::lock(&self.shards, lines.iter().map(|line| line.shard).collect());
        let mut accounts: Few<AnyAccount> = lines.iter().map(|it| open.take(it)).collect();
        let judgement =
            ledger::judge(&postings, &mut accounts).expect("every posting has an account");
        let kept = lines.drain(..).zip(accounts.drain(..));
        let given_up = kept.map(|(line, account)| open.keep(line, account, &self.capacity)).sum();
        drop(open);
        self.capacity.tell(given_up);
        judgement
    }

    /// How a counter stands; `clear` resets it, with no hit in between.
    pub fn look(&self, counter: &Counter, clear: Clear) -> CounterState {
        let line = self.line(counter, (self.clock)());
        let mut open = Open::lock(&self.shards, Few::from_iter([line.shard]));
        let account = open.take(&line);
        let standing = CounterState::of(&account, &line.terms);
        match clear {
            // What is there already takes no capacity.
            Clear::No => drop(open.keep(line, account, &self.capacity)),
            Clear::Yes => {
                let windows = [Some(line.here), line.previous].into_iter().flatten();
                let shard = open.shard(line.shard);
                self.capacity.free(windows.filter(|address| shard.remove(address)).count());
            }
        }
        standing
    }

    /// How many counters are kept, live or not yet swept.
    pub fn counters(&self) -> usize {
        self.capacity.kept()
    }

    fn line<'call>(&self, counter: &'call Counter, now: Timestamp) -> Line<'call> {
        let terms = Terms::new(&counter.limit, now);
        // All windows of a counter are in one shard, so that a sliding window finds both of its own.
        let hash = counter.hash_of_id(&self.hasher);
        let shards = u64::try_from(self.shards.len()).unwrap_or(u64::MAX);
        let previous = match counter.limit.algorithm {
            Algorithm::SlidingWindow => terms.span.previous(),
            _ => None,
        };
        Line {
            // Not by the bits that say where in a shard's table it is.
            shard: usize::try_from((hash >> 32) % shards).unwrap_or(0),
            here: Address::new(hash, counter, terms.span.start),
            previous: previous.map(|span| Address::new(hash, counter, span.start)),
            terms,
        }
    }
}

/// The shards that a call needs, locked until it ends.
struct Open<'store>(Few<(usize, MutexGuard<'store, Shard>)>);

impl<'store> Open<'store> {
    /// Locks each once, and in ascending order: so no two calls wait for each other.
    fn lock(shards: &'store [Mutex<Shard>], mut numbers: Few<usize>) -> Self {
        numbers.sort_unstable();
        numbers.dedup();
        let lock = |number: usize| {
            // Nothing panics while the lock is held, and if it did, the books would still be whole.
            let shard = shards.get(number)?.lock().unwrap_or_else(PoisonError::into_inner);
            Some((number, shard))
        };
        Self(numbers.into_iter().filter_map(lock).collect())
    }

    fn shard(&mut self, number: usize) -> &mut Shard {
        let place = self.0.binary_search_by_key(&number, |(number, _)| *number);
        let shard = place.ok().and_then(|place| self.0.get_mut(place));
        shard.map(|(_, shard)| &mut **shard).expect("the shard of each line is locked")
    }

    /// The account of a line, which is in the call's hands until it is kept again.
    fn take(&mut self, Line { shard, here, previous, terms }: &Line<'_>) -> AnyAccount {
        let shard = self.shard(*shard);
        let mut account =
            shard.take(here).unwrap_or_else(|| AnyAccount::new(&terms.limit.algorithm));
        if let (AnyAccount::SlidingWindow(account), Some(previous)) = (&mut account, previous) {
            account.previous = shard.counted(previous);
        }
        account
    }

    /// Keeps the account of a line, and tells how many live ones were given up for it.
    fn keep(&mut self, line: Line<'_>, account: AnyAccount, capacity: &Capacity) -> u64 {
        self.shard(line.shard).keep(line.here, account, &line.terms, capacity)
    }
}
