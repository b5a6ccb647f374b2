//! Why a store does not answer.

/// Why a call has no tallies. No answer follows later.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store did not answer within the budget; the call may have been charged.
    #[error("no answer within the decision budget")]
    TimedOut,
    /// No connection to the store was free within the budget.
    #[error("no connection within the decision budget")]
    NoConnection,
    /// The store cannot be reached, or cannot take charges now.
    #[error("{0}")]
    Unavailable(String),
    /// The store answers, and takes no writes now.
    #[error("{0}")]
    TakesNoWrites(String),
    /// The user may not run a command, and nothing was done; the text names both.
    #[error("{0}: docs/redis.md lists the rights")]
    NotPermitted(String),
    /// The store answers this call with an error that concerns no other. It may have been charged.
    #[error("a command of the call failed in the store")]
    CallFailed,
    /// The store's time crossed a window boundary at each try.
    #[error("its time crossed a window boundary at each of three tries")]
    ClockUnsteady,
    /// No server gives an answer for the counters of these charges. The call was not charged, except for work that
    /// is already done.
    #[error("{cause}")]
    Unreachable {
        charges: Vec<usize>,
        /// The indices of refunds that were still applied.
        refunded: Vec<usize>,
        /// Why the store did not answer.
        cause: String,
    },
    /// A key that no counter has holds a value of another type.
    #[error("its key holds a value of another type")]
    WrongType,
    /// The counters of these charges hold something other than a count; the call was not charged.
    #[error("a counter holds something other than a count")]
    Corrupt(Vec<usize>),
}

impl StoreError {
    /// The indices of the charges that are left to their `on_store_failure`, if it is not all of them.
    pub fn by_failure_mode(&self) -> &[usize] {
        match self {
            Self::Corrupt(charges) | Self::Unreachable { charges, .. } => charges,
            _ => &[],
        }
    }

    /// Whether the store answers, and the error says nothing about other calls.
    pub(crate) const fn is_of_the_call(&self) -> bool {
        matches!(self, Self::Corrupt(_) | Self::CallFailed)
    }
}
