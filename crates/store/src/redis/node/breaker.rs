//! Whether calls may go to one server. While the breaker is open they are answered at once, without it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::StoreError;

/// Number of failures in a row that open it. Batches are sent every few milliseconds, so the third fails soon after
/// the first; one lost packet is not enough.
const STRIKES_MAX: u32 = 3;

/// A breaker, which is closed at first.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    is_open: AtomicBool,
    /// Number of failures since the last answer.
    strikes: AtomicU32,
    cause: Mutex<Option<StoreError>>,
}

impl Breaker {
    /// What calls are answered with while it is open. While it is closed this costs a single load.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        self.is_open().then(|| self.cause.lock().clone())?
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Counts a failure, and returns whether that opens it. A server that takes no writes does not count as failing: it
    /// still denies what is over its limit. Nor does one to which a connection is still being opened, unless it gives no
    /// answer on others either.
    pub(crate) fn failed(&self, error: &StoreError) -> bool {
        match error {
            StoreError::TakesNoWrites(_) | StoreError::ClockUnsteady => {
                self.answered();
                return false;
            }
            StoreError::NoConnection => {
                let is_silent = matches!(*self.cause.lock(), Some(StoreError::TimedOut));
                if !is_silent || self.strikes.load(Ordering::Relaxed) == 0 {
                    return false;
                }
            }
            _ => *self.cause.lock() = Some(error.clone()),
        }
        let strikes = self.strikes.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        strikes >= STRIKES_MAX && !self.is_open.swap(true, Ordering::AcqRel)
    }

    /// Notes that the server has answered. Only a probe [closes](Self::close) it.
    pub(crate) fn answered(&self) {
        if self.strikes.load(Ordering::Relaxed) != 0 {
            self.strikes.store(0, Ordering::Relaxed);
        }
    }

    /// Lets calls through again, and returns whether that is new.
    pub(crate) fn close(&self) -> bool {
        self.answered();
        self.is_open.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_open_it_and_one_answer_between_them_does_not() {
        let breaker = Breaker::default();
        for _ in 0..10 {
            for _ in 1..STRIKES_MAX {
                assert!(!breaker.failed(&StoreError::TimedOut));
            }
            breaker.answered();
        }
        assert!(!breaker.is_open());
        for strike in 1..=STRIKES_MAX {
            assert_eq!(breaker.failed(&StoreError::TimedOut), strike == STRIKES_MAX);
        }
        assert!(breaker.is_open());
        breaker.answered();
        assert!(breaker.is_open(), "only a probe closes it");
        assert!(breaker.close());
        assert!(!breaker.is_open() && !breaker.close());
    }

    #[test]
    fn it_answers_with_the_last_cause() {
        let breaker = Breaker::default();
        for cause in ["one", "another", "the third", "the fourth"] {
            breaker.failed(&StoreError::Unavailable(cause.to_owned()));
        }
        assert_eq!(breaker.refusal().unwrap().to_string(), "the fourth");
    }

    #[test]
    fn a_server_that_takes_no_writes_does_not_open_it() {
        let breaker = Breaker::default();
        for _ in 0..10 {
            assert!(!breaker.failed(&StoreError::TakesNoWrites("it is full".to_owned())));
            assert!(!breaker.failed(&StoreError::ClockUnsteady));
        }
        assert!(!breaker.is_open());
    }
}
