//! An exact log: the time of every hit that still counts. In any span as long as the window, at most
//! the limit passes.

use std::collections::VecDeque;

use super::account::{Account, Terms};
use crate::time::Timestamp;

/// Number of the newest entries among which a give-back looks for its own: in Redis the later ones are written
/// again.
const SEARCHED_MAX: usize = 257;

/// The state of one counter: its hits, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    /// By ascending time, even if the clock was set back.
    entries: VecDeque<LogEntry>,
}

/// Hits that were charged together.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LogEntry {
    /// All hits from the start of the log to this entry, so that the used hits are a difference of two sums.
    sum: u64,
    remembered: Remembered,
}

/// Hits in a log, or a call in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// When they were charged; of a call in flight, its deadline.
    pub at: Timestamp,
    /// Number of hits.
    pub hits: u64,
    /// The caller, if the limit remembers callers.
    pub caller: Option<Box<str>>,
}

impl LogEntry {
    fn counts(&self, terms: &Terms) -> bool {
        terms.now < self.until(terms)
    }

    fn until(&self, terms: &Terms) -> Timestamp {
        self.remembered.at.plus_millis(terms.window_ms)
    }
}

impl SlidingLog {
    /// The newest `most` of the hits that still count, the oldest of them first.
    pub fn remembered(&self, terms: &Terms, most: usize) -> impl Iterator<Item = &Remembered> {
        let first = self.expired(terms).max(self.entries.len().saturating_sub(most));
        self.entries.range(first..).map(|entry| &entry.remembered)
    }

    /// About the bytes of its entries.
    pub(super) fn heap_bytes(&self) -> usize {
        let mut callers = 0;
        // Entries of one limit have callers, or none has.
        if self.entries.back().is_some_and(|newest| newest.remembered.caller.is_some()) {
            let entries = self.entries.iter();
            callers =
                entries.filter_map(|entry| Some(entry.remembered.caller.as_ref()?.len())).sum();
        }
        self.entries.capacity() * size_of::<LogEntry>() + callers
    }

    /// Number of entries that count no longer.
    fn expired(&self, terms: &Terms) -> usize {
        self.entries.partition_point(|entry| !entry.counts(terms))
    }

    /// The sum before the first entry that still counts, and after the last.
    fn sums(&self, terms: &Terms) -> (u64, u64) {
        match (self.entries.get(self.expired(terms)), self.entries.back()) {
            (Some(oldest), Some(newest)) => (oldest.sum - oldest.remembered.hits, newest.sum),
            _ => (0, 0),
        }
    }

    fn drop_expired(&mut self, terms: &Terms) {
        self.entries.drain(..self.expired(terms));
    }
}

impl Account for SlidingLog {
    /// They become one entry, of now.
    fn set_back(&mut self, terms: &Terms) {
        let latest = terms.now.plus_millis(terms.window_ms);
        let place = self.entries.partition_point(|entry| entry.remembered.at <= latest);
        let Some(oldest) = self.entries.get(place) else { return };
        let sum_before = oldest.sum - oldest.remembered.hits;
        let Some(LogEntry { sum, mut remembered }) = self.entries.pop_back() else { return };
        self.entries.truncate(place);
        let before = self.entries.back();
        remembered.at = before.map_or(terms.now, |before| before.remembered.at.max(terms.now));
        remembered.hits = sum - sum_before;
        self.entries.push_back(LogEntry { sum, remembered });
    }

    fn refund(&mut self, mut hits: u64, terms: &Terms) {
        if self.used(terms) == 0 {
            return;
        }
        self.drop_expired(terms);
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

    /// Hits at the same time and of the same caller are alike, so the newest of them are given back.
    fn give_back(
        &mut self,
        hits: u64,
        _: u64,
        made: Timestamp,
        caller: Option<&str>,
        terms: &Terms,
    ) {
        let oldest = self.entries.len().saturating_sub(SEARCHED_MAX).max(self.expired(terms));
        let mut owed = hits;
        for LogEntry { remembered, .. } in self.entries.range_mut(oldest..).rev() {
            if remembered.at < made || owed == 0 {
                break;
            }
            if remembered.at == made && remembered.caller.as_deref() == caller {
                let given_back = owed.min(remembered.hits);
                remembered.hits -= given_back;
                owed -= given_back;
            }
        }
        if owed < hits {
            self.drop_expired(terms);
            self.entries.retain(|entry| entry.remembered.hits > 0);
            let mut sum = 0;
            for entry in &mut self.entries {
                sum += entry.remembered.hits;
                entry.sum = sum;
            }
        }
    }

    fn charge(&mut self, hits: u64, caller: Option<&str>, terms: &Terms) {
        self.drop_expired(terms);
        let newest = self.entries.back();
        let at = newest.map_or(terms.now, |newest| newest.remembered.at.max(terms.now));
        let sum = newest.map_or(0, |newest| newest.sum).saturating_add(hits);
        let remembered = Remembered { at, hits, caller: caller.map(Into::into) };
        self.entries.push_back(LogEntry { sum, remembered });
    }

    fn is_unused(&self) -> bool {
        self.entries.is_empty()
    }

    fn used(&self, terms: &Terms) -> u64 {
        let (before, after) = self.sums(terms);
        after - before
    }

    fn ends(&self, terms: &Terms) -> Timestamp {
        match self.entries.back() {
            Some(newest) if newest.counts(terms) => newest.until(terms),
            _ => terms.now,
        }
    }

    fn admits_at(&self, hits: u64, terms: &Terms) -> Timestamp {
        let limit = terms.requests_per_unit;
        let (before, after) = self.sums(terms);
        let surplus = (after - before).saturating_add(hits).saturating_sub(limit);
        let freed = before.saturating_add(surplus);
        let index = self.entries.partition_point(|entry| entry.sum < freed);
        match self.entries.get(index) {
            Some(entry) if hits <= limit => entry.until(terms),
            _ => self.ends(terms),
        }
    }
}
