//! The exact one: the time of every hit that still counts. In any span as long as the window, both
//! ends taken together once, no more than the limit passes.

use std::collections::VecDeque;

use super::{Terms, left};
use crate::engine::{ledger::Remembered, time::Timestamp};

/// The state of one counter: its hits, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// None is before the one in front of it, even where the clock was set back.
    entries: VecDeque<Remembered>,
}

impl Account {
    /// What still counts, the oldest first.
    pub fn entries(&self, terms: &Terms<'_>) -> impl DoubleEndedIterator<Item = &Remembered> {
        self.entries.range(self.expired(terms)..)
    }

    /// How many of the entries count no more.
    fn expired(&self, terms: &Terms<'_>) -> usize {
        let window = terms.limit.window.millis();
        self.entries.partition_point(|entry| entry.at.plus_millis(window) <= terms.now)
    }

    fn forget(&mut self, terms: &Terms<'_>) {
        self.entries.drain(..self.expired(terms));
    }
}

impl super::Account for Account {
    fn give_back(&mut self, mut hits: u64, terms: &Terms<'_>) {
        if self.used(terms) == 0 {
            return;
        }
        self.forget(terms);
        while let Some(newest) = self.entries.back_mut() {
            if newest.hits > hits {
                newest.hits -= hits;
                return;
            }
            hits -= newest.hits;
            self.entries.pop_back();
        }
    }

    fn fits(&self, hits: u64, terms: &Terms<'_>) -> bool {
        self.used(terms).saturating_add(hits) <= u64::from(terms.limit.requests_per_unit)
    }

    fn charge(&mut self, hits: u64, caller: Option<&str>, terms: &Terms<'_>) {
        self.forget(terms);
        let at = self.entries.back().map_or(terms.now, |newest| newest.at.max(terms.now));
        self.entries.push_back(Remembered { at, hits, caller: caller.map(Into::into) });
    }

    fn is_unused(&self) -> bool {
        self.entries.is_empty()
    }

    fn used(&self, terms: &Terms<'_>) -> u64 {
        self.entries(terms).map(|entry| entry.hits).sum()
    }

    fn remaining(&self, terms: &Terms<'_>) -> u32 {
        left(terms.limit.requests_per_unit, self.used(terms))
    }

    fn ends(&self, terms: &Terms<'_>) -> Timestamp {
        let newest = self.entries(terms).next_back();
        newest.map_or(terms.now, |entry| entry.at.plus_millis(terms.limit.window.millis()))
    }

    fn admits_at(&self, hits: u64, terms: &Terms<'_>) -> Timestamp {
        let limit = u64::from(terms.limit.requests_per_unit);
        let mut surplus = self.used(terms).saturating_add(hits).saturating_sub(limit);
        for entry in self.entries(terms).take_while(|_| hits <= limit) {
            surplus = surplus.saturating_sub(entry.hits);
            if surplus == 0 {
                return entry.at.plus_millis(terms.limit.window.millis());
            }
        }
        self.ends(terms)
    }
}
