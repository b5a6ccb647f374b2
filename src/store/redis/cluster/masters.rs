//! The masters of a cluster. Their replication offsets are read each second, from which the loss by a failover is
//! estimated.

use std::{mem, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time;

use crate::store::redis::{
    failover::{self, MasterWatch, Replication},
    node::RedisNode,
    topology::NodeMap,
};

/// How often the masters are asked.
const EVERY: Duration = Duration::from_secs(1);

/// The masters that the last map named.
#[derive(Default)]
pub(super) struct Masters(Vec<WatchedMaster>);

struct WatchedMaster {
    node: Arc<RedisNode>,
    watch: MasterWatch,
}

impl WatchedMaster {
    fn new(node: Arc<RedisNode>) -> Self {
        Self { watch: MasterWatch::new(node.server.clone()), node }
    }

    /// How far its stream is, which is noted.
    async fn note(&mut self) -> Option<Replication> {
        let replication = self.watch.ask().await.ok();
        self.watch.note(replication.as_ref(), self.node.link.acknowledged());
        replication
    }
}

impl Masters {
    /// Reads how far the streams are; never ends.
    pub(super) async fn note(&mut self) {
        loop {
            time::sleep(EVERY).await;
            join_all(self.0.iter_mut().map(WatchedMaster::note)).await;
        }
    }

    /// Takes the masters of a new map, and reports those that have replaced one of the last map. No call may be under
    /// way to those that have left.
    pub(super) async fn replace(&mut self, map: &NodeMap) {
        let (stay, mut left): (Vec<_>, Vec<_>) =
            mem::take(&mut self.0).into_iter().partition(|master| map.has(&master.node));
        self.0 = stay;
        for node in map.nodes() {
            if self.0.iter().any(|known| Arc::ptr_eq(&known.node, node)) {
                continue;
            }
            let mut next = WatchedMaster::new(Arc::clone(node));
            if let Some(replication) = next.note().await {
                report(&mut left, node, &replication).await;
            }
            self.0.push(next);
        }
    }
}

/// Logs and counts the loss by a failover, if `next` has replaced one of the masters that have left.
async fn report(left: &mut [WatchedMaster], next: &RedisNode, replication: &Replication) {
    for old in left {
        let cost = old.watch.cost(old.node.link.acknowledged(), replication).await;
        if cost.is_some() {
            let (from, to) = (&old.node.server.address, &next.server.address);
            tracing::warn!("failover from {from} to {to}: {}", failover::in_words(cost));
            next.link.metrics.failed_over(cost.map_or(0, |cost| cost.charges));
            return;
        }
    }
}
