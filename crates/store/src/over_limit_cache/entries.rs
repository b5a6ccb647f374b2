//! The last tallies of a bounded number of counters. A lost entry costs one call to the store, and
//! nothing else.

use std::{sync::Arc, time::Duration};

use hashbrown::HashTable;
use smallvec::SmallVec;
use tokio::time::Instant;
use tollkeeper_engine::{
    key::Counter,
    ledger::{Fit, Tally},
    rule::Limit,
};

pub(super) const LIFE_MAX: Duration = Duration::from_secs(1);

/// How much too long a reset may be: stores cut their time to milliseconds.
const RESET_ERROR_MAX: Duration = Duration::from_millis(1);

/// A denial by a reservation that is given back is over by then.
const TRANSIENT_MAX: Duration = Duration::from_millis(20);

/// How long a denial counts where credit of replicas may come back.
const LIFE_OF_LEASED: Duration = Duration::from_millis(50);

/// The longest business ID of an entry, in bytes, so that the number of entries bounds the memory.
const ID_BYTES_MAX: usize = 1024;

/// The most limits of one counter. A rule has one, or one for each class of calls; overrides may add others.
const LIMITS_MAX: usize = 8;

/// A tally, and what follows from it for later calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct CachedTally {
    fit: CachedFit,
    /// From `sent`, though the store answered later: the reset comes no earlier than that.
    reset: Duration,
    /// When the call was sent to the store, or earlier.
    pub(super) sent: Instant,
    /// How long it counts at most.
    life: Duration,
    /// Whether it answers calls. A denial that may end soon must be confirmed by a later one.
    is_sure: bool,
}

#[derive(Debug, Clone, Copy)]
enum CachedFit {
    Fits {
        remaining: u64,
    },
    /// At most this many hits were left. With any algorithm, no more will be left until the reset, which is
    /// when the hits that did not fit will.
    Over {
        remaining: u64,
    },
}

impl CachedTally {
    /// The store's tally of a charge of `asked` hits.
    pub(super) fn new(
        Tally { fit, reset, .. }: Tally,
        asked: impl FnOnce() -> u64,
        sent: Instant,
    ) -> Self {
        let fit = match fit {
            Fit::Fits { remaining } => CachedFit::Fits { remaining },
            Fit::Commit(_) => CachedFit::Fits { remaining: 0 },
            Fit::Over => CachedFit::Over { remaining: asked().saturating_sub(1) },
        };
        Self { fit, reset, sent, life: LIFE_MAX, is_sure: true }
    }

    /// This tally, which may be a denial by a reservation that is given back.
    pub(super) fn unsure(self) -> Self {
        Self { is_sure: matches!(self.fit, CachedFit::Fits { .. }), ..self }
    }

    /// This tally, of a counter whose hits replicas lease.
    pub(super) fn leased(self) -> Self {
        Self { life: LIFE_OF_LEASED, ..self }
    }

    /// The tally of a charge of `asked` hits at `now`.
    pub(super) fn tally(&self, asked: impl FnOnce() -> u64, limit: &Limit, now: Instant) -> Tally {
        let fit = match self.fit {
            CachedFit::Fits { remaining } => Fit::Fits { remaining },
            CachedFit::Over { remaining } => {
                // More than the capacity never fits.
                let remaining = remaining.min(limit.capacity());
                if asked() > remaining { Fit::Over } else { Fit::Fits { remaining } }
            }
        };
        Tally::new(fit, self.reset.saturating_sub(self.age(now)))
    }

    fn counts_at(&self, now: Instant) -> bool {
        self.age(now) < self.reset.saturating_sub(RESET_ERROR_MAX).min(self.life)
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.sent)
    }

    /// Whether it repeats the denial `known`, which is so old that no reservation is the cause of both.
    fn confirms(&self, known: &Self) -> bool {
        let is_over = |tally: &Self| matches!(tally.fit, CachedFit::Over { .. });
        is_over(self)
            && is_over(known)
            && known.counts_at(self.sent)
            && (known.is_sure || known.age(self.sent) >= TRANSIENT_MAX)
    }

    /// Whether it replaces `known`: the later one does, unless it is a weaker denial.
    fn replaces(&self, known: &Self) -> bool {
        if !self.is_sure && !known.is_sure && known.counts_at(self.sent) {
            return false;
        }
        match (self.fit, known.fit) {
            _ if self.sent < known.sent => false,
            (CachedFit::Over { remaining }, CachedFit::Over { remaining: known_remaining }) => {
                remaining < known_remaining
                    || self.is_sure && !known.is_sure
                    || !known.counts_at(self.sent)
            }
            _ => true,
        }
    }
}

#[derive(Debug)]
struct CounterEntry {
    hash: u64,
    counter: Counter,
    /// Answers to calls sent at this time or earlier do not count.
    forgotten: Option<Instant>,
    /// Under each limit: a counter that is over one limit may not be over another.
    tallies: SmallVec<[(Arc<Limit>, CachedTally); 1]>,
}

impl CounterEntry {
    fn tally(&self, limit: &Arc<Limit>) -> Option<&CachedTally> {
        self.tallies.iter().find(|(known, _)| known == limit).map(|(_, tally)| tally)
    }

    fn tally_mut(&mut self, limit: &Arc<Limit>) -> Option<&mut CachedTally> {
        self.tallies.iter_mut().find(|(known, _)| known == limit).map(|(_, tally)| tally)
    }

    fn accepts(&self, tally: &CachedTally) -> bool {
        self.forgotten.is_none_or(|forgotten| tally.sent > forgotten)
    }

    fn counts_at(&self, now: Instant) -> bool {
        let forgotten = self.forgotten;
        forgotten.is_some_and(|at| now.saturating_duration_since(at) < LIFE_MAX)
            || self.tallies.iter().any(|(_, tally)| tally.counts_at(now))
    }
}

/// The entries of some counters. The caller hashes a counter by [`Counter::hash_of_identity`].
#[derive(Debug)]
pub(super) struct Entries {
    table: HashTable<CounterEntry>,
    max: usize,
}

impl Entries {
    /// At most `max` entries, at least one.
    pub(super) fn new(max: usize) -> Self {
        Self { table: HashTable::new(), max }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The tally of this counter under its limit, unless it has expired.
    pub(super) fn find(&self, hash: u64, counter: &Counter, now: Instant) -> Option<CachedTally> {
        let entry = self.table.find(hash, |entry| entry.counter.same_counter(counter))?;
        entry.tally(&counter.limit).filter(|tally| tally.is_sure && tally.counts_at(now)).copied()
    }

    /// Updates the tally of this counter under its limit, if there is one.
    pub(super) fn correct(&mut self, hash: u64, counter: &Counter, tally: CachedTally) {
        if let Some(entry) = self.entry(hash, counter)
            && entry.accepts(&tally)
            && let Some(known) = entry.tally_mut(&counter.limit)
            && tally.replaces(known)
        {
            *known = tally;
        }
    }

    pub(super) fn keep(&mut self, hash: u64, counter: &Counter, mut tally: CachedTally) {
        let Some(entry) = self.entry_or_new(hash, counter, tally.sent) else { return };
        if !entry.accepts(&tally) {
            return;
        }
        if let Some(known) = entry.tally_mut(&counter.limit) {
            tally.is_sure |= tally.confirms(known);
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

    /// Forgets this counter under every limit, and discards answers to calls sent before `now` that are
    /// still under way.
    pub(super) fn forget(&mut self, hash: u64, counter: &Counter, now: Instant) {
        if let Some(entry) = self.entry_or_new(hash, counter, now) {
            entry.tallies.clear();
            entry.forgotten = entry.forgotten.max(Some(now));
        }
    }

    fn entry(&mut self, hash: u64, counter: &Counter) -> Option<&mut CounterEntry> {
        self.table.find_mut(hash, |entry| entry.counter.same_counter(counter))
    }

    /// `None` if the business ID of the counter is too long.
    fn entry_or_new(
        &mut self,
        hash: u64,
        counter: &Counter,
        now: Instant,
    ) -> Option<&mut CounterEntry> {
        if counter.id_bytes() > ID_BYTES_MAX {
            return None;
        }
        if self.entry(hash, counter).is_none() {
            self.make_room(now);
            let (counter, tallies) = (counter.clone(), SmallVec::new());
            let entry = CounterEntry { hash, counter, forgotten: None, tallies };
            self.table.insert_unique(hash, entry, |entry| entry.hash);
        }
        self.entry(hash, counter)
    }

    /// Evicts expired entries; if many have not expired, all entries. So a sweep comes only after a number of
    /// new entries that is proportional to its cost.
    fn make_room(&mut self, now: Instant) {
        if self.table.len() >= self.max {
            self.table.retain(|entry| entry.counts_at(now));
            if self.table.len() > self.max / 2 {
                self.table.clear();
            }
        }
    }
}
