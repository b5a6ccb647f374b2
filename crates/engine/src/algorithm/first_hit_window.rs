//! A window that opens at its first hit and closes one window length later, or earlier when nothing was charged for
//! the limit's idle time.

use super::account::{Account, COUNT_MAX, Terms, given_back};
use crate::time::Timestamp;

/// The state of one counter: its last window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirstHitWindow {
    used: u64,
    /// When the window closes at the latest; not after now if no window is open.
    end: Timestamp,
    /// The last charge.
    last: Timestamp,
}

impl FirstHitWindow {
    fn is_open(&self, terms: &Terms) -> bool {
        terms.now < self.closes(terms)
    }

    /// When the open window closes if nothing more is charged.
    fn closes(&self, terms: &Terms) -> Timestamp {
        self.end.min(self.last.plus_millis(terms.idle_ms))
    }
}

impl Account for FirstHitWindow {
    fn set_back(&mut self, terms: &Terms) {
        self.end = self.end.min(terms.now.plus_millis(terms.window_ms));
        self.last = self.last.min(terms.now);
    }

    fn refund(&mut self, hits: u64, terms: &Terms) {
        if self.is_open(terms) {
            self.used = self.used.saturating_sub(hits);
        }
    }

    fn give_back(&mut self, hits: u64, _: u64, made: Timestamp, _: Option<&str>, terms: &Terms) {
        let holds_made = made < self.end && self.end <= made.plus_millis(terms.window_ms);
        if self.is_open(terms) && holds_made {
            self.used = given_back(self.used, hits);
        }
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, terms: &Terms) {
        let used = self.used(terms).saturating_add(hits).min(COUNT_MAX);
        let is_open = self.is_open(terms);
        let end = if is_open { self.end } else { terms.now.plus_millis(terms.window_ms) };
        *self = Self { used, end, last: self.last.max(terms.now) };
    }

    fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    fn used(&self, terms: &Terms) -> u64 {
        if self.is_open(terms) { self.used } else { 0 }
    }

    /// If no window is open, the end of one that would open now.
    fn ends(&self, terms: &Terms) -> Timestamp {
        if self.is_open(terms) { self.closes(terms) } else { terms.now.plus_millis(terms.idle_ms) }
    }
}
