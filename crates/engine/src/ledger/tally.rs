//! Tallies: the answers to charges.

use std::{sync::Arc, time::Duration};

use super::{charge::Charge, hold_action::CommitOutcome};
use crate::{
    algorithm::account::{Account, Terms},
    request::Hits,
    rule::{Limit, Mode, Tier, WhenDenied},
};

/// The answer to one charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Whether the charge fits, and how many more hits would.
    pub fit: Fit,
    /// For an aligned window, the time until it ends. Otherwise, if the charge is over, the time until it
    /// fits, or if it never will, until no hit counts any more; if it fits, the time until no hit counts any
    /// more.
    pub reset: Duration,
    /// What the charge was judged by.
    pub judged_by: JudgedBy,
    /// The hits of the hold by id or by counter that the charge has ended, or has come too late for; 0 without one. Of a
    /// hold by token, [`HoldAction::Commit`](super::HoldAction::Commit) has them.
    pub held: u64,
}

/// What a charge was judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JudgedBy {
    /// Its counter.
    Counter,
    /// The `on_store_failure` of its limit, since its counter is corrupt.
    Corrupt,
    /// The `on_store_failure` of its limit, since its counter gave no answer.
    Absent,
}

/// Whether a charge fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It fits.
    Fits {
        /// Number of hits that would still pass after this call.
        remaining: u64,
    },
    /// It does not fit.
    Over,
    /// It is a commit, which always passes.
    Commit(CommitOutcome),
}

impl Tally {
    /// The tally by a counter.
    pub const fn new(fit: Fit, reset: Duration) -> Self {
        Self { fit, reset, judged_by: JudgedBy::Counter, held: 0 }
    }

    /// The tally of a charge that fits or does not, in a call that needs `asked` hits of its account.
    pub(super) fn of(account: &dyn Account, fits: bool, asked: u64, terms: &Terms) -> Self {
        let (fit, at) = if fits {
            (Fit::Fits { remaining: account.remaining(terms) }, account.ends(terms))
        } else {
            (Fit::Over, account.admits_at(asked, terms))
        };
        Self::new(fit, terms.now.until(at))
    }

    /// The tier of its limit that is reached after the call.
    pub fn tier<'limit>(&self, limit: &'limit Limit) -> Option<&'limit Tier> {
        match self.fit {
            Fit::Fits { remaining } => limit.tier(remaining),
            Fit::Over => limit.tier(0),
            Fit::Commit(_) => None,
        }
    }

    /// The limit that is only tried, and that the charge is over: its own if that is a shadow, else one of the number of
    /// [`Limit::shadow`], if its counter holds more after the call, which is `denied` or not.
    pub fn over_shadow(&self, charge: &Charge, denied: bool) -> Option<Arc<Limit>> {
        let limit = &charge.counter.limit;
        match self.fit {
            Fit::Over if limit.mode_written == Mode::Shadow => Some(Arc::clone(limit)),
            Fit::Fits { remaining }
                if self.judged_by == JudgedBy::Counter
                    && !charge.hits.asks_nothing()
                    && (!denied || charge.when_denied() == WhenDenied::Counted) =>
            {
                let tried = limit.shadow?;
                let is_check = charge.hits == Hits::Check;
                let asked = if is_check { limit.exhausted_checks.asked() } else { 0 };
                let used = limit.capacity().saturating_sub(remaining) + asked;
                (used > tried).then(|| Arc::new(limit.with_requests(tried)))
            }
            _ => None,
        }
    }

    /// The least number of hits that the counter of this charge holds after the call; `None` for a commit.
    pub fn used(&self, charge: &Charge) -> Option<u64> {
        let capacity = charge.counter.limit.capacity();
        match self.fit {
            Fit::Fits { remaining } => Some(capacity.saturating_sub(remaining)),
            Fit::Over if charge.when_denied() == WhenDenied::Counted => Some(capacity),
            // One hit fewer would have fitted.
            Fit::Over => {
                Some(capacity.saturating_add(1).saturating_sub(charge.hits.charged().max(1)))
            }
            Fit::Commit(_) => None,
        }
    }

    /// The tally with fewer remaining hits, since others hold them.
    pub(super) fn less(mut self, held: u64) -> Self {
        if let Fit::Fits { remaining } = &mut self.fit {
            *remaining = remaining.saturating_sub(held);
        }
        self
    }

    /// The tally of a charge whose counter gives no answer: over its limit for a second if its
    /// `on_store_failure` is `deny`, else as if no hit were counted.
    pub fn by_failure_mode(charge: &Charge, judged_by: JudgedBy) -> Self {
        let fit = if charge.denies_by_failure_mode() {
            Fit::Over
        } else {
            Fit::Fits { remaining: charge.counter.limit.capacity() }
        };
        Self { judged_by, ..Self::new(fit, Duration::from_secs(1)) }
    }
}
