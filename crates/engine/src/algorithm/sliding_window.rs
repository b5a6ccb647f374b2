//! Two clock-aligned counters: one for the current window, and one for the previous window, weighted by the
//! part of it that lies within one window length of now. An approximation in constant space, after
//! <https://blog.cloudflare.com/counting-things-a-lot-of-different-things/>.
//!
//! Everything is computed in hits times milliseconds, as whole numbers; a limit times its window stays
//! below 2^53, which is checked when rules are loaded.

use super::account::{Account, COUNT_MAX, Terms, given_back};
use crate::time::Timestamp;

/// The state of one counter in one window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Hits in the current window, less those given back.
    pub current: u64,
    /// Hits in the previous window.
    pub previous: u64,
}

impl SlidingWindow {
    fn weighted(&self, terms: &Terms) -> u64 {
        let current = self.current.saturating_mul(terms.window_ms);
        self.previous.saturating_mul(until_end(terms)).saturating_add(current)
    }
}

/// Milliseconds until the current window ends: the weight of the previous one. A give-back may come after the
/// window, or before it if the clock was set back.
fn until_end(terms: &Terms) -> u64 {
    terms.span.end.as_millis().saturating_sub(terms.now.as_millis()).min(terms.window_ms)
}

fn weighted_max(terms: &Terms) -> u64 {
    terms.requests_per_unit.saturating_mul(terms.window_ms)
}

/// Milliseconds before a window's end from which on `hits` of the window before it weigh at most `room`.
fn margin(room: u64, hits: u64, terms: &Terms) -> u64 {
    let millis = room.saturating_mul(terms.window_ms).checked_div(hits);
    millis.unwrap_or(terms.window_ms).min(terms.window_ms)
}

impl Account for SlidingWindow {
    fn refund(&mut self, hits: u64, _: &Terms) {
        self.current = self.current.saturating_sub(hits);
    }

    fn give_back(&mut self, hits: u64, _: u64, _: Timestamp, _: Option<&str>, _: &Terms) {
        self.current = given_back(self.current, hits);
    }

    fn fits(&self, hits: u64, terms: &Terms) -> bool {
        let asked = hits.saturating_mul(terms.window_ms);
        self.weighted(terms).saturating_add(asked) <= weighted_max(terms)
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, _: &Terms) {
        self.current = self.current.saturating_add(hits).min(COUNT_MAX);
    }

    fn is_unused(&self) -> bool {
        self.current == 0
    }

    fn used(&self, terms: &Terms) -> u64 {
        let weighted = u128::from(self.previous) * u128::from(until_end(terms));
        let previous = weighted.div_ceil(u128::from(terms.window_ms));
        self.current.saturating_add(u64::try_from(previous).unwrap_or(u64::MAX)).min(COUNT_MAX)
    }

    fn remaining(&self, terms: &Terms) -> u64 {
        weighted_max(terms).saturating_sub(self.weighted(terms)) / terms.window_ms
    }

    fn ends(&self, terms: &Terms) -> Timestamp {
        match (self.current, self.previous) {
            (0, 0) => terms.now,
            (0, _) => terms.span.end,
            _ => terms.span.end.plus_millis(terms.window_ms),
        }
    }

    fn admits_at(&self, hits: u64, terms: &Terms) -> Timestamp {
        let limit = terms.requests_per_unit;
        let Some(room) = limit.checked_sub(hits) else { return self.ends(terms) };
        let (end, margin) = match room.checked_sub(self.current) {
            Some(room) => (terms.span.end, margin(room, self.previous, terms)),
            None => {
                (terms.span.end.plus_millis(terms.window_ms), margin(room, self.current, terms))
            }
        };
        Timestamp::from_millis(end.as_millis().saturating_sub(margin))
    }
}
