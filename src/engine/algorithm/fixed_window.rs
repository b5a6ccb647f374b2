//! A counter for each clock-aligned window. Its key names the window, so the count begins anew with
//! each.

use super::{Terms, left};
use crate::engine::{request::Hits, time::Timestamp};

/// The state of one counter in one window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// Hits admitted, less those given back.
    pub used: u64,
}

impl super::Account for FixedWindow {
    fn refund(&mut self, hits: u64, _: &Terms<'_>) {
        self.used = self.used.saturating_sub(hits);
    }

    fn fits(&self, hits: u64, terms: &Terms<'_>) -> bool {
        self.used.saturating_add(hits) <= u64::from(terms.limit.requests_per_unit)
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, _: &Terms<'_>) {
        self.used = self.used.saturating_add(hits).min(Hits::MAX);
    }

    fn is_unused(&self) -> bool {
        self.used == 0
    }

    fn used(&self, _: &Terms<'_>) -> u64 {
        self.used
    }

    fn remaining(&self, terms: &Terms<'_>) -> u32 {
        left(terms.limit.requests_per_unit, self.used)
    }

    fn ends(&self, terms: &Terms<'_>) -> Timestamp {
        terms.span.end
    }
}
