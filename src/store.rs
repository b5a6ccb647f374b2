//! The stores of counters. A store takes the charges of one call and answers with a tally for each;
//! it makes all of them, or none.

pub mod fallback;
pub mod guard;
mod lateness;
pub mod memory;
pub mod metrics;
pub mod outage;
pub mod over_limit_cache;
pub mod redis;
pub mod report;

use std::future::pending;

use tokio::time::Instant;

use self::report::ServerReport;
use crate::engine::{
    key::Counter,
    ledger::{Charge, CounterState, Judgement},
};
/// The clock that a store is given.
pub use crate::process::clock::{Clock, system_clock};

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
    /// The store's time crossed a window boundary at each try.
    #[error("its time crossed a window boundary at each of three tries")]
    ClockUnsteady,
    /// No server gives an answer for the counters of these charges. The call was not charged, except for work that
    /// is already done.
    #[error("{cause}")]
    Unreachable {
        /// The indices of the charges.
        charges: Vec<usize>,
        /// The indices of refunds that were applied nevertheless.
        refunded: Vec<usize>,
        /// Why there is no answer.
        cause: String,
    },
    /// The counters of these charges hold something other than a count; the call was not charged.
    #[error("a counter holds something other than a count")]
    Corrupt(Vec<usize>),
}

/// What a look at a counter has found.
#[derive(Debug, Clone)]
pub enum CounterReading {
    /// Its state.
    State(CounterState),
    /// It holds something other than a count.
    Corrupt,
    /// The store gives no answer, for a reason that names the server.
    NoAnswer(String),
}

/// Whether a look at a counter resets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// The counter stays as it is.
    No,
    /// The counter starts again from zero. No hit is lost between the look and the reset.
    Yes,
}

/// One of the stores, chosen by the settings.
#[derive(Debug)]
pub enum Store {
    /// Counters in this process.
    Memory(memory::MemoryStore),
    /// Counters in Redis, shared by all replicas.
    Redis(redis::RedisStore),
    /// Counters in a Redis that runs no scripts.
    Transactions(redis::TransactionStore),
}

impl Store {
    /// Like [`charge`](Self::charge) if the store answers without waiting; else `None`.
    pub fn charge_at_once(&self, charges: &[Charge]) -> Option<Judgement> {
        match self {
            Self::Memory(store) => Some(store.charge(charges)),
            Self::Redis(_) | Self::Transactions(_) => None,
        }
    }

    /// Makes all charges of one call, or none; its caller waits `until` then.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge(
        &self,
        charges: &[Charge],
        until: Instant,
    ) -> Result<Judgement, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.charge(charges)),
            Self::Redis(store) => store.charge(charges, until).await,
            Self::Transactions(store) => store.charge(charges).await,
        }
    }

    /// Like [`charge`](Self::charge), without the counters of the charges at the indices `absent`, which are those
    /// of a [`StoreError::Unreachable`]: their `on_store_failure` applies.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge_without(
        &self,
        charges: &[Charge],
        absent: &[usize],
        until: Instant,
    ) -> Result<Judgement, StoreError> {
        match self {
            Self::Redis(store) if !absent.is_empty() => {
                store.charge_without(charges, absent, until).await
            }
            Self::Redis(_) | Self::Memory(_) | Self::Transactions(_) => {
                self.charge(charges, until).await
            }
        }
    }

    /// Waits for work that goes on although its callers have gone, for some seconds at most. None may follow.
    pub async fn ended(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.ended().await,
            Self::Transactions(store) => store.ended().await,
        }
    }

    /// The state of one counter, reset with [`Clear::Yes`].
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

    /// The server that has a counter, in words, as far as is known.
    pub fn server_of(&self, counter: &Counter) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => store.server_of(counter),
            Self::Transactions(store) => store.server_of(counter),
        }
    }

    /// Finds the servers of the store, and follows their changes; never ends.
    pub async fn follow_servers(&self) {
        match self {
            Self::Memory(_) => pending().await,
            Self::Redis(store) => store.follow_servers().await,
            Self::Transactions(store) => store.follow_servers().await,
        }
    }

    /// Asks the servers of the store, again and again, how much memory and how many clients they have; never ends.
    pub async fn follow_usage(&self) {
        match self {
            Self::Memory(_) => pending().await,
            Self::Redis(store) => store.follow_usage().await,
            Self::Transactions(store) => store.follow_usage().await,
        }
    }

    /// What is known of each server of the store.
    pub fn servers(&self) -> Vec<ServerReport> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(store) => store.servers(),
            Self::Transactions(store) => store.servers(),
        }
    }

    /// Whether no server of the store is in an outage, as far as is known.
    pub fn is_up(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(store) => store.is_up(),
            Self::Transactions(store) => store.is_up(),
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
