//! A window that opens at its first hit and closes one unit later.

use super::{Terms, left};
use crate::engine::{request::Hits, time::Timestamp};

/// The state of one counter: its last window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirstHitWindow {
    used: u64,
    /// When the window closes; before now, if none is open.
    end: Timestamp,
}

impl FirstHitWindow {
    fn is_open(&self, terms: &Terms<'_>) -> bool {
        terms.now < self.end
    }
}

impl super::Account for FirstHitWindow {
    fn refund(&mut self, hits: u64, terms: &Terms<'_>) {
        if self.is_open(terms) {
            self.used = self.used.saturating_sub(hits);
        }
    }

    fn fits(&self, hits: u64, terms: &Terms<'_>) -> bool {
        self.used(terms).saturating_add(hits) <= u64::from(terms.limit.requests_per_unit)
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, terms: &Terms<'_>) {
        let used = self.used(terms).saturating_add(hits).min(Hits::MAX);
        *self = Self { used, end: self.ends(terms) };
    }

    fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    fn used(&self, terms: &Terms<'_>) -> u64 {
        if self.is_open(terms) { self.used } else { 0 }
    }

    fn remaining(&self, terms: &Terms<'_>) -> u32 {
        left(terms.limit.requests_per_unit, self.used(terms))
    }

    /// Where no window is open: when one would close that opened now.
    fn ends(&self, terms: &Terms<'_>) -> Timestamp {
        match self.is_open(terms) {
            true => self.end,
            false => terms.now.plus_millis(terms.limit.window.millis()),
        }
    }
}
