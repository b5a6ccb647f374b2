//! What a store last said of some counters, within a bound on their number. To lose an entry costs one
//! question to the store, and nothing else.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::engine::{
    key::Counter,
    ledger::{Tally, Verdict},
    rule::Limit,
};

/// How long an entry counts, at most.
pub(super) const LIFE_MAX: Duration = Duration::from_secs(1);

/// Stores compute resets from a clock that is cut to milliseconds, so they may be this much too long.
const CUT: Duration = Duration::from_millis(1);

/// No counter with a longer business ID is kept, so that the number of entries bounds the memory.
const ID_BYTES_MAX: usize = 1024;

/// How many limits of one counter are kept. A rule has one; overrides may bring others.
const LIMITS_MAX: usize = 4;

/// A tally, and what it says of later calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct CachedTally {
    state: State,
    /// Counted from `sent`: the store answered later, so the reset comes no sooner than that.
    reset: Duration,
    /// When the question was sent to the store, or earlier.
    pub(super) sent: Instant,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Fits {
        remaining: u32,
    },
    /// At most this many hits were left. No more will be until the reset, whatever the algorithm: the
    /// reset is when what did not fit will.
    Over {
        left: u64,
    },
}

impl CachedTally {
    /// What the store answered to a charge of `asked` hits.
    pub(super) fn new(
        Tally { verdict, reset }: Tally,
        asked: impl FnOnce() -> u64,
        sent: Instant,
    ) -> Self {
        let state = match verdict {
            Verdict::Fits { remaining } => State::Fits { remaining },
            Verdict::Over => State::Over { left: asked().saturating_sub(1) },
        };
        Self { state, reset, sent }
    }

    /// What it says of a charge of `asked` hits now.
    pub(super) fn tally(&self, asked: impl FnOnce() -> u64, limit: &Limit, now: Instant) -> Tally {
        let verdict = match self.state {
            State::Fits { remaining } => Verdict::Fits { remaining },
            State::Over { left } => {
                // What exceeds the limit never fits.
                let left = u32::try_from(left).unwrap_or(u32::MAX).min(limit.capacity());
                if asked() > u64::from(left) {
                    Verdict::Over
                } else {
                    Verdict::Fits { remaining: left }
                }
            }
        };
        Tally { verdict, reset: self.reset.saturating_sub(self.age(now)) }
    }

    fn counts_at(&self, now: Instant) -> bool {
        self.age(now) < self.reset.saturating_sub(CUT).min(LIFE_MAX)
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.sent)
    }

    /// Whether it takes the place of `known`: the later one does, unless it says less.
    fn replaces(&self, known: &Self) -> bool {
        match (self.state, known.state) {
            _ if self.sent < known.sent => false,
            (State::Over { left }, State::Over { left: known_left }) => {
                left < known_left || !known.counts_at(self.sent)
            }
            _ => true,
        }
    }
}

/// What is known of one counter.
#[derive(Debug)]
struct Entry {
    hash: u64,
    counter: Counter,
    /// What was sent to the store earlier, or at this time, does not count.
    forgotten: Option<Instant>,
    /// Under each limit: a counter that is over one limit may not be over another.
    tallies: SmallVec<[(Arc<Limit>, CachedTally); 1]>,
}

impl Entry {
    fn of(&self, limit: &Arc<Limit>) -> Option<&CachedTally> {
        self.tallies.iter().find(|(known, _)| known == limit).map(|(_, tally)| tally)
    }

    fn of_mut(&mut self, limit: &Arc<Limit>) -> Option<&mut CachedTally> {
        self.tallies.iter_mut().find(|(known, _)| known == limit).map(|(_, tally)| tally)
    }

    fn accepts(&self, tally: &CachedTally) -> bool {
        self.forgotten.is_none_or(|forgotten| tally.sent > forgotten)
    }

    fn counts_at(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < LIFE_MAX;
        self.forgotten.is_some_and(is_recent)
            || self.tallies.iter().any(|(_, tally)| tally.counts_at(now))
    }
}

/// The entries of some counters. The caller hashes a counter by [`Counter::hash_of_identity`].
#[derive(Debug)]
pub(super) struct Entries {
    table: HashTable<Entry>,
    max: usize,
}

impl Entries {
    /// At most `max` entries, which is at least one.
    pub(super) fn new(max: usize) -> Self {
        Self { table: HashTable::new(), max }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The tally of this counter, under its limit, that counts now.
    pub(super) fn find(&self, hash: u64, counter: &Counter, now: Instant) -> Option<CachedTally> {
        let entry = self.table.find(hash, |entry| entry.counter.same_counter(counter))?;
        entry.of(&counter.limit).filter(|tally| tally.counts_at(now)).copied()
    }

    /// Updates what is known of this counter under its limit, if anything is.
    pub(super) fn correct(&mut self, hash: u64, counter: &Counter, tally: CachedTally) {
        if let Some(entry) = self.entry(hash, counter)
            && entry.accepts(&tally)
            && let Some(known) = entry.of_mut(&counter.limit)
            && tally.replaces(known)
        {
            *known = tally;
        }
    }

    /// Keeps what is known of this counter under its limit.
    pub(super) fn keep(&mut self, hash: u64, counter: &Counter, tally: CachedTally) {
        let Some(entry) = self.entry_or_new(hash, counter, tally.sent) else { return };
        if !entry.accepts(&tally) {
            return;
        }
        if let Some(known) = entry.of_mut(&counter.limit) {
            if tally.replaces(known) {
                *known = tally;
            }
            return;
        }
        if entry.tallies.len() >= LIMITS_MAX {
            entry.tallies.remove(0);
        }
        entry.tallies.push((Arc::clone(&counter.limit), tally));
    }

    /// Forgets this counter under every limit, and all that was sent to the store before `now`, also
    /// where the answer is still under way.
    pub(super) fn forget(&mut self, hash: u64, counter: &Counter, now: Instant) {
        if let Some(entry) = self.entry_or_new(hash, counter, now) {
            entry.tallies.clear();
            entry.forgotten = entry.forgotten.max(Some(now));
        }
    }

    fn entry(&mut self, hash: u64, counter: &Counter) -> Option<&mut Entry> {
        self.table.find_mut(hash, |entry| entry.counter.same_counter(counter))
    }

    /// `None` if the counter's business ID is too long to be kept.
    fn entry_or_new(&mut self, hash: u64, counter: &Counter, now: Instant) -> Option<&mut Entry> {
        if counter.id_bytes() > ID_BYTES_MAX {
            return None;
        }
        if self.entry(hash, counter).is_none() {
            self.make_room(now);
            let (counter, tallies) = (counter.clone(), SmallVec::new());
            let entry = Entry { hash, counter, forgotten: None, tallies };
            self.table.insert_unique(hash, entry, |entry| entry.hash);
        }
        self.entry(hash, counter)
    }

    /// Entries that no longer count go first. Where many still count all go, so that each sweep is paid
    /// for by as many new entries.
    fn make_room(&mut self, now: Instant) {
        if self.table.len() >= self.max {
            self.table.retain(|entry| entry.counts_at(now));
            if self.table.len() > self.max / 2 {
                self.table.clear();
            }
        }
    }
}
