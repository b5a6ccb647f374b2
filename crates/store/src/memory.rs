//! Counters in the memory of this process: no network, not shared, lost when the process ends.
//!
//! They are distributed over shards, each with its own lock. `memory/shard.rs` is one shard,
//! `memory/capacity.rs` the limit on the number of counters, `memory/rank.rs` the order of eviction.

mod capacity;
pub mod metrics;
mod open_takes;
mod rank;
mod shard;

use std::{
    hash::{BuildHasher as _, RandomState},
    slice,
    sync::Arc,
};

use hashbrown::HashTable;
use tollkeeper_base::process::clock::Clock;
use tollkeeper_engine::{
    algorithm::{Algorithm, AnyAccount, account::Terms, hold_record::HoldRecord},
    hold::Abandoned,
    hold_id::HoldId,
    key::Counter,
    ledger::{self, Charge, CounterState, Few, GiveBack, HoldAction, Posting, Tally, Verdict},
    time::Timestamp,
};

use self::{
    capacity::Capacity,
    metrics::{MemoryMetrics, MemoryReport, MemorySize},
    open_takes::OpenTakes,
    shard::{HashedKey, LocatedCounter, Shard},
};
use super::Clear;
use crate::sync::{Mutex, MutexGuard};

/// The most that a store keeps that is not bounded otherwise.
const SIZE_MAX: MemorySize = MemorySize { counters: 1_000_000, bytes: 256 << 20 };

/// Counters per shard in a full store, about: few enough that no call waits long while a shard grows its
/// table or is searched from end to end.
const COUNTERS_PER_SHARD: usize = 4096;

/// The most charges of a call whose counters are found by a scan.
const SCANNED_MAX: usize = 16;

/// About the bytes of a counter with a short key.
const COUNTER_BYTES: usize = 256;

#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    shards: Arc<[Mutex<Shard>]>,
    /// Chooses the shard of a counter and its bucket there. It has a secret key, since end users choose
    /// values, and must not choose buckets.
    hasher: RandomState,
    capacity: Arc<Capacity>,
    open_takes: OpenTakes,
}

impl MemoryStore {
    /// An empty store on this clock, of at most a million counters.
    pub fn new(clock: Clock) -> Self {
        Self::with_size(clock, SIZE_MAX, None)
    }

    /// An empty store of at most this size; `metrics` count the evictions of live counters.
    pub fn bounded(clock: Clock, max: MemorySize, metrics: MemoryMetrics) -> Self {
        Self::with_size(clock, max, Some(metrics))
    }

    /// An empty store of at most this size.
    pub fn of_size(clock: Clock, max: MemorySize) -> Self {
        Self::with_size(clock, max, None)
    }

    fn with_size(clock: Clock, max: MemorySize, metrics: Option<MemoryMetrics>) -> Self {
        let counters = max.counters.min(max.bytes / COUNTER_BYTES);
        let shards = (counters / COUNTERS_PER_SHARD).next_power_of_two();
        let capacity = Arc::new(Capacity::new(max, shards, metrics));
        let shard = || Mutex::new(Shard::new(Arc::clone(&capacity)));
        Self {
            clock,
            shards: (0..shards).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            open_takes: OpenTakes::new(Arc::clone(&capacity)),
            capacity,
        }
    }

    /// Makes all charges of one call, or none.
    pub fn charge(&self, charges: &[Charge]) -> Verdict {
        self.charge_at(charges, self.now())
    }

    /// Makes all charges of one call at `now`, or none.
    pub fn charge_at(&self, charges: &[Charge], now: Timestamp) -> Verdict {
        if let [charge] = charges
            && charge.hold.is_none()
        {
            return self.charge_one(charge, now);
        }
        let mut counters = CalledCounters::of_charges(charges.len());
        let mut postings: Few<Posting<'_>> = Few::new();
        for charge in charges {
            let terms = charge.terms(now);
            let is_committed = matches!(charge.hold, Some(HoldAction::Commit { .. }));
            let counter = LocatedCounter { is_committed, ..self.locate(&charge.counter, terms) };
            let account = Some(counters.index_of(counter));
            let hold = self.locate_hold(&charge.counter, charge.hold, terms);
            let hold = hold.map(|hold| counters.index_of(hold));
            let commits =
                matches!(charge.hold, Some(HoldAction::Commit { .. } | HoldAction::ById { .. }));
            let reset = commits.then(|| self.locate_reset(&charge.counter, terms));
            let reset = reset.map(|reset| counters.index_of(reset));
            postings.push(Posting { account, hold, reset, hits: charge.hits, charge, terms });
        }
        let counters = counters.each;

        let ends = |charge: &Charge| matches!(charge.hold, Some(HoldAction::EndOldest { .. }));
        let _ending = charges.iter().any(ends).then(|| self.open_takes.ending());
        let shards = counters.iter().map(|counter| counter.shard).collect();
        let mut locked = LockedShards::lock(&self.shards, shards);
        let mut accounts: Few<AnyAccount> =
            counters.iter().map(|counter| locked.take(counter)).collect();
        let verdict =
            ledger::judge(&postings, &mut accounts).expect("every posting has an account");
        let mut evicted = 0;
        for (counter, account) in counters.iter().zip(accounts) {
            evicted += locked.keep(counter, account);
        }
        // Before another call can end it.
        if charges.iter().any(|charge| charge.hold.is_some()) {
            self.open_takes.note(charges, &verdict, now);
        }
        drop(locked);
        self.capacity.report_evicted(evicted);
        for id in &verdict.ended {
            for counter in self.open_takes.end(*id) {
                self.end_open_hold(&counter, *id, now);
            }
        }
        verdict
    }

    /// Makes a charge without a hold, as most calls do: under one lock, and in its place.
    fn charge_one(&self, charge: &Charge, now: Timestamp) -> Verdict {
        let terms = charge.terms(now);
        let counter = self.locate(&charge.counter, terms);
        let posting =
            Posting { account: Some(0), hold: None, reset: None, hits: charge.hits, charge, terms };
        let mut shard = self.shards.get(counter.shard).expect("a shard of the store").lock();
        let judge = |account: &mut AnyAccount| {
            ledger::judge(&[posting], slice::from_mut(account)).expect("the posting has an account")
        };
        let (verdict, evicted) = shard.change(&counter, judge);
        drop(shard);
        self.capacity.report_evicted(evicted);
        verdict
    }

    /// Ends a hold without an id of its own, if it is still open on this counter.
    fn end_open_hold(&self, counter: &Counter, id: HoldId, now: Timestamp) {
        let holds = HoldAction::EndOldest { abandoned: Abandoned::Release };
        let terms = counter.limit.terms(now);
        let Some(holds) = self.locate_hold(counter, Some(holds), terms) else { return };
        let mut locked = LockedShards::lock(&self.shards, Few::from_iter([holds.shard]));
        let mut account = locked.take(&holds);
        if let AnyAccount::InFlight(account) = &mut account {
            account.end(id, now);
        }
        locked.keep(&holds, account);
    }

    /// Gives back hits of a reservation at `now`. It creates no counter.
    pub fn give_back_at(&self, give_back: &GiveBack, now: Timestamp) -> Tally {
        let terms = give_back.terms(now);
        let counter = self.locate(&give_back.counter, terms);
        let record = self.locate_hold(&give_back.counter, give_back.hold, terms);
        // The record of a hold is in the shard of its counter.
        let mut locked = LockedShards::lock(&self.shards, Few::from_iter([counter.shard]));
        let mut account = locked.take(&counter);
        let mut record_account = record.as_ref().map(|record| locked.take(record));
        let tally = give_back.apply(&mut account, record_account.as_mut(), &terms);
        if let (Some(record), Some(account)) = (record, record_account) {
            locked.keep(&record, account);
        }
        // A counter that is kept already evicts none.
        locked.keep(&counter, account);
        tally
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The state of a counter, reset with [`Clear::Yes`], with no hit in between.
    pub fn read_counter(&self, counter: &Counter, clear: Clear) -> CounterState {
        self.read_counter_at(counter, clear, self.now())
    }

    /// The state of a counter at `now`, reset with [`Clear::Yes`]. Nothing else changes it.
    pub fn read_counter_at(&self, counter: &Counter, clear: Clear, now: Timestamp) -> CounterState {
        let charge = Charge::reading(counter.clone());
        let terms = charge.terms(now);
        let mut located: Few<LocatedCounter<'_>> = Few::from_iter([self.locate(counter, terms)]);
        located.extend(self.locate_hold(counter, charge.hold, terms));
        let shards = located.iter().map(|counter| counter.shard).collect();
        let mut locked = LockedShards::lock(&self.shards, shards);
        let mut accounts: Few<AnyAccount> =
            located.iter().map(|counter| locked.copy(counter)).collect();
        let hold = (located.len() > 1).then_some(1);
        let posting = Posting {
            account: Some(0),
            hold,
            reset: None,
            hits: charge.hits,
            charge: &charge,
            terms,
        };
        let state = CounterState::read(&posting, &mut accounts).expect("the account is there");
        if clear == Clear::Yes {
            for counter in located {
                let shard = locked.shard(counter.shard);
                let keys = [Some(counter.key), counter.previous_key];
                keys.iter().flatten().for_each(|key| shard.remove(key));
            }
        }
        if clear.ends_holds() {
            let record = AnyAccount::HoldRecord(Box::new(HoldRecord::of_reset(now)));
            locked.keep(&self.locate_reset(counter, terms), record);
        }
        state
    }

    /// Shows the key of each counter, including expired ones that are not yet dropped, until `found` wants no more. Returns
    /// whether these are all.
    pub fn keys(&self, found: &mut (dyn FnMut(&str) -> bool + Send)) -> bool {
        let mut shards = self.shards.iter();
        shards.all(|shard| shard.lock().keys().fold(true, |_, key| found(key)))
    }

    /// The number of counters, including expired ones that are not yet dropped.
    pub fn counters(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Reports what the counters take, whenever it is called.
    pub fn reporter(&self) -> impl Fn() -> MemoryReport + Clone + Send + Sync + use<> {
        let (shards, capacity) = (Arc::clone(&self.shards), Arc::clone(&self.capacity));
        move || MemoryReport {
            used: MemorySize {
                counters: shards.iter().map(|shard| shard.lock().len()).sum(),
                bytes: capacity.bytes(),
            },
            max: capacity.max,
        }
    }

    /// What is known of the hold that a charge acts on, if it is not part of the counter itself.
    fn locate_hold(
        &self,
        counter: &Counter,
        hold: Option<HoldAction>,
        terms: Terms,
    ) -> Option<LocatedCounter<'_>> {
        let hold = hold?;
        let key = hold.key_beside(counter)?;
        let new_account: fn() -> AnyAccount = match hold {
            HoldAction::Open { .. } | HoldAction::EndOldest { .. } | HoldAction::Beside { .. } => {
                || AnyAccount::InFlight(Box::default())
            }
            _ => || AnyAccount::HoldRecord(Box::default()),
        };
        Some(self.locate_beside(counter, key, new_account, terms))
    }

    /// The record of the counter's last reset.
    fn locate_reset(&self, counter: &Counter, terms: Terms) -> LocatedCounter<'_> {
        let record = || AnyAccount::HoldRecord(Box::default());
        self.locate_beside(counter, counter.reset_key(), record, terms)
    }

    /// What is kept beside a counter, in the same shard.
    fn locate_beside(
        &self,
        counter: &Counter,
        key: String,
        new_account: fn() -> AnyAccount,
        terms: Terms,
    ) -> LocatedCounter<'_> {
        let of_counter = self.locate(counter, terms);
        let key = HashedKey::of_hold(self.hasher.hash_one(&key), key);
        LocatedCounter { key, new_account, previous_key: None, ..of_counter }
    }

    /// The counter in the window `terms.span`.
    fn locate<'call>(&self, counter: &'call Counter, terms: Terms) -> LocatedCounter<'call> {
        // All windows of a counter are in one shard, so that a sliding window finds both of its own.
        let hash = counter.hash_of_id(&self.hasher);
        let shards = u64::try_from(self.shards.len()).unwrap_or(u64::MAX);
        let previous = match counter.limit.algorithm {
            Algorithm::SlidingWindow => terms.span.previous(),
            _ => None,
        };
        LocatedCounter {
            // The lower bits choose the bucket in the table of a shard.
            shard: usize::try_from((hash >> 32) % shards).unwrap_or(0),
            key: HashedKey::new(hash, counter, terms.span.start),
            previous_key: previous.map(|span| HashedKey::new(hash, counter, span.start)),
            new_account: counter.limit.algorithm.new_account_of(),
            terms,
            is_committed: false,
        }
    }
}

/// The counters of a call, and what is kept beside them, each once.
struct CalledCounters<'call> {
    each: Few<LocatedCounter<'call>>,
    /// Their indices by their hashes, for a call of many charges.
    by_hash: Option<HashTable<usize>>,
}

impl<'call> CalledCounters<'call> {
    /// Room for the counters of a call with this number of charges. If these are few, a scan of the list is faster than a table.
    fn of_charges(count: usize) -> Self {
        let by_hash = (count > SCANNED_MAX).then(|| HashTable::with_capacity(count));
        Self { each: Few::new(), by_hash }
    }

    /// The index of a counter, which is added if it is new.
    fn index_of(&mut self, counter: LocatedCounter<'call>) -> usize {
        let Self { each, by_hash } = self;
        let (new, hash) = (each.len(), counter.key.hash);
        let is_same =
            |index: &usize| each.get(*index).is_some_and(|known| known.key == counter.key);
        let index = match by_hash {
            None => (0..new).find(is_same).unwrap_or(new),
            Some(by_hash) => {
                let hash_of = |index: &usize| each.get(*index).map_or(0, |known| known.key.hash);
                *by_hash.entry(hash, is_same, hash_of).or_insert(new).get()
            }
        };
        if index == new {
            each.push(counter);
        }
        index
    }
}

/// The shards that a call needs, locked until it ends.
struct LockedShards<'store>(Few<(usize, MutexGuard<'store, Shard>)>);

impl<'store> LockedShards<'store> {
    /// Locks each shard once, in ascending order, so that no two calls wait for each other.
    fn lock(shards: &'store [Mutex<Shard>], mut indexes: Few<usize>) -> Self {
        indexes.sort_unstable();
        indexes.dedup();
        let mut locked = Few::new();
        for index in indexes {
            if let Some(shard) = shards.get(index) {
                locked.push((index, shard.lock()));
            }
        }
        Self(locked)
    }

    fn shard(&mut self, index: usize) -> &mut Shard {
        let position = self.0.binary_search_by_key(&index, |(index, _)| *index);
        let locked = position.ok().and_then(|position| self.0.get_mut(position));
        locked.map(|(_, shard)| &mut **shard).expect("the shard of each counter is locked")
    }

    /// Takes the account of a counter out of its shard, until it is kept again.
    fn take(&mut self, counter: &LocatedCounter<'_>) -> AnyAccount {
        let account = self.shard(counter.shard).take(counter);
        self.present(counter, account)
    }

    /// A copy of the account of a counter, which stays in its shard.
    fn copy(&mut self, counter: &LocatedCounter<'_>) -> AnyAccount {
        let account = self.shard(counter.shard).copy(&counter.key);
        self.present(counter, account)
    }

    /// The account as it is at the time of the call.
    fn present(&mut self, counter: &LocatedCounter<'_>, account: Option<AnyAccount>) -> AnyAccount {
        let mut account = account.unwrap_or_else(counter.new_account);
        let previous = self.shard(counter.shard).counted(counter.previous_key.as_ref());
        counter.update(&mut account, previous);
        account
    }

    /// Keeps the account of a counter. Returns the number of live counters that were evicted for it.
    fn keep(&mut self, counter: &LocatedCounter<'_>, account: AnyAccount) -> u64 {
        self.shard(counter.shard).keep(counter, account)
    }
}
