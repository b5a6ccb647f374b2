//! Which of several live counters is given up first, where memory is full.

use crate::engine::{
    algorithm::{Account, Terms},
    time::Timestamp,
};

/// The end takes the lower bits, which hold milliseconds until the year 2527; the part that is used
/// takes those above.
const END_BITS: u32 = 44;

/// Also stands for all later ones.
const END_MAX: u64 = (1 << END_BITS) - 1;

/// The part of an exhausted counter.
const EXHAUSTED: u64 = (1 << (u64::BITS - END_BITS)) - 1;

/// The order in which live counters are given up: first what has used the smallest part of its limit,
/// and among equals what ends first. An end user who invents values uses little of each; an exhausted
/// counter is the last to go. In one number, since there are many counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u64);

impl Rank {
    /// The rank of `account`, with its end.
    pub(super) fn of(account: &dyn Account, terms: &Terms<'_>) -> Self {
        let (used, most) = (account.used(terms), u64::from(terms.limit.capacity()));
        let part = match most {
            // It denies with a counter and without.
            0 => 0,
            1.. if used >= most => EXHAUSTED,
            1.. => used * (EXHAUSTED - 1) / most,
        };
        let end = account.keep_until(terms).as_millis().min(END_MAX);
        Self(part << END_BITS | end)
    }

    /// When it counts no more.
    pub(super) fn end(self) -> Timestamp {
        match self.0 & END_MAX {
            END_MAX => Timestamp::from_millis(u64::MAX),
            end => Timestamp::from_millis(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        algorithm::fixed_window,
        rule::{Limit, Unit},
    };

    fn rank(used: u64, most: u32, unit: Unit) -> Rank {
        let limit = Limit::new(most, unit, 1).unwrap();
        Rank::of(&fixed_window::FixedWindow { used }, &Terms::new(&limit, Timestamp::from_secs(60)))
    }

    #[test]
    fn what_is_used_least_goes_first_and_what_is_exhausted_last() {
        let order = [
            rank(7, 0, Unit::Year),
            rank(1, 1_000_000, Unit::Second),
            rank(1, 1_000_000, Unit::Day),
            rank(2, 1_000_000, Unit::Second),
            rank(1, 10, Unit::Day),
            rank(u64::from(u32::MAX) - 1, u32::MAX, Unit::Second),
            rank(1, 1, Unit::Second),
            rank(1 << 53, u32::MAX, Unit::Minute),
            rank(10, 10, Unit::Day),
        ];
        assert!(order.is_sorted_by(|one, next| one < next), "{order:?}");
    }

    #[test]
    fn the_end_is_exact_until_2527_and_then_there_is_none() {
        assert_eq!(rank(9, 10, Unit::Minute).end(), Timestamp::from_secs(120));
        let limit = Limit::new(1, Unit::Year, 1).unwrap();
        let terms = Terms::new(&limit, Timestamp::from_millis(END_MAX));
        let end = Rank::of(&fixed_window::FixedWindow { used: 1 }, &terms).end();
        assert_eq!(end, Timestamp::from_millis(u64::MAX));
    }
}
