//! A bucket of tokens that refills at an even rate: GCRA, the generic cell rate algorithm of ITU-T
//! I.371, here in the form of its leaky bucket.
//!
//! The debt is what the bucket lacks, in hits times the window's milliseconds: a hit adds the window,
//! and each millisecond pays back `requests_per_unit`. So every sum is a whole number, and no
//! remainder is lost. `burst` times the window stays below 2^53, which is checked when rules are
//! loaded.

use super::Terms;
use crate::engine::{request::Hits, time::Timestamp};

/// The state of one bucket: its debt, and when it was that much.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBucket {
    debt: u64,
    at: Timestamp,
}

impl TokenBucket {
    /// The debt now. A clock that was set back pays nothing until it has caught up.
    fn now(&self, terms: &Terms<'_>) -> Self {
        let elapsed = terms.now.as_millis().saturating_sub(self.at.as_millis());
        let paid = elapsed.saturating_mul(u64::from(terms.limit.requests_per_unit));
        Self { debt: self.debt.saturating_sub(paid), at: self.at.max(terms.now) }
    }

    fn paid_at(&self, debt: u64, terms: &Terms<'_>) -> Timestamp {
        match terms.limit.requests_per_unit {
            // It never refills; some time must be said.
            0 => self.at.plus_millis(window(terms)),
            rate => self.at.plus_millis(debt.div_ceil(u64::from(rate))),
        }
    }
}

fn window(terms: &Terms<'_>) -> u64 {
    terms.limit.window.millis()
}

fn debt_max(terms: &Terms<'_>) -> u64 {
    u64::from(terms.limit.capacity()).saturating_mul(window(terms))
}

impl super::Account for TokenBucket {
    fn refund(&mut self, hits: u64, terms: &Terms<'_>) {
        let Self { debt, at } = self.now(terms);
        if debt > 0 {
            *self = Self { debt: debt.saturating_sub(hits.saturating_mul(window(terms))), at };
        }
    }

    fn fits(&self, hits: u64, terms: &Terms<'_>) -> bool {
        let asked = hits.saturating_mul(window(terms));
        self.now(terms).debt.saturating_add(asked) <= debt_max(terms)
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, terms: &Terms<'_>) {
        let Self { debt, at } = self.now(terms);
        let debt = debt.saturating_add(hits.saturating_mul(window(terms))).min(Hits::MAX);
        *self = Self { debt, at };
    }

    fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    fn used(&self, terms: &Terms<'_>) -> u64 {
        self.now(terms).debt.div_ceil(window(terms))
    }

    fn remaining(&self, terms: &Terms<'_>) -> u32 {
        let left = debt_max(terms).saturating_sub(self.now(terms).debt) / window(terms);
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    fn ends(&self, terms: &Terms<'_>) -> Timestamp {
        let now = self.now(terms);
        match now.debt {
            0 => terms.now,
            debt => now.paid_at(debt, terms),
        }
    }

    /// One window longer: a limit that is lowered meanwhile makes it count longer.
    fn keep_until(&self, terms: &Terms<'_>) -> Timestamp {
        self.ends(terms).plus_millis(window(terms))
    }

    fn admits_at(&self, hits: u64, terms: &Terms<'_>) -> Timestamp {
        let now = self.now(terms);
        let asked = hits.saturating_mul(window(terms));
        match debt_max(terms).checked_sub(asked) {
            Some(room) => now.paid_at(now.debt.saturating_sub(room), terms),
            None => self.ends(terms),
        }
    }
}
