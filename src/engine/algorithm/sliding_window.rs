//! Two clock-aligned counters: the present window's, and that of the one before, weighed by how much
//! of it still lies within one window's length. An approximation in constant space, by
//! <https://blog.cloudflare.com/counting-things-a-lot-of-different-things/>.
//!
//! All is reckoned in hits times milliseconds, whole numbers; a limit times its window stays below
//! 2^53, which is checked when rules are loaded.

use super::Terms;
use crate::engine::{request::Hits, time::Timestamp};

/// The state of one counter in one window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Hits of the present window, less those given back.
    pub current: u64,
    /// Hits of the window before.
    pub previous: u64,
}

impl SlidingWindow {
    fn weighed(&self, terms: &Terms<'_>) -> u64 {
        let still = millis(terms.now, terms.span.end);
        let current = self.current.saturating_mul(length(terms));
        self.previous.saturating_mul(still).saturating_add(current)
    }
}

fn millis(from: Timestamp, to: Timestamp) -> u64 {
    to.as_millis().saturating_sub(from.as_millis())
}

fn length(terms: &Terms<'_>) -> u64 {
    terms.limit.window.millis()
}

fn most(terms: &Terms<'_>) -> u64 {
    u64::from(terms.limit.requests_per_unit).saturating_mul(length(terms))
}

impl super::Account for SlidingWindow {
    fn refund(&mut self, hits: u64, _: &Terms<'_>) {
        self.current = self.current.saturating_sub(hits);
    }

    fn fits(&self, hits: u64, terms: &Terms<'_>) -> bool {
        let asked = hits.saturating_mul(length(terms));
        self.weighed(terms).saturating_add(asked) <= most(terms)
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, _: &Terms<'_>) {
        self.current = self.current.saturating_add(hits).min(Hits::MAX);
    }

    fn is_unused(&self) -> bool {
        self.current == 0
    }

    fn used(&self, terms: &Terms<'_>) -> u64 {
        let still = u128::from(millis(terms.now, terms.span.end));
        let previous = (u128::from(self.previous) * still).div_ceil(u128::from(length(terms)));
        self.current.saturating_add(u64::try_from(previous).unwrap_or(u64::MAX)).min(Hits::MAX)
    }

    fn remaining(&self, terms: &Terms<'_>) -> u32 {
        let left = most(terms).saturating_sub(self.weighed(terms)) / length(terms);
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    fn ends(&self, terms: &Terms<'_>) -> Timestamp {
        match (self.current, self.previous) {
            (0, 0) => terms.now,
            (0, _) => terms.span.end,
            _ => terms.span.end.plus_millis(length(terms)),
        }
    }

    fn admits_at(&self, hits: u64, terms: &Terms<'_>) -> Timestamp {
        let limit = u64::from(terms.limit.requests_per_unit);
        let Some(room) = limit.checked_sub(hits) else { return self.ends(terms) };
        // How long before a window's end the one before weighs no more than `room`.
        let before = |room: u64, previous: u64| {
            room.saturating_mul(length(terms)).checked_div(previous).unwrap_or(length(terms))
        };
        let (window_end, room) = match room.checked_sub(self.current) {
            Some(room) => (terms.span.end, before(room, self.previous)),
            None => (terms.span.end.plus_millis(length(terms)), before(room, self.current)),
        };
        Timestamp::from_millis(window_end.as_millis().saturating_sub(room.min(length(terms))))
    }
}
