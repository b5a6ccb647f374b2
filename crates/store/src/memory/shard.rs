//! One shard of the counters: a table, and a clock hand that goes round and drops expired counters.
//!
//! Each new counter advances the hand by a few buckets, so that no call waits for a full sweep.

use std::{fmt, mem, sync::Arc};

use hashbrown::HashTable;
use tollkeeper_engine::{
    algorithm::{AnyAccount, account::Terms, fixed_window::FixedWindow},
    key::Counter,
    time::Timestamp,
};

use super::{capacity::Capacity, rank::Rank};

/// Buckets by which a new counter advances the clock hand: the hand goes round once while a sixteenth of the
/// table is refilled.
const STEP: usize = 16;

/// Live counters among which one is chosen if one must be evicted: counters, not buckets, so that the hand stays longer where
/// there are fewer, and exhausted ones alone are never a sample while there are others.
const SAMPLE: usize = 256;

/// 2^64 divided by the golden ratio: odd, with well mixed bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The most that a counter takes beside its key and what its account has on the heap: a table that has just grown is filled
/// to 7/16, and has one more byte per bucket; an allocator adds at most 24 bytes to a key.
const COUNTER_BYTES: usize = (size_of::<Kept>() + 1) * 16 / 7 + 24;

/// While all take too much, a counter that grows evicts others of these bytes: more than a hit takes.
const GROWTH: usize = 1 << 10;

/// The counters under one lock.
pub(super) struct Shard {
    table: HashTable<Kept>,
    capacity: Arc<Capacity>,
    /// The bucket that was visited last.
    clock_hand: usize,
    /// No counter ends earlier.
    earliest: Timestamp,
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

impl Kept {
    fn bytes(&self) -> usize {
        COUNTER_BYTES + self.key.len() + self.account.heap_bytes()
    }
}

/// A counter of a call, in its window.
pub(super) struct LocatedCounter<'call> {
    pub(super) shard: usize,
    pub(super) key: HashedKey<'call>,
    /// The key of the previous window of a sliding window, in the same shard.
    pub(super) previous_key: Option<HashedKey<'call>>,
    pub(super) new_account: fn() -> AnyAccount,
    pub(super) terms: Terms,
    /// Whether a commit is made, whose limit is not the rule's.
    pub(super) is_committed: bool,
}

pub(super) struct HashedKey<'call> {
    pub(super) hash: u64,
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
    /// Whether its terms say nothing about the part of the limit that is used: the terms of a commit, and of a limit of 0.
    fn leaves_rank(&self) -> bool {
        self.is_committed || self.terms.capacity == 0
    }

    /// What an account has used before its rank depends on that; a taken one is one of what was used.
    fn used(&self, account: &AnyAccount) -> u64 {
        if self.leaves_rank() { account.read().used(&self.terms) } else { 0 }
    }

    fn rank(&self, before: Rank, used_before: u64, account: &AnyAccount) -> Rank {
        if self.leaves_rank() {
            before.grown(used_before, account, &self.terms)
        } else {
            Rank::of(account, &self.terms)
        }
    }

    /// Brings the account to the time of the call. `previous` are the hits of the window before.
    pub(super) fn update(&self, account: &mut AnyAccount, previous: u64) {
        if let AnyAccount::SlidingWindow(account) = account {
            account.previous = previous;
        }
        account.write().set_back(&self.terms);
    }
}

impl Shard {
    pub(super) fn new(capacity: Arc<Capacity>) -> Self {
        let (table, earliest) = (HashTable::new(), Timestamp::default());
        Self { table, capacity, clock_hand: 0, earliest }
    }

    /// Changes the account of a counter in its place. Also returns the number of live counters that were evicted for it.
    pub(super) fn change<T>(
        &mut self,
        counter: &LocatedCounter<'_>,
        change: impl FnOnce(&mut AnyAccount) -> T,
    ) -> (T, u64) {
        let (key, previous) = (&counter.key, self.counted(counter.previous_key.as_ref()));
        if let Some(kept) = self.table.find_mut(key.hash, |kept| key.is_of(kept)) {
            let (used, before) = (counter.used(&kept.account), kept.account.heap_bytes());
            counter.update(&mut kept.account, previous);
            let changed = change(&mut kept.account);
            kept.rank = counter.rank(kept.rank, used, &kept.account);
            self.earliest = self.earliest.min(kept.rank.end());
            let (after, rank) = (kept.account.heap_bytes(), kept.rank);
            self.capacity.resize(before, after);
            return (changed, self.shrink(after.min(GROWTH), rank, counter));
        }
        let mut account = (counter.new_account)();
        counter.update(&mut account, previous);
        let changed = change(&mut account);
        (changed, self.keep(counter, account))
    }

    /// Takes the account of a counter, if there is one, until it is kept again.
    pub(super) fn take(&mut self, counter: &LocatedCounter<'_>) -> Option<AnyAccount> {
        let key = &counter.key;
        let kept = self.table.find_mut(key.hash, |kept| key.is_of(kept))?;
        let used = counter.used(&kept.account);
        Some(match &kept.account {
            // The window after it may be taken by the same call, and reads it.
            AnyAccount::SlidingWindow(_) => kept.account.clone(),
            _ => {
                self.capacity.resize(kept.account.heap_bytes(), 0);
                mem::replace(&mut kept.account, AnyAccount::FixedWindow(FixedWindow { used }))
            }
        })
    }

    /// A copy of the account of a counter, if there is one.
    pub(super) fn copy(&self, key: &HashedKey<'_>) -> Option<AnyAccount> {
        Some(self.table.find(key.hash, |kept| key.is_of(kept))?.account.clone())
    }

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
    pub(super) fn keep(&mut self, counter: &LocatedCounter<'_>, account: AnyAccount) -> u64 {
        let LocatedCounter { key, terms, .. } = counter;
        if let Some(kept) = self.table.find_mut(key.hash, |kept| key.is_of(kept)) {
            let rank = counter.rank(kept.rank, counter.used(&kept.account), &account);
            let (before, after) = (kept.account.heap_bytes(), account.heap_bytes());
            (kept.account, kept.rank) = (account, rank);
            self.earliest = self.earliest.min(rank.end());
            self.capacity.resize(before, after);
            return self.shrink(after.min(GROWTH), rank, counter);
        }
        // Checks, refunds and denied calls create no counter.
        if account.read().is_unused() {
            return 0;
        }
        let evicted = self.make_room(counter);
        let rank = Rank::of(&account, terms);
        self.earliest = self.earliest.min(rank.end());
        let kept = Kept { hash: key.hash, key: key.spelled(), account, rank };
        let bytes = kept.bytes();
        self.table.insert_unique(kept.hash, kept, |kept| kept.hash);
        self.capacity.resize(0, bytes);
        // Twice, so that the rest shrinks if others have grown.
        evicted + self.shrink(2 * bytes, Rank::HIGHEST, counter)
    }

    pub(super) fn remove(&mut self, key: &HashedKey<'_>) {
        if let Ok(entry) = self.table.find_entry(key.hash, |kept| key.is_of(kept)) {
            self.capacity.resize(entry.remove().0.bytes(), 0);
            self.release(1);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Releases the places of counters that are gone. The first counter of a shard has a place that no other shard takes.
    fn release(&self, gone: usize) {
        self.capacity.release(gone.saturating_sub(usize::from(self.table.is_empty())));
    }

    /// Makes room for one more counter: drops expired ones, or else evicts the lowest-ranked live one of a
    /// sample. Returns the number of evicted ones.
    fn make_room(&mut self, counter: &LocatedCounter<'_>) -> u64 {
        if self.capacity.is_worth_sweeping() {
            let dropped = self.advance(STEP, usize::MAX, counter).dropped;
            self.release(dropped);
        }
        if self.table.is_empty() || self.capacity.reserve() {
            return 0;
        }
        let visited = self.visit_sample(counter);
        if let Some(others) = visited.dropped.checked_sub(1) {
            // The place of one of them is the new counter's.
            self.capacity.release(others);
            return 0;
        }
        visited.lowest.map_or(0, |(_, bucket)| {
            self.drop_in(bucket);
            1
        })
    }

    /// While all counters take too much, evicts those that rank lower than `rank`, of about these bytes, so that no call has
    /// to evict many. Returns their number.
    fn shrink(&mut self, mut bytes: usize, rank: Rank, counter: &LocatedCounter<'_>) -> u64 {
        let mut evicted = 0;
        while bytes > 0 && self.capacity.is_exceeded() {
            let Visited { dropped, mut freed, lowest, .. } = self.visit_sample(counter);
            match lowest.filter(|(lowest, _)| dropped == 0 && *lowest < rank) {
                Some((_, bucket)) => {
                    freed = self.drop_in(bucket);
                    self.release(1);
                    evicted += 1;
                }
                None if dropped > 0 => self.release(dropped),
                None => break,
            }
            bytes = bytes.saturating_sub(freed);
        }
        evicted
    }

    /// Advances the clock hand over a sample; over all, as long as there may be an expired counter, so that no live one is
    /// evicted.
    fn visit_sample(&mut self, counter: &LocatedCounter<'_>) -> Visited {
        if counter.terms.now < self.earliest {
            return self.advance(usize::MAX, SAMPLE, counter);
        }
        let visited = self.advance(usize::MAX, usize::MAX, counter);
        self.earliest = visited.earliest.unwrap_or(counter.terms.now);
        visited
    }

    /// Advances the clock hand over as many buckets, or as many live counters, and drops the expired ones.
    fn advance(&mut self, buckets: usize, live: usize, counter: &LocatedCounter<'_>) -> Visited {
        let mut visited = Visited::default();
        let (all, mut seen) = (self.table.num_buckets(), 0);
        for _ in 0..buckets.min(all) {
            self.clock_hand = if self.clock_hand + 1 < all { self.clock_hand + 1 } else { 0 };
            let Ok(entry) = self.table.get_bucket_entry(self.clock_hand) else { continue };
            let Kept { rank, hash, .. } = *entry.get();
            if rank.end() <= counter.terms.now {
                visited.dropped += 1;
                visited.freed += self.drop_in(self.clock_hand);
                continue;
            }
            if visited.earliest.is_none_or(|earliest| rank.end() < earliest) {
                visited.earliest = Some(rank.end());
            }
            // No counter is evicted for itself.
            if hash != counter.key.hash && visited.lowest.is_none_or(|(lowest, _)| rank < lowest) {
                visited.lowest = Some((rank, self.clock_hand));
            }
            seen += 1;
            if seen == live {
                break;
            }
        }
        visited
    }

    /// Drops the counter in a bucket. Returns the bytes that it has taken.
    fn drop_in(&mut self, bucket: usize) -> usize {
        let Ok(entry) = self.table.get_bucket_entry(bucket) else { return 0 };
        let freed = entry.remove().0.bytes();
        self.capacity.resize(freed, 0);
        freed
    }
}

/// The counters in the buckets over which the hand advanced.
#[derive(Default)]
struct Visited {
    /// Number of expired counters, which were dropped.
    dropped: usize,
    /// The bytes that these have taken.
    freed: usize,
    /// The earliest end of a live counter.
    earliest: Option<Timestamp>,
    /// The live counter that is evicted first: its rank and its bucket.
    lowest: Option<(Rank, usize)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documented bound is 180 bytes and the key.
    #[test]
    fn a_counter_takes_few_bytes_besides_its_key() {
        const { assert!(COUNTER_BYTES <= 160) };
    }
}
