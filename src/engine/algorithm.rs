//! The algorithms: how one account is read, charged and given back. One file each, with a script of
//! the same name and shape in `store/redis/lua/`.

pub mod first_hit_window;
pub mod fixed_window;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

use crate::engine::{
    rule::{Algorithm, Limit},
    time::{Span, Timestamp},
};

/// What a charge is judged by: its limit, at a time.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'limit> {
    /// The limit.
    pub limit: &'limit Limit,
    /// The store's time.
    pub now: Timestamp,
    /// The span of the limit's window that holds `now`.
    pub span: Span,
}

impl<'limit> Terms<'limit> {
    /// The terms of `limit` at `now`.
    pub fn new(limit: &'limit Limit, now: Timestamp) -> Self {
        Self { limit, now, span: limit.window.at(now) }
    }
}

/// The state of one counter. What time alone changes is worked out when it is read, so that only
/// charges and refunds change the state.
pub trait Account {
    /// Gives hits back, the newest first; nothing is left below zero.
    fn refund(&mut self, hits: u64, terms: &Terms<'_>);

    /// Whether so many more hits are within the limit.
    fn fits(&self, hits: u64, terms: &Terms<'_>) -> bool;

    /// Takes at least one hit; what goes beyond [`Hits::MAX`](crate::engine::request::Hits::MAX) is
    /// not told apart.
    fn charge(&mut self, hits: u64, caller: Option<&str>, terms: &Terms<'_>);

    /// When its state may be dropped: not before it ends.
    fn keep_until(&self, terms: &Terms<'_>) -> Timestamp {
        self.ends(terms)
    }

    /// Whether it is as new: it need not be kept.
    fn is_unused(&self) -> bool;

    /// Hits that count now, rounded up.
    fn used(&self, terms: &Terms<'_>) -> u64;

    /// How many hits would pass now.
    fn remaining(&self, terms: &Terms<'_>) -> u32;

    /// When nothing of it counts any more, or its window ends.
    fn ends(&self, terms: &Terms<'_>) -> Timestamp;

    /// When so many hits will fit that do not fit now; where they never will, when it ends.
    fn admits_at(&self, _hits: u64, terms: &Terms<'_>) -> Timestamp {
        self.ends(terms)
    }
}

/// An account of any algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum AnyAccount {
    FixedWindow(fixed_window::FixedWindow),
    FirstHitWindow(first_hit_window::FirstHitWindow),
    /// In a box: the others are half as large, and there are more of them.
    SlidingLog(Box<sliding_log::SlidingLog>),
    SlidingWindow(sliding_window::SlidingWindow),
    TokenBucket(token_bucket::TokenBucket),
}

impl AnyAccount {
    /// An account on which nothing was charged yet.
    pub fn new(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(fixed_window::FixedWindow::default()),
            Algorithm::FirstHitWindow => {
                Self::FirstHitWindow(first_hit_window::FirstHitWindow::default())
            }
            Algorithm::SlidingLog { .. } => Self::SlidingLog(Box::default()),
            Algorithm::SlidingWindow => {
                Self::SlidingWindow(sliding_window::SlidingWindow::default())
            }
            Algorithm::TokenBucket { .. } => {
                Self::TokenBucket(token_bucket::TokenBucket::default())
            }
        }
    }

    /// What all algorithms can do.
    pub fn read(&self) -> &dyn Account {
        match self {
            Self::FixedWindow(account) => account,
            Self::FirstHitWindow(account) => account,
            Self::SlidingLog(account) => account.as_ref(),
            Self::SlidingWindow(account) => account,
            Self::TokenBucket(account) => account,
        }
    }

    /// The same, to change it.
    pub fn write(&mut self) -> &mut dyn Account {
        match self {
            Self::FixedWindow(account) => account,
            Self::FirstHitWindow(account) => account,
            Self::SlidingLog(account) => account.as_mut(),
            Self::SlidingWindow(account) => account,
            Self::TokenBucket(account) => account,
        }
    }
}

/// The difference of a limit and what is used, as hits.
fn left(limit: u32, used: u64) -> u32 {
    u32::try_from(u64::from(limit).saturating_sub(used)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rule::Unit;

    fn limit(requests: u32, unit: Unit, algorithm: Algorithm) -> Limit {
        Limit { algorithm, ..Limit::new(requests, unit, 1).unwrap() }
    }

    #[test]
    fn a_token_bucket_keeps_the_remainder() {
        // Three a second: one after 333.33… ms, and so never before the third of a second is over.
        let limit = limit(3, Unit::Second, Algorithm::TokenBucket { burst: 1 });
        let at = |ms| Terms::new(&limit, Timestamp::from_millis(ms));
        let mut account = token_bucket::TokenBucket::default();
        let mut passed = 0;
        for ms in 0..100_000 {
            if account.fits(1, &at(ms)) {
                account.charge(1, None, &at(ms));
                passed += 1;
            }
        }
        assert_eq!(passed, 300, "three a second, though none comes after a whole millisecond");
    }

    #[test]
    fn a_clock_that_is_set_back_refills_nothing_twice() {
        let limit = limit(10, Unit::Second, Algorithm::TokenBucket { burst: 10 });
        let at = |ms| Terms::new(&limit, Timestamp::from_millis(ms));
        let mut account = token_bucket::TokenBucket::default();
        account.charge(10, None, &at(10_000));
        assert_eq!(account.remaining(&at(9_000)), 0);
        assert_eq!(account.remaining(&at(10_500)), 5);
    }
}
