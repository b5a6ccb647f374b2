//! One Redis server that has counters: the link to it, and the calls that wait for it.
//!
//! The link has connections (`pool`), what is known of the server (`server_state`: `breaker`, `probe`, `server_checks`)
//! and its `clock`. Calls that wait for it (`batcher`) are sent together (`batch`); debits that could not be sent are
//! kept (`unsent`), as the value decides that owns them (`owed`). Which server a call belongs to is left to `topology`.

pub(super) mod batch;
pub(super) mod batcher;
pub(super) mod breaker;
pub(super) mod clock;
pub(super) mod decided;
pub(super) mod link;
pub(super) mod owed;
pub(super) mod pool;
pub(super) mod probe;
pub(super) mod server_checks;
pub(super) mod server_state;
pub mod unsent;

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use tollkeeper_base::process::clock::Clock;

use self::{
    batch::Runs,
    batcher::Batcher,
    link::Link,
    pool::{Pool, PoolOptions},
    probe::ProbeWrite,
    server_checks::Checks,
    server_state::ServerState,
    unsent::Unsent,
};
use super::wire::{
    endpoint::Server,
    server_info::{Expected, ServerMode},
};
use crate::{metrics::StoreMetrics, outage::Outage, report::ServerReport};

/// What all nodes of a store have in common.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// What each must be.
    pub expected: Expected,
    /// Maximum number of connections to each, at least 1.
    pub connections_max: u32,
    /// Number of workers. Each keeps connections of its own if there are enough.
    pub workers: usize,
    /// How long a server may take for an answer.
    pub timeout: Duration,
    /// Our clock, from which Redis's is guessed.
    pub clock: Clock,
    pub metrics: StoreMetrics,
    /// What the keys of counters begin with.
    pub key_prefix: String,
    /// Number of replicas that charges are expected on; those that are not there soon are counted. 0 is off.
    pub wait_replicas: u32,
    /// Debits and refunds that could not be sent.
    pub unsent: Arc<Unsent>,
}

#[derive(Debug)]
pub(crate) struct RedisNode {
    pub(super) server: Server,
    pub(super) link: Link,
    pub(super) batcher: Batcher,
}

impl RedisNode {
    /// A node that connects when it is first used. It notifies `search_due` when it fails.
    pub(super) fn new(options: &NodeOptions, server: Server, search_due: Arc<Notify>) -> Self {
        let outage = Outage::at(&server.address);
        let runs = match options.expected {
            Expected { runs_scripts: false, .. } => Runs::Transactions,
            Expected { mode: ServerMode::Single, .. } => Runs::Single,
            // Until it is known to take node-wide runs.
            Expected { mode: ServerMode::Cluster, .. } => Runs::PerSlot,
        };
        let metrics = options.metrics.clone();
        let checks =
            Checks::new(server.clone(), options.expected, &options.key_prefix, metrics.clone());
        let pool = PoolOptions {
            server: server.clone(),
            checks: Arc::new(checks),
            connections_max: options.connections_max,
            workers: options.workers,
            timeout: options.timeout,
            outage: outage.clone(),
        };
        let pool = Pool::new(pool, metrics.clone());
        let probe = ProbeWrite::new(options.expected.runs_scripts, &options.key_prefix);
        let state = ServerState::new(pool, outage, search_due, metrics.clone(), probe);
        let link = Link::new(state, options.clock, metrics);
        let key_prefix = options.key_prefix.clone();
        let batcher = Batcher::new(link.clone(), runs, options.wait_replicas, key_prefix);
        Self { server, link, batcher }
    }

    pub(super) fn report(&self) -> ServerReport {
        let queued = self.batcher.queued();
        ServerReport {
            address: self.server.address.to_string(),
            queued: u64::try_from(queued).unwrap_or(u64::MAX),
            clock_offset_ms: self.link.clock.offset_ms(),
            ..self.link.state.pool.report()
        }
    }
}
