//! A bucket of tokens that refills at an even rate: GCRA, the generic cell rate algorithm of ITU-T
//! I.371, in its leaky-bucket form.
//!
//! The debt is what the bucket lacks, in hits times the window's milliseconds: a hit adds the window,
//! and each millisecond pays back `requests_per_unit`. So every sum is a whole number, and no
//! remainder is lost. `burst` times the window stays below 2^53, which is checked when rules are
//! loaded.

use super::account::{Account, COUNT_MAX, Terms};
use crate::time::Timestamp;

/// The state of one bucket: its debt at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBucket {
    debt: u64,
    at: Timestamp,
}

impl TokenBucket {
    /// The debt now. After the clock was set back by up to a window, nothing is paid until it has caught up.
    fn now(&self, terms: &Terms) -> Self {
        let elapsed = terms.now.as_millis().saturating_sub(self.at.as_millis());
        let paid = elapsed.saturating_mul(terms.requests_per_unit);
        Self { debt: self.debt.saturating_sub(paid), at: self.at.max(terms.now) }
    }

    fn paid_at(&self, debt: u64, terms: &Terms) -> Timestamp {
        match terms.requests_per_unit {
            // It never refills. The answer needs a reset time, so it reports one window.
            0 => self.at.plus_millis(terms.window_ms),
            rate => self.at.plus_millis(debt.div_ceil(rate)),
        }
    }
}

fn debt_of(hits: u64, terms: &Terms) -> u64 {
    hits.saturating_mul(terms.window_ms)
}

fn debt_max(terms: &Terms) -> u64 {
    debt_of(terms.capacity, terms)
}

impl Account for TokenBucket {
    fn set_back(&mut self, terms: &Terms) {
        if self.at > terms.now.plus_millis(terms.window_ms) {
            self.at = terms.now;
        }
    }

    fn refund(&mut self, hits: u64, terms: &Terms) {
        let Self { debt, at } = self.now(terms);
        if debt > 0 {
            *self = Self { debt: debt.saturating_sub(debt_of(hits, terms)), at };
        }
    }

    /// No more than what has not been refilled since: without the hits given back, the bucket would have been full then.
    /// If others have charged it meanwhile, at least the held hits count as the debt of that time.
    fn give_back(&mut self, hits: u64, held: u64, made: Timestamp, _: Option<&str>, terms: &Terms) {
        let is_last = self.at == made;
        let Self { debt, at } = self.now(terms);
        let elapsed = at.as_millis().saturating_sub(made.as_millis());
        let refilled = elapsed.saturating_mul(terms.requests_per_unit);
        let owed = if is_last { debt } else { debt_of(held, terms).saturating_sub(refilled) };
        let back = debt_of(hits, terms).min(owed);
        // A debt that has stopped at its maximum has lost hits of others.
        if debt > 0 && back > 0 && debt.saturating_add(refilled) < COUNT_MAX {
            *self = Self { debt: debt.saturating_sub(back), at };
        }
    }

    fn fits(&self, hits: u64, terms: &Terms) -> bool {
        self.now(terms).debt.saturating_add(debt_of(hits, terms)) <= debt_max(terms)
    }

    fn charge(&mut self, hits: u64, _: Option<&str>, terms: &Terms) {
        let Self { debt, at } = self.now(terms);
        *self = Self { debt: debt.saturating_add(debt_of(hits, terms)).min(COUNT_MAX), at };
    }

    fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    fn used(&self, terms: &Terms) -> u64 {
        self.now(terms).debt.div_ceil(terms.window_ms)
    }

    fn remaining(&self, terms: &Terms) -> u64 {
        debt_max(terms).saturating_sub(self.now(terms).debt) / terms.window_ms
    }

    fn ends(&self, terms: &Terms) -> Timestamp {
        let now = self.now(terms);
        match now.debt {
            0 => terms.now,
            debt => now.paid_at(debt, terms),
        }
    }

    /// One window longer: if the limit is lowered meanwhile, the debt counts longer.
    fn keep_until(&self, terms: &Terms) -> Timestamp {
        self.ends(terms).plus_millis(terms.window_ms)
    }

    fn admits_at(&self, hits: u64, terms: &Terms) -> Timestamp {
        let now = self.now(terms);
        match debt_max(terms).checked_sub(debt_of(hits, terms)) {
            Some(room) => now.paid_at(now.debt.saturating_sub(room), terms),
            None => self.ends(terms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Algorithm, Limit, Unit};

    fn per_second(requests: u64, burst: u64) -> Limit {
        let limit = Limit::new(requests, Unit::Second, 1).unwrap();
        Limit { algorithm: Algorithm::TokenBucket { burst }, ..limit }
    }

    #[test]
    fn the_remainder_is_kept() {
        // Three a second: one after 333.33… ms, and so never before the third of a second is over.
        let limit = per_second(3, 1);
        let mut bucket = TokenBucket::default();
        let mut passed = 0;
        for ms in 0..100_000 {
            let terms = limit.terms(Timestamp::from_millis(ms));
            if bucket.fits(1, &terms) {
                bucket.charge(1, None, &terms);
                passed += 1;
            }
        }
        assert_eq!(
            passed, 300,
            "three a second, though a third is not a whole number of milliseconds"
        );
    }

    #[test]
    fn a_bucket_whose_limit_becomes_zero_keeps_its_debt_and_reports_a_window() {
        let mut bucket = TokenBucket::default();
        bucket.charge(3, None, &per_second(10, 10).terms(Timestamp::from_millis(10_000)));
        let zero = per_second(0, 0).terms(Timestamp::from_millis(10_500));
        assert_eq!((bucket.used(&zero), bucket.remaining(&zero)), (3, 0));
        assert_eq!(bucket.ends(&zero), Timestamp::from_millis(11_500));
        assert_eq!(bucket.admits_at(1, &zero), Timestamp::from_millis(11_500));
    }
}
