//! What the accounts of all algorithms have in common.

use crate::time::{Span, Timestamp};

/// The largest count, 2^53 - 1: up to here Lua computes whole numbers exactly.
pub const COUNT_MAX: u64 = (1 << 53) - 1;

/// The longest time that a hold may be open, in milliseconds.
pub const HOLD_MS_MAX: u64 = 7 * 86_400_000;

/// A count as a float, which is exact up to [`COUNT_MAX`].
#[expect(clippy::cast_precision_loss, reason = "no count exceeds COUNT_MAX")]
pub const fn real(count: u64) -> f64 {
    count as f64
}

/// The numbers of a limit, at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The most hits that one window admits, or a bucket's rate, up to [`COUNT_MAX`]; 0 admits none.
    pub requests_per_unit: u64,
    /// The most hits that an unused counter admits at once, up to [`COUNT_MAX`].
    pub capacity: u64,
    /// The length of the limit's window in milliseconds, from 1,000 to below 2^42.
    pub window_ms: u64,
    /// How long after its last charge a first-hit window ends, in milliseconds; otherwise `window_ms`.
    pub idle_ms: u64,
    /// How long a hit may count, in milliseconds: in a bucket until it is full again, and one window longer, since its limit may
    /// be lowered meanwhile; otherwise `window_ms`.
    pub counts_ms: u64,
    /// The store's time.
    pub now: Timestamp,
    /// The span of the limit's window that holds `now`; for a give-back, the one that holds its reservation.
    pub span: Span,
}

/// The state of one counter. What changes with time alone is computed when the account is read, so that only
/// charges and refunds change the state.
pub trait Account {
    /// Moves back what lies more than a window ahead. It was noted while the clock was ahead, and would deny
    /// until the clock is there again.
    fn set_back(&mut self, _terms: &Terms) {}

    /// Gives hits back, the newest first; stops at zero.
    fn refund(&mut self, hits: u64, terms: &Terms);

    /// Gives back hits of the `held` ones that a reservation of `caller` charged at `made`, and no others. If they cannot be
    /// distinguished from others, they remain. `terms.span` is the span that holds `made`.
    fn give_back(
        &mut self,
        hits: u64,
        held: u64,
        made: Timestamp,
        caller: Option<&str>,
        terms: &Terms,
    );

    /// Whether this many more hits fit the limit.
    fn fits(&self, hits: u64, terms: &Terms) -> bool {
        self.used(terms).saturating_add(hits) <= terms.requests_per_unit
    }

    /// Adds at least one hit; counts stop at [`COUNT_MAX`].
    fn charge(&mut self, hits: u64, caller: Option<&str>, terms: &Terms);

    /// The earliest time at which the state may be dropped: not before it ends.
    fn keep_until(&self, terms: &Terms) -> Timestamp {
        self.ends(terms)
    }

    /// Whether the account equals a new one, so that it need not be kept.
    fn is_unused(&self) -> bool;

    /// Hits that count now, rounded up.
    fn used(&self, terms: &Terms) -> u64;

    /// Number of hits that would pass now.
    fn remaining(&self, terms: &Terms) -> u64 {
        terms.requests_per_unit.saturating_sub(self.used(terms))
    }

    /// The end of the window, or the time from which no hit counts any more.
    fn ends(&self, terms: &Terms) -> Timestamp;

    /// The time from which `hits`, which do not fit now, will fit; if they never will, the end.
    fn admits_at(&self, _hits: u64, terms: &Terms) -> Timestamp {
        self.ends(terms)
    }
}

/// A count after hits are given back to it. One that has stopped at [`COUNT_MAX`] has lost count of others'
/// hits, so it remains.
pub(super) fn given_back(used: u64, hits: u64) -> u64 {
    if used < COUNT_MAX { used.saturating_sub(hits) } else { used }
}
