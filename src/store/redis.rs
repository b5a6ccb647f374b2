//! Counters in Redis, shared by all replicas. Redis's own clock decides which window is the present one.

mod batch;
mod batcher;
mod clock;
pub mod connection;
pub mod node;
pub mod pool;
mod resp;
pub mod script;
pub mod server;
pub mod server_info;
mod transactions;

use std::sync::Arc;

pub use self::transactions::TransactionStore;
use self::{
    batcher::Batcher,
    node::RedisNode,
    script::{Scripts, counter::ScriptLook},
};
use super::{Clear, StoreError};
use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, CounterState, Judgement},
    },
    telemetry::{in_span, store_span},
};

/// Counters in a Redis that runs scripts: waiting calls are decided in batches.
#[derive(Debug)]
pub struct RedisStore {
    node: RedisNode,
    scripts: Arc<Scripts>,
    batcher: Batcher,
}

impl RedisStore {
    /// A store on `node`. It connects when it is first asked.
    pub fn new(node: RedisNode, scripts: Scripts) -> Self {
        let scripts = Arc::new(scripts);
        let batcher = Batcher::new(node.clone(), Arc::clone(&scripts));
        Self { node, scripts, batcher }
    }

    /// Makes all charges of one call, or none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge(&self, charges: &[Charge]) -> Result<Judgement, StoreError> {
        if charges.is_empty() {
            return Ok(Judgement::default());
        }
        let span = store_span("EVALSHA");
        if span.is_disabled() {
            return self.batcher.charge(charges).await;
        }
        Box::pin(in_span(span, self.batcher.charge(charges))).await
    }

    /// The state of one counter; `clear` resets it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn look(&self, counter: &Counter, clear: Clear) -> Result<CounterState, StoreError> {
        self.node.ask(ScriptLook { scripts: &self.scripts, counter, clear }).await
    }

    /// Waits until Redis has answered once.
    pub async fn reached(&self) {
        self.node.reached().await;
    }
}
