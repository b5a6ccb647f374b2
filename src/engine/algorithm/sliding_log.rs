//! The exact one: the time of every hit that still counts. In any span as long as the window no more
//! than the limit passes.

use std::collections::VecDeque;

use super::{Terms, left};
use crate::engine::{ledger::Remembered, time::Timestamp};

/// The state of one counter: its hits, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    /// None is before the one in front of it, even where the clock was set back.
    entries: VecDeque<Entry>,
}

/// Hits that came together.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// All hits since the log began, these included, so that what is used needs no walk.
    sum: u64,
    remembered: Remembered,
}

impl Entry {
    fn counts(&self, terms: &Terms<'_>) -> bool {
        terms.now < self.until(terms)
    }

    fn until(&self, terms: &Terms<'_>) -> Timestamp {
        self.remembered.at.plus_millis(terms.limit.window.millis())
    }
}

impl SlidingLog {
    /// What still counts, the oldest first.
    pub fn remembered(&self, terms: &Terms<'_>) -> impl Iterator<Item = &Remembered> {
        self.entries.range(self.expired(terms)..).map(|entry| &entry.remembered)
    }

    /// How many of the entries count no more.
    fn expired(&self, terms: &Terms<'_>) -> usize {
        self.entries.partition_point(|entry| !entry.counts(terms))
    }

    /// The sum before the first entry that still counts, and after the last.
    fn sums(&self, terms: &Terms<'_>) -> (u64, u64) {
        match (self.entries.get(self.expired(terms)), self.entries.back()) {
            (Some(oldest), Some(newest)) => (oldest.sum - oldest.remembered.hits, newest.sum),
            _ => (0, 0),
        }
    }

    fn forget(&mut self, terms: &Terms<'_>) {
        self.entries.drain(..self.expired(terms));
    }
}

impl super::Account for SlidingLog {
    fn refund(&mut self, mut hits: u64, terms: &Terms<'_>) {
        if self.used(terms) == 0 {
            return;
        }
        self.forget(terms);
        while let Some(newest) = self.entries.back_mut() {
            if newest.remembered.hits > hits {
                newest.remembered.hits -= hits;
                newest.sum -= hits;
                return;
            }
            hits -= newest.remembered.hits;
            self.entries.pop_back();
        }
    }

    fn fits(&self, hits: u64, terms: &Terms<'_>) -> bool {
        self.used(terms).saturating_add(hits) <= u64::from(terms.limit.requests_per_unit)
    }

    fn charge(&mut self, hits: u64, caller: Option<&str>, terms: &Terms<'_>) {
        self.forget(terms);
        let newest = self.entries.back();
        let at = newest.map_or(terms.now, |newest| newest.remembered.at.max(terms.now));
        let sum = newest.map_or(0, |newest| newest.sum).saturating_add(hits);
        let remembered = Remembered { at, hits, caller: caller.map(Into::into) };
        self.entries.push_back(Entry { sum, remembered });
    }

    fn is_unused(&self) -> bool {
        self.entries.is_empty()
    }

    fn used(&self, terms: &Terms<'_>) -> u64 {
        let (before, after) = self.sums(terms);
        after - before
    }

    fn remaining(&self, terms: &Terms<'_>) -> u32 {
        left(terms.limit.requests_per_unit, self.used(terms))
    }

    fn ends(&self, terms: &Terms<'_>) -> Timestamp {
        let newest = self.entries.back().filter(|newest| newest.counts(terms));
        newest.map_or(terms.now, |newest| newest.until(terms))
    }

    fn admits_at(&self, hits: u64, terms: &Terms<'_>) -> Timestamp {
        let limit = u64::from(terms.limit.requests_per_unit);
        let (before, after) = self.sums(terms);
        let surplus = (after - before).saturating_add(hits).saturating_sub(limit);
        let place =
            self.entries.partition_point(|entry| entry.sum < before.saturating_add(surplus));
        match self.entries.get(place) {
            Some(entry) if hits <= limit => entry.until(terms),
            _ => self.ends(terms),
        }
    }
}
