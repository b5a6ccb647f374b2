//! Where counters live. A store takes the charges of one call and answers with a tally for each:
//! all are made, or none.

pub mod fallback;
pub mod guard;
pub mod memory;
pub mod outage;
pub mod over_limit_cache;
pub mod redis;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::{
    key::Counter,
    ledger::{Charge, CounterState, Judgement},
    time::Timestamp,
};

/// Reads a clock. The program uses [`system_clock`]; a test passes its own.
pub type Clock = fn() -> Timestamp;

/// The machine's wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the store's edge, which reads the clock once per call"
)]
pub fn system_clock() -> Timestamp {
    // A clock before 1970 is a machine without a clock; the store's own time corrects it.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Why a call has no tallies. In none of these cases does a later answer come.
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
    /// The store's time crossed a window boundary each time that it was asked.
    #[error("its time crossed a window boundary at each of three tries")]
    ClockUnsteady,
    /// The counters of these charges hold something other than a count; the call was not charged.
    #[error("a counter holds something other than a count")]
    Corrupt(Vec<usize>),
}

/// What becomes of a counter that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// It stays as it is.
    No,
    /// It begins anew. No hit is lost between the look and that.
    Yes,
}

/// One of the stores, chosen by the settings.
#[derive(Debug)]
pub enum Store {
    /// Counters in this process.
    Memory(memory::MemoryStore),
    /// Counters in Redis, shared by all replicas.
    Redis(redis::RedisStore),
    /// The same in a Redis that runs no scripts.
    Transactions(redis::TransactionStore),
}

impl Store {
    /// As [`charge`](Self::charge), if the store answers without waiting; else `None`.
    pub fn charge_at_once(&self, charges: &[Charge]) -> Option<Judgement> {
        match self {
            Self::Memory(store) => Some(store.charge(charges)),
            Self::Redis(_) | Self::Transactions(_) => None,
        }
    }

    /// Makes all charges of one call, or none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge(&self, charges: &[Charge]) -> Result<Judgement, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.charge(charges)),
            Self::Redis(store) => store.charge(charges).await,
            Self::Transactions(store) => store.charge(charges).await,
        }
    }

    /// How one counter stands, and `clear` resets it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn look(&self, counter: &Counter, clear: Clear) -> Result<CounterState, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.look(counter, clear)),
            Self::Redis(store) => store.look(counter, clear).await,
            Self::Transactions(store) => store.look(counter, clear).await,
        }
    }

    /// Waits for the store's first answer.
    pub async fn reached(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.reached().await,
            Self::Transactions(store) => store.reached().await,
        }
    }
}
