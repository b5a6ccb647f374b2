//! Counters in Redis, shared by all replicas. Redis's own clock decides which window is the present one.
//!
//! Five rooms, each of which uses only those before it: `wire` (connections, bytes, what a server says of itself),
//! `script` (work as arguments of Lua scripts, and their replies), `node` (one server: its state, and the calls that
//! wait for it), `topology` (which server has a counter), `transactions` (a store that runs no scripts).

pub mod node;
pub mod script;
pub mod topology;
mod transactions;
pub mod wire;

use tokio::time::Instant;

pub use self::transactions::TransactionStore;
use self::{
    node::{NodeOptions, link::Unanswered, unsent::Resend},
    script::{counter::ScriptLook, work::NodeWork},
    topology::discovery::{Finder, Servers},
    wire::hash_slot::HashSlot,
};
use super::{Clear, StoreError, report::ServerReport};
use crate::engine::{
    key::Counter,
    ledger::{Charge, CounterState, Judgement},
    time::Timestamp,
};

/// Counters in Redis servers that run scripts: waiting calls are decided in batches.
#[derive(Debug)]
pub struct RedisStore(Servers);

impl RedisStore {
    /// A store on the servers that `finder` finds. It connects when it is first asked, and a cluster or Sentinels
    /// must be [followed](Self::follow_servers).
    pub fn new(options: NodeOptions, finder: Finder) -> Self {
        Self(Servers::new(options, finder))
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
        if charges.is_empty() {
            return Ok(Judgement::default());
        }
        self.0.topology.charge(charges, until).await
    }

    /// Like [`charge`](Self::charge), without the counters of the charges at the indices `absent`: their
    /// `on_store_failure` applies.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge_without(
        &self,
        charges: &[Charge],
        absent: &[usize],
        until: Instant,
    ) -> Result<Judgement, StoreError> {
        self.0.topology.charge_without(charges, absent, until).await
    }

    /// The state of one counter; `clear` resets it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn look(&self, counter: &Counter, clear: Clear) -> Result<CounterState, StoreError> {
        let topology = &self.0.topology;
        let scripts = &topology.options.scripts;
        let look = |keys| ScriptLook { scripts, counter, clear, keys };
        Ok(topology.ask(HashSlot::of(counter), None, look).await?.answer)
    }

    /// The server that has a counter, in words, as far as is known.
    pub fn server_of(&self, counter: &Counter) -> Option<String> {
        self.0.topology.server_of(counter)
    }

    /// Finds the servers, and follows their changes; never ends.
    pub async fn follow_servers(&self) {
        tokio::join!(self.0.follow(), self.0.topology.options.unsent.follow(self));
    }

    /// Asks the servers, again and again, how much memory and how many clients they have; never ends.
    pub async fn follow_usage(&self) {
        self.0.follow_usage().await;
    }

    /// What is known of each server.
    pub fn servers(&self) -> Vec<ServerReport> {
        self.0.reports()
    }

    /// Waits for work that goes on although its callers have gone, at most two seconds. None may follow.
    pub async fn ended(&self) {
        self.0.ended(self).await;
    }

    /// Whether no server is in an outage, as far as is known.
    pub fn is_up(&self) -> bool {
        self.0.topology.is_up()
    }

    /// Waits until each server has answered once.
    pub async fn reached(&self) {
        self.0.reached().await;
    }
}

impl Resend for RedisStore {
    async fn send(&self, work: &NodeWork, made: Timestamp) -> Result<(), Unanswered> {
        let Some(slot) = work.slot() else { return Ok(()) };
        self.0.topology.do_alone(slot, work, Some(made)).await.map(drop)
    }
}
