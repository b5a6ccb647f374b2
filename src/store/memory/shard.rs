//! One shard of the counters: a table, and a clock hand that goes round and drops expired counters.
//!
//! Each new counter advances the hand by a few buckets, so that no call waits for a full sweep.

use std::{fmt, mem};

use hashbrown::HashTable;

use super::{capacity::Capacity, rank::Rank};
use crate::engine::{
    algorithm::{AnyAccount, account::Terms, fixed_window::FixedWindow},
    key::Counter,
    time::Timestamp,
};

/// Buckets by which a new counter advances the clock hand: the hand goes round once while a sixteenth of the
/// table is refilled.
const STEP: usize = 16;

/// Buckets among whose counters one is chosen if a live one must be evicted.
const SAMPLE: usize = 256;

/// 2^64 divided by the golden ratio: odd, with well mixed bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Replaces an account that a call has taken.
const TAKEN: AnyAccount = AnyAccount::FixedWindow(FixedWindow { used: 0 });

/// The counters under one lock.
#[derive(Default)]
pub(super) struct Shard {
    table: HashTable<Kept>,
    /// The bucket that was visited last.
    clock_hand: usize,
    /// No counter ends earlier.
    earliest: Timestamp,
    /// The length of all keys.
    key_bytes: usize,
}

/// The keys hold values of descriptors, which must not be logged.
impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("counters", &self.table.len()).finish_non_exhaustive()
    }
}

struct Kept {
    hash: u64,
    key: Box<str>,
    account: AnyAccount,
    /// Its end, and its place in the order of eviction.
    rank: Rank,
}

/// A counter of a call, in its window.
pub(super) struct LocatedCounter<'call> {
    pub(super) shard: usize,
    pub(super) key: HashedKey<'call>,
    /// The key of the previous window of a sliding window, in the same shard.
    pub(super) previous_key: Option<HashedKey<'call>>,
    pub(super) new_account: fn() -> AnyAccount,
    pub(super) terms: Terms,
}

/// The key of a counter in one window, and its hash.
pub(super) struct HashedKey<'call> {
    hash: u64,
    name: KeySource<'call>,
}

/// What a key is spelled from. Most counters exist, and are found without their keys.
enum KeySource<'call> {
    Counter(&'call Counter, Timestamp),
    Spelled(String),
}

impl PartialEq for HashedKey<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && match (&self.name, &other.name) {
                (KeySource::Counter(one, start), KeySource::Counter(other, other_start)) => {
                    start == other_start && one.same_counter(other)
                }
                (KeySource::Spelled(one), KeySource::Spelled(other)) => one == other,
                _ => false,
            }
    }
}

impl<'call> HashedKey<'call> {
    /// The key in the window that starts at `start`. `hash` is the counter's hash; each window gets a hash
    /// of its own, so that a counter with many expired windows is found as fast.
    pub(super) fn new(hash: u64, counter: &'call Counter, start: Timestamp) -> Self {
        let is_aligned = counter.limit.algorithm.is_aligned();
        let start = if is_aligned { start } else { Timestamp::default() };
        let hash = hash.wrapping_add(start.as_secs().wrapping_mul(SPREAD));
        Self { hash, name: KeySource::Counter(counter, start) }
    }

    /// The key of something else that belongs to a counter, and its hash.
    pub(super) fn of_hold(hash: u64, key: String) -> Self {
        Self { hash, name: KeySource::Spelled(key) }
    }

    fn is_of(&self, kept: &Kept) -> bool {
        kept.hash == self.hash
            && match &self.name {
                // The same counter has another hash in each window.
                KeySource::Counter(counter, _) => counter.has_key(&kept.key),
                KeySource::Spelled(key) => *kept.key == **key,
            }
    }

    fn spelled(&self) -> Box<str> {
        match &self.name {
            KeySource::Counter(counter, start) => counter.key(*start).into(),
            KeySource::Spelled(key) => key.as_str().into(),
        }
    }
}

impl LocatedCounter<'_> {
    /// Brings the account to the time of the call. `previous` are the hits of the window before.
    pub(super) fn update(&self, account: &mut AnyAccount, previous: u64) {
        if let AnyAccount::SlidingWindow(account) = account {
            account.previous = previous;
        }
        account.write().set_back(&self.terms);
    }
}

impl Shard {
    /// Changes the account of a counter in its place. Also returns the number of live counters that were evicted for it.
    pub(super) fn change<T>(
        &mut self,
        counter: &LocatedCounter<'_>,
        capacity: &Capacity,
        change: impl FnOnce(&mut AnyAccount) -> T,
    ) -> (T, u64) {
        let (key, previous) = (&counter.key, self.counted(counter.previous_key.as_ref()));
        if let Some(kept) = self.table.find_mut(key.hash, |kept| key.is_of(kept)) {
            counter.update(&mut kept.account, previous);
            let changed = change(&mut kept.account);
            kept.rank = Rank::of(kept.account.read(), &counter.terms);
            self.earliest = self.earliest.min(kept.rank.end());
            return (changed, 0);
        }
        let mut account = (counter.new_account)();
        counter.update(&mut account, previous);
        let changed = change(&mut account);
        (changed, self.keep(key, account, &counter.terms, capacity))
    }

    /// Takes the account of a counter, if there is one, until it is kept again.
    pub(super) fn take(&mut self, key: &HashedKey<'_>) -> Option<AnyAccount> {
        let kept = self.table.find_mut(key.hash, |kept| key.is_of(kept))?;
        Some(match &kept.account {
            // The window after it may be taken by the same call, and reads it.
            AnyAccount::SlidingWindow(_) => kept.account.clone(),
            _ => mem::replace(&mut kept.account, TAKEN),
        })
    }

    /// A copy of the account of a counter, if there is one.
    pub(super) fn copy(&self, key: &HashedKey<'_>) -> Option<AnyAccount> {
        Some(self.table.find(key.hash, |kept| key.is_of(kept))?.account.clone())
    }

    /// The keys of all counters.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.table.iter().map(|kept| &*kept.key)
    }

    /// The hits of a sliding window in one clock-aligned window.
    pub(super) fn counted(&self, key: Option<&HashedKey<'_>>) -> u64 {
        let kept = key.and_then(|key| self.table.find(key.hash, |kept| key.is_of(kept)));
        match kept {
            Some(Kept { account: AnyAccount::SlidingWindow(account), .. }) => account.current,
            _ => 0,
        }
    }

    /// Keeps an account. Returns the number of live counters that were evicted for it.
    pub(super) fn keep(
        &mut self,
        key: &HashedKey<'_>,
        account: AnyAccount,
        terms: &Terms,
        capacity: &Capacity,
    ) -> u64 {
        let rank = Rank::of(account.read(), terms);
        if let Some(kept) = self.table.find_mut(key.hash, |kept| key.is_of(kept)) {
            (kept.account, kept.rank) = (account, rank);
            self.earliest = self.earliest.min(rank.end());
            return 0;
        }
        // Checks, refunds and denied calls create no counter.
        if account.read().is_unused() {
            return 0;
        }
        let evicted = self.make_room(terms.now, capacity);
        self.earliest = self.earliest.min(rank.end());
        let (hash, key) = (key.hash, key.spelled());
        self.key_bytes += key.len();
        let kept = Kept { hash, key, account, rank };
        self.table.insert_unique(kept.hash, kept, |kept| kept.hash);
        evicted
    }

    /// Removes a counter. Returns whether it existed.
    pub(super) fn remove(&mut self, key: &HashedKey<'_>) -> bool {
        let entry = self.table.find_entry(key.hash, |kept| key.is_of(kept));
        let removed = entry.map(|entry| self.key_bytes -= entry.remove().0.key.len());
        removed.is_ok()
    }

    /// The memory that its counters take, without what an allocator adds.
    pub(super) fn bytes(&self) -> usize {
        self.table.allocation_size() + self.key_bytes
    }

    /// Makes room for one more counter: drops expired ones, or else evicts the lowest-ranked live one of a
    /// sample. Returns the number of evicted ones.
    fn make_room(&mut self, now: Timestamp, capacity: &Capacity) -> u64 {
        if capacity.is_worth_sweeping() {
            capacity.release(self.advance(STEP, now).dropped);
        }
        if capacity.reserve() {
            return 0;
        }
        // As long as there may be an expired counter, all are searched, so that no live one is evicted.
        let visited =
            if self.earliest <= now { self.advance_round(now) } else { self.advance(SAMPLE, now) };
        match visited {
            Visited { dropped: 1.., .. } => {
                // The capacity of one of them is the new counter's.
                capacity.release(visited.dropped - 1);
                0
            }
            Visited { lowest: Some((_, bucket)), .. } => {
                if let Ok(entry) = self.table.get_bucket_entry(bucket) {
                    self.key_bytes -= entry.remove().0.key.len();
                }
                1
            }
            // This shard is nearly empty, though the store is full.
            Visited { lowest: None, .. } => {
                capacity.exceed();
                0
            }
        }
    }

    /// Advances the clock hand over all buckets.
    fn advance_round(&mut self, now: Timestamp) -> Visited {
        let visited = self.advance(self.table.num_buckets(), now);
        self.earliest = visited.earliest.unwrap_or(now);
        visited
    }

    /// Advances the clock hand over `buckets` buckets, and drops their expired counters.
    fn advance(&mut self, buckets: usize, now: Timestamp) -> Visited {
        let mut visited = Visited::default();
        let all = self.table.num_buckets();
        for _ in 0..buckets.min(all) {
            self.clock_hand = if self.clock_hand + 1 < all { self.clock_hand + 1 } else { 0 };
            let Ok(entry) = self.table.get_bucket_entry(self.clock_hand) else { continue };
            let rank = entry.get().rank;
            if rank.end() <= now {
                self.key_bytes -= entry.remove().0.key.len();
                visited.dropped += 1;
                continue;
            }
            if visited.earliest.is_none_or(|earliest| rank.end() < earliest) {
                visited.earliest = Some(rank.end());
            }
            if visited.lowest.is_none_or(|(lowest, _)| rank < lowest) {
                visited.lowest = Some((rank, self.clock_hand));
            }
        }
        visited
    }
}

/// The counters in the buckets over which the hand advanced.
#[derive(Default)]
struct Visited {
    /// Number of expired counters, which were dropped.
    dropped: usize,
    /// The earliest end of a live counter.
    earliest: Option<Timestamp>,
    /// The live counter that is evicted first: its rank and its bucket.
    lowest: Option<(Rank, usize)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documented bound is 200 bytes and the key.
    #[test]
    fn a_counter_takes_few_bytes_besides_its_key() {
        // A table that has just grown is filled to 7/16, and has one more byte per bucket. An allocator adds
        // at most 24 bytes to a key.
        let bytes = (size_of::<Kept>() + 1) * 16 / 7 + 24;
        assert!(bytes <= 160, "{bytes} bytes per counter");
    }
}
