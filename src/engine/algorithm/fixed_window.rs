//! A counter for each clock-aligned window.

use crate::engine::request::Hits;

/// The state of one counter in one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Hits admitted, less those given back.
    pub used: u64,
}

impl Account {
    /// Gives hits back; nothing is left below zero.
    pub fn give_back(&mut self, hits: u64) {
        self.used = self.used.saturating_sub(hits);
    }

    /// Whether this many more hits stay within `limit`.
    pub fn fits(self, hits: u64, limit: u32) -> bool {
        self.used.saturating_add(hits) <= u64::from(limit)
    }

    /// Takes hits; what goes beyond [`Hits::MAX`] is not told apart.
    pub fn charge(&mut self, hits: u64) {
        self.used = self.used.saturating_add(hits).min(Hits::MAX);
    }

    /// How many hits of `limit` would still pass.
    pub fn remaining(self, limit: u32) -> u32 {
        let remaining = u64::from(limit).saturating_sub(self.used);
        u32::try_from(remaining).unwrap_or(u32::MAX)
    }
}
