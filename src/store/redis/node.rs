//! One Redis server that has counters: the link to it, and the calls that wait for it.

use std::sync::Arc;

use super::{
    batch::Runs,
    batcher::Batcher,
    link::Link,
    pool::{Pool, PoolOptions},
    script::Scripts,
    server::{Address, Server},
};
use crate::{
    store::{Clock, outage::Outage},
    telemetry::StoreMetrics,
};

/// What all nodes of a store have in common.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// How many connections each may have, and how long calls wait.
    pub pool: PoolOptions,
    /// Our clock, from which Redis's is guessed.
    pub clock: Clock,
    /// The metrics of the store.
    pub metrics: StoreMetrics,
    /// The scripts.
    pub scripts: Arc<Scripts>,
}

/// One Redis server.
#[derive(Debug)]
pub(super) struct RedisNode {
    pub(super) server: Server,
    pub(super) link: Link,
    pub(super) batcher: Batcher,
}

impl RedisNode {
    /// A node that connects when it is first asked. `runs` may change on a cluster, see
    /// [`Batcher::set_runs`].
    pub(super) fn new(options: &NodeOptions, server: Server, runs: Runs) -> Self {
        let outage = match runs {
            Runs::Single => Outage::default(),
            Runs::NodeWide | Runs::PerSlot => Outage::of(&server.address),
        };
        let metrics = options.metrics.clone();
        let pool = Pool::new(&options.pool, server.clone(), outage.clone(), metrics.clone());
        let link = Link::new(pool, options.clock, outage, metrics);
        let batcher = Batcher::new(link.clone(), Arc::clone(&options.scripts), runs);
        Self { server, link, batcher }
    }

    pub(super) const fn address(&self) -> &Address {
        &self.server.address
    }
}
