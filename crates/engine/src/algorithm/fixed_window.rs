//! A counter for each clock-aligned window. Its key names the window, so each window has a new counter.

use super::account::{Account, COUNT_MAX, Terms, given_back};
use crate::time::Timestamp;

/// The state of one counter in one window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// Hits charged, less those given back.
    pub used: u64,
}

impl Account for FixedWindow {
    fn refund(&mut self, hits: u64, _: &Terms) {
        self.used = self.used.saturating_sub(hits);
    }

    fn give_back(&mut self, hits: u64, _: u64, _: Timestamp, _: Option<&str>, _: &Terms) {
        self.used = given_back(self.used, hits);
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, _: &Terms) {
        self.used = self.used.saturating_add(hits).min(COUNT_MAX);
    }

    fn is_unused(&self) -> bool {
        self.used == 0
    }

    fn used(&self, _: &Terms) -> u64 {
        self.used
    }

    fn ends(&self, terms: &Terms) -> Timestamp {
        terms.span.end
    }
}
