//! The servers of a store, and how they are found.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::time;

use super::{
    Topology, cluster,
    sentinel::{self, Monitored},
};
use crate::store::{
    redis::{
        node::{NodeOptions, unsent::Resend},
        wire::endpoint::Server,
    },
    report::ServerReport,
};

/// How often a store is tried that is absent at the start.
const REACH_EVERY: Duration = Duration::from_millis(250);

/// How long what was kept may take to be sent when the service stops.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// How often servers are asked how much memory and how many clients they have.
const USAGE_EVERY: Duration = Duration::from_secs(10);

/// How the servers with counters are found.
#[derive(Debug)]
pub enum Finder {
    /// There is one.
    Given(Server),
    /// Sentinels name it.
    Sentinel(Monitored),
    /// These, and the others that they name, are nodes of a cluster.
    Cluster(Vec<Server>),
}

/// The servers of a store.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) topology: Arc<Topology>,
    finder: Finder,
}

impl Servers {
    pub(crate) fn new(options: NodeOptions, finder: Finder) -> Self {
        let topology = Topology::new(options);
        if let Finder::Given(server) = &finder {
            drop(topology.node_at(server));
        }
        Self { topology: Arc::new(topology), finder }
    }

    /// Finds the servers, and follows their changes; never ends.
    pub(crate) async fn follow(&self) {
        match &self.finder {
            Finder::Given(_) => pending().await,
            Finder::Sentinel(monitored) => sentinel::follow(&self.topology, monitored).await,
            Finder::Cluster(seeds) => cluster::follow(&self.topology, seeds).await,
        }
    }

    /// Asks each server that answers how much memory and how many clients it has; never ends.
    pub(crate) async fn follow_usage(&self) {
        loop {
            time::sleep(USAGE_EVERY).await;
            for node in self.topology.map().nodes() {
                if node.link.state.is_up() {
                    node.link.state.pool.learn_usage().await;
                }
            }
        }
    }

    /// Waits for work that goes on although its callers have gone, and sends what was kept, for a second at most each.
    pub(crate) async fn ended(&self, sender: &impl Resend) {
        self.topology.outliving.close();
        self.topology.outliving.wait().await;
        self.topology.options.unsent.end(ENDS_WITHIN, sender).await;
    }

    /// What is known of each server.
    pub(crate) fn reports(&self) -> Vec<ServerReport> {
        self.topology.map().nodes().iter().map(|node| node.report()).collect()
    }

    /// Waits until a server has answered once.
    pub(crate) async fn reached(&self) {
        loop {
            for node in self.topology.map().nodes() {
                // Opening the connection goes on.
                let reached = time::timeout(REACH_EVERY, node.link.state.is_reached()).await;
                if reached.unwrap_or(false) {
                    return;
                }
            }
            time::sleep(REACH_EVERY).await;
        }
    }
}
