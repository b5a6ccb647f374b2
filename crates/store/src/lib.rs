//! The stores of counters, in memory ([`memory`]) or in Redis ([`redis`]). A store takes the charges of one call and
//! answers with a tally for each; it makes all of them, or none. A [`guard`] bounds how long a call waits for that, and
//! answers it if the store fails.
//!
//! What it leaves to others: the verdict, which is the engine's, in Lua here as well; which rule makes a charge; and
//! where the servers are, which the settings say.

mod error;
pub mod fallback;
pub mod guard;
mod lateness;
pub mod memory;
pub mod metrics;
pub mod outage;
pub mod over_limit_cache;
mod read_turns;
mod reading;
pub mod redis;
pub mod report;
mod sync;

use tokio::time::Instant;
use tollkeeper_engine::{
    key::Counter,
    ledger::{Charge, CounterState, Verdict},
    time::Timestamp,
};

use self::read_turns::ReadTurns;
pub use self::{
    error::StoreError,
    reading::{Clear, CounterReading},
};
pub use tollkeeper_base::process::clock::{Clock, system_clock};

/// One of the stores, chosen by the settings.
#[derive(Debug)]
pub enum Store {
    Memory(memory::MemoryStore),
    Redis(redis::RedisStore),
}

/// A store that answers without waiting, at one time for all calls that are decided together.
#[derive(Clone, Copy)]
pub struct AtOnce<'store> {
    store: &'store memory::MemoryStore,
    now: Timestamp,
}

impl AtOnce<'_> {
    /// Makes all charges of one call, or none.
    pub fn charge(self, charges: &[Charge]) -> Verdict {
        if charges.is_empty() {
            Verdict::default()
        } else {
            self.store.charge_at(charges, self.now)
        }
    }
}

impl Store {
    /// The store, if it answers without waiting.
    pub fn at_once(&self) -> Option<AtOnce<'_>> {
        match self {
            Self::Memory(store) => Some(AtOnce { store, now: store.now() }),
            Self::Redis(_) => None,
        }
    }

    /// Makes all charges of one call, or none; its caller waits `until` then.
    pub async fn charge(&self, charges: &[Charge], until: Instant) -> Result<Verdict, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.charge(charges)),
            Self::Redis(store) => store.charge(charges, until).await,
        }
    }

    /// Keeps what must not be lost of charges that are not made now, until the store can make them.
    pub fn keep(&self, charges: &[Charge]) {
        if let Self::Redis(store) = self {
            store.keep(charges);
        }
    }

    /// Decides a call with hits that were charged in advance, if the store has them at hand; see [`redis::leases`].
    pub fn spend(&self, charges: &[Charge]) -> Option<Verdict> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => store.spend(charges),
        }
    }

    /// Like [`charge`](Self::charge), without the counters of the charges at the indices `absent`, which come from
    /// a [`StoreError::Unreachable`]: their `on_store_failure` applies.
    pub async fn charge_without(
        &self,
        charges: &[Charge],
        absent: &[usize],
        until: Instant,
    ) -> Result<Verdict, StoreError> {
        match self {
            Self::Redis(store) if !absent.is_empty() => {
                store.charge_without(charges, absent, until).await
            }
            Self::Redis(_) | Self::Memory(_) => self.charge(charges, until).await,
        }
    }

    /// The state of one counter, reset with [`Clear::Yes`].
    pub async fn read_counter(
        &self,
        counter: &Counter,
        clear: Clear,
    ) -> Result<CounterState, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.read_counter(counter, clear)),
            Self::Redis(store) => store.read_counter(counter, clear).await,
        }
    }

    /// Shows the keys of the counters of a domain, in the form of a key, and perhaps others, as long as `found` wants more.
    /// Returns whether these are all.
    pub(crate) async fn keys(
        &self,
        domain_part: &str,
        found: &mut (dyn FnMut(&str) -> bool + Send),
        turns: &ReadTurns,
        until: Instant,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.keys(found)),
            Self::Redis(store) => store.keys(domain_part, found, turns, until).await,
        }
    }

    pub const fn servers(&self) -> Option<&redis::RedisStore> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(store),
        }
    }
}
