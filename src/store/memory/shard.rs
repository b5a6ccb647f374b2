//! One shard of the counters: a table, and a hand that goes round in it and drops what has ended.
//!
//! Each new counter moves the hand on by a few buckets, so nobody waits for a sweep of everything.

use std::{fmt, mem};

use hashbrown::{HashTable, hash_table::OccupiedEntry};

use super::{capacity::Capacity, rank::Rank};
use crate::engine::{
    algorithm::{AnyAccount, Terms, fixed_window},
    key::Counter,
    time::Timestamp,
};

/// So many buckets the hand moves on for a new counter: what has ended is dropped before a sixteenth of
/// the table is new.
const STEP: usize = 16;

/// Among the counters of so many buckets it chooses, where a live one must go.
const SAMPLE: usize = 256;

/// Odd, with its bits well mixed: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Stands in for an account that a call has in its hands.
const IN_HAND: AnyAccount = AnyAccount::FixedWindow(fixed_window::FixedWindow { used: 0 });

/// What is kept under one lock.
#[derive(Default)]
pub(super) struct Shard {
    table: HashTable<Kept>,
    /// The bucket that was looked at last.
    clock_hand: usize,
    /// Nothing here ends earlier.
    earliest: Timestamp,
}

/// The keys hold values of descriptors, which must not enter a log.
impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("counters", &self.table.len()).finish_non_exhaustive()
    }
}

struct Kept {
    hash: u64,
    key: Box<str>,
    account: AnyAccount,
    /// When it counts no more, and how soon it is given up for others.
    rank: Rank,
}

/// Where a counter is kept in one of its windows.
#[derive(PartialEq, Eq)]
pub(super) struct Address {
    hash: u64,
    key: String,
}

impl Address {
    /// Of the window that begins at `start`. `hash` is the counter's, and each window has a place of its
    /// own, so that one with many ended windows is found as fast.
    pub(super) fn new(hash: u64, counter: &Counter, start: Timestamp) -> Self {
        let window = match counter.limit.algorithm.is_aligned() {
            true => start.as_secs().wrapping_mul(SPREAD),
            false => 0,
        };
        Self { hash: hash.wrapping_add(window), key: counter.key(start) }
    }

    fn is_of(&self, kept: &Kept) -> bool {
        kept.hash == self.hash && *kept.key == *self.key
    }
}

impl Shard {
    /// Takes an account in hand, where there is one: another stands in for it until it is kept again.
    pub(super) fn take(&mut self, address: &Address) -> Option<AnyAccount> {
        let kept = self.table.find_mut(address.hash, |kept| address.is_of(kept))?;
        Some(mem::replace(&mut kept.account, IN_HAND))
    }

    /// What a sliding window has counted in one window of the clock.
    pub(super) fn counted(&self, address: &Address) -> u64 {
        match self.table.find(address.hash, |kept| address.is_of(kept)) {
            Some(Kept { account: AnyAccount::SlidingWindow(account), .. }) => account.current,
            _ => 0,
        }
    }

    /// Keeps an account, and tells how many live ones were given up for it.
    pub(super) fn keep(
        &mut self,
        address: Address,
        account: AnyAccount,
        terms: &Terms<'_>,
        capacity: &Capacity,
    ) -> u64 {
        let rank = Rank::of(account.read(), terms);
        if let Some(kept) = self.table.find_mut(address.hash, |kept| address.is_of(kept)) {
            (kept.account, kept.rank) = (account, rank);
            self.earliest = self.earliest.min(rank.end());
            return 0;
        }
        // A look, a refund or a denied call makes no counter.
        if account.read().is_unused() {
            return 0;
        }
        let given_up = self.make_room(terms.now, capacity);
        self.earliest = self.earliest.min(rank.end());
        let kept = Kept { hash: address.hash, key: address.key.into(), account, rank };
        self.table.insert_unique(kept.hash, kept, |kept| kept.hash);
        given_up
    }

    /// Drops a counter, and tells whether there was one.
    pub(super) fn remove(&mut self, address: &Address) -> bool {
        let entry = self.table.find_entry(address.hash, |kept| address.is_of(kept));
        entry.map(|entry| entry.remove()).is_ok()
    }

    /// Makes room for one more: by what has ended, or else by the live one that ranks first of some.
    fn make_room(&mut self, now: Timestamp, capacity: &Capacity) -> u64 {
        if capacity.is_worth_sweeping() {
            capacity.free(self.walk(STEP, now).dropped);
        }
        if capacity.take() {
            return 0;
        }
        let walked = match self.earliest <= now {
            // If anything here has ended it is found, and no live one goes for it.
            true => self.walk_round(now),
            false => self.walk(SAMPLE, now),
        };
        match walked {
            // One of these places is the new counter's.
            Walked { dropped: 1.., .. } => {
                capacity.free(walked.dropped - 1);
                0
            }
            Walked { lowest: Some((_, bucket)), .. } => {
                drop(self.table.get_bucket_entry(bucket).map(OccupiedEntry::remove));
                1
            }
            // A shard with hardly a counter, in a store that is full of them.
            Walked { lowest: None, .. } => {
                capacity.exceed();
                0
            }
        }
    }

    /// Moves the hand once round.
    fn walk_round(&mut self, now: Timestamp) -> Walked {
        let walked = self.walk(self.table.num_buckets(), now);
        self.earliest = walked.earliest.unwrap_or(now);
        walked
    }

    /// Moves the hand on over so many buckets, and drops what has ended there.
    fn walk(&mut self, buckets: usize, now: Timestamp) -> Walked {
        let mut walked = Walked::default();
        let all = self.table.num_buckets();
        for _ in 0..buckets.min(all) {
            self.clock_hand = if self.clock_hand + 1 < all { self.clock_hand + 1 } else { 0 };
            let Ok(entry) = self.table.get_bucket_entry(self.clock_hand) else { continue };
            let rank = entry.get().rank;
            if rank.end() <= now {
                entry.remove();
                walked.dropped += 1;
                continue;
            }
            if walked.earliest.is_none_or(|earliest| rank.end() < earliest) {
                walked.earliest = Some(rank.end());
            }
            if walked.lowest.is_none_or(|(lowest, _)| rank < lowest) {
                walked.lowest = Some((rank, self.clock_hand));
            }
        }
        walked
    }
}

/// What came of a walk.
#[derive(Default)]
struct Walked {
    dropped: usize,
    /// When the first of the live counters ends.
    earliest: Option<Timestamp>,
    /// The live counter that is given up first, and its bucket.
    lowest: Option<(Rank, usize)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promised are 200 bytes and the key.
    #[test]
    fn a_counter_takes_few_bytes_besides_its_key() {
        // A table that has just grown is filled to 7/16, and a byte of each bucket is its own. What
        // an allocator adds to a key is 24 bytes at most.
        let bytes = (size_of::<Kept>() + 1) * 16 / 7 + 24;
        assert!(bytes <= 160, "{bytes} bytes of each counter");
    }
}
