//! Which of several live counters is evicted first if memory is full.

use tollkeeper_engine::{
    algorithm::{AnyAccount, account::Terms},
    time::Timestamp,
};

/// The lower bits hold the end, in milliseconds up to the year 2527; those above hold the used part of the
/// limit.
const END_BITS: u32 = 44;

/// The latest end; later ends count as this one.
const END_MAX: u64 = (1 << END_BITS) - 1;

/// The used part of an exhausted counter.
const EXHAUSTED: u64 = (1 << (u64::BITS - END_BITS)) - 1;

/// The order in which live counters are evicted: first those that have used the smallest part of their limit,
/// among equals those that end first. An end user who invents values uses little of each; exhausted
/// counters are evicted last. A single number, since there are many counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u64);

impl Rank {
    /// Above every counter.
    pub(super) const HIGHEST: Self = Self(u64::MAX);

    /// The rank of a new `account`, with its end.
    pub(super) fn of(account: &AnyAccount, terms: &Terms) -> Self {
        let (used, capacity) = (account.read().used(terms), terms.capacity);
        let part = match capacity {
            // Without it, a commit might be made twice.
            _ if matches!(account, AnyAccount::HoldRecord(_)) => EXHAUSTED,
            // It denies even without a counter.
            0 => 0,
            1.. if used >= capacity => EXHAUSTED,
            1.. => part_of(used, capacity),
        };
        Self::with_end(part, account, terms)
    }

    /// The rank of the account of a counter that had this one, and had used this much, if the terms say nothing about the
    /// part: it grows as the used hits do.
    pub(super) fn grown(self, used_before: u64, account: &AnyAccount, terms: &Terms) -> Self {
        let (part, used) = (self.0 >> END_BITS, account.read().used(terms));
        let grown = u128::from(part) * u128::from(used) / u128::from(used_before.max(1));
        let grown = u64::try_from(grown).unwrap_or(EXHAUSTED).min(EXHAUSTED);
        Self::with_end(part.max(grown), account, terms)
    }

    fn with_end(part: u64, account: &AnyAccount, terms: &Terms) -> Self {
        let end = account.read().keep_until(terms).as_millis().min(END_MAX);
        Self(part << END_BITS | end)
    }

    /// The time from which the counter counts no longer.
    pub(super) fn end(self) -> Timestamp {
        match self.0 & END_MAX {
            END_MAX => Timestamp::from_millis(u64::MAX),
            end => Timestamp::from_millis(end),
        }
    }
}

/// The used part of a limit, below [`EXHAUSTED`]. A limit and that maximum together have more than 64 bits.
fn part_of(used: u64, capacity: u64) -> u64 {
    let part = u128::from(used) * u128::from(EXHAUSTED - 1) / u128::from(capacity);
    u64::try_from(part).unwrap_or(EXHAUSTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollkeeper_engine::{
        algorithm::{account::COUNT_MAX, fixed_window::FixedWindow},
        rule::{Limit, Unit},
    };

    fn account(used: u64) -> AnyAccount {
        AnyAccount::FixedWindow(FixedWindow { used })
    }

    fn rank(used: u64, most: u64, unit: Unit) -> Rank {
        let limit = Limit::new(most, unit, 1).unwrap();
        Rank::of(&account(used), &limit.terms(Timestamp::from_secs(60)))
    }

    #[test]
    fn the_least_used_are_evicted_first_and_the_exhausted_last() {
        let order = [
            rank(7, 0, Unit::Year),
            rank(1, 1_000_000, Unit::Second),
            rank(1, 1_000_000, Unit::Day),
            rank(2, 1_000_000, Unit::Second),
            rank(1, 10, Unit::Day),
            rank(COUNT_MAX - 1, COUNT_MAX, Unit::Second),
            rank(1, 1, Unit::Second),
            rank(1 << 53, COUNT_MAX, Unit::Minute),
            rank(10, 10, Unit::Day),
        ];
        assert!(order.is_sorted_by(|one, next| one < next), "{order:?}");
    }

    #[test]
    fn the_end_is_exact_until_2527_and_never_comes_after_that() {
        assert_eq!(rank(9, 10, Unit::Minute).end(), Timestamp::from_secs(120));
        let limit = Limit::new(1, Unit::Year, 1).unwrap();
        let terms = limit.terms(Timestamp::from_millis(END_MAX));
        let end = Rank::of(&account(1), &terms).end();
        assert_eq!(end, Timestamp::from_millis(u64::MAX));
    }
}
