//! The stores of counters. A store takes the charges of one call and answers with a tally for each;
//! it makes all of them, or none.

mod error;
pub mod fallback;
pub mod guard;
mod lateness;
pub mod memory;
pub mod outage;
pub mod over_limit_cache;
mod reading;
pub mod redis;

use std::future::pending;

use tokio::time::Instant;

pub use self::{
    error::StoreError,
    reading::{Clear, CounterReading},
};
/// The clock that a store is given.
pub use crate::process::clock::{Clock, system_clock};
use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, CounterState, Judgement},
    },
    telemetry::ServerReport,
};

/// One of the stores, chosen by the settings.
#[derive(Debug)]
pub enum Store {
    /// Counters in this process.
    Memory(memory::MemoryStore),
    /// Counters in Redis, shared by all replicas.
    Redis(redis::RedisStore),
}

impl Store {
    /// Like [`charge`](Self::charge) if the store answers without waiting; else `None`.
    pub fn charge_at_once(&self, charges: &[Charge]) -> Option<Judgement> {
        match self {
            Self::Memory(store) => Some(store.charge(charges)),
            Self::Redis(_) => None,
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
            Self::Redis(_) | Self::Memory(_) => self.charge(charges, until).await,
        }
    }

    /// Waits for work that goes on although its callers have gone, for some seconds at most. None may follow.
    pub async fn ended(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.ended().await,
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
        }
    }

    /// The server that has a counter, in words, as far as is known.
    pub fn server_of(&self, counter: &Counter) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => store.server_of(counter),
        }
    }

    /// Finds the servers of the store, and follows their changes; never ends.
    pub async fn follow_servers(&self) {
        match self {
            Self::Memory(_) => pending().await,
            Self::Redis(store) => store.follow_servers().await,
        }
    }

    /// Asks the servers of the store, again and again, how much memory and how many clients they have; never ends.
    pub async fn follow_usage(&self) {
        match self {
            Self::Memory(_) => pending().await,
            Self::Redis(store) => store.follow_usage().await,
        }
    }

    /// What is known of each server of the store.
    pub fn servers(&self) -> Vec<ServerReport> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(store) => store.servers(),
        }
    }

    /// Whether no server of the store is in an outage, as far as is known.
    pub fn is_up(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(store) => store.is_up(),
        }
    }

    /// Waits for the store's first answer.
    pub async fn reached(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.reached().await,
        }
    }
}
