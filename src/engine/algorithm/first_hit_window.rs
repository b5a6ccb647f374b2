//! A window that opens at its first hit and closes one window length later.

use super::account::{Account, COUNT_MAX, Terms, given_back};
use crate::engine::time::Timestamp;

/// The state of one counter: its last window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirstHitWindow {
    used: u64,
    /// When the window closes; not after now if no window is open.
    end: Timestamp,
}

impl FirstHitWindow {
    fn is_open(&self, terms: &Terms) -> bool {
        terms.now < self.end
    }
}

impl Account for FirstHitWindow {
    fn set_back(&mut self, terms: &Terms) {
        self.end = self.end.min(terms.now.plus_millis(terms.window_ms));
    }

    fn refund(&mut self, hits: u64, terms: &Terms) {
        if self.is_open(terms) {
            self.used = self.used.saturating_sub(hits);
        }
    }

    fn give_back(&mut self, hits: u64, made: Timestamp, _: Option<&str>, terms: &Terms) {
        let holds_made = made < self.end && self.end <= made.plus_millis(terms.window_ms);
        if self.is_open(terms) && holds_made {
            self.used = given_back(self.used, hits);
        }
    }

    fn fits(&self, hits: u64, terms: &Terms) -> bool {
        self.used(terms).saturating_add(hits) <= terms.requests_per_unit
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, terms: &Terms) {
        let used = self.used(terms).saturating_add(hits).min(COUNT_MAX);
        *self = Self { used, end: self.ends(terms) };
    }

    fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    fn used(&self, terms: &Terms) -> u64 {
        if self.is_open(terms) { self.used } else { 0 }
    }

    fn remaining(&self, terms: &Terms) -> u64 {
        terms.requests_per_unit.saturating_sub(self.used(terms))
    }

    /// If no window is open, the end of one that would open now.
    fn ends(&self, terms: &Terms) -> Timestamp {
        if self.is_open(terms) { self.end } else { terms.now.plus_millis(terms.window_ms) }
    }
}
