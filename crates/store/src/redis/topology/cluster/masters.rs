//! The masters of a cluster. Their replication offsets are read each second, from which the loss by a failover is
//! estimated.

use std::{mem, sync::Arc, time::Duration};

use futures_util::future::{join, join_all};
use tokio::time::{self, Instant};

use crate::redis::{
    node::RedisNode,
    topology::{
        failover::{self, MasterWatch, Replication},
        map::NodeMap,
    },
};

/// How often the masters are queried.
const EVERY: Duration = Duration::from_secs(1);

pub(super) struct Masters {
    watched: Vec<WatchedMaster>,
    due: Instant,
}

struct WatchedMaster {
    node: Arc<RedisNode>,
    watch: MasterWatch,
}

impl WatchedMaster {
    fn new(node: &Arc<RedisNode>) -> Self {
        Self { watch: MasterWatch::new(node.server.clone()), node: Arc::clone(node) }
    }

    /// How far its stream is, which is noted.
    async fn note(&mut self) {
        let replication = self.watch.ask().await.ok();
        self.watch.note(replication.as_ref(), self.node.link.acknowledged());
    }

    async fn replication(mut self) -> Option<(Self, Replication)> {
        let replication = self.watch.ask().await.ok()?;
        Some((self, replication))
    }
}

impl Masters {
    pub(super) fn new() -> Self {
        Self { watched: Vec::new(), due: Instant::now() }
    }

    /// Reads how far the streams are; never ends.
    pub(super) async fn note(&mut self) {
        loop {
            time::sleep_until(self.due).await;
            join_all(self.watched.iter_mut().map(WatchedMaster::note)).await;
            self.due = Instant::now() + EVERY;
        }
    }

    /// Takes the masters of a new map. Returns what reports those that have replaced one of the last map, once no call is
    /// under way to the old one.
    pub(super) fn replace(&mut self, map: &NodeMap) -> impl Future<Output = ()> + Send + use<> {
        let (stay, retired): (Vec<_>, Vec<_>) =
            mem::take(&mut self.watched).into_iter().partition(|master| map.has(&master.node));
        self.watched = stay;
        let mut new = Vec::new();
        for node in map.nodes() {
            if !self.watched.iter().any(|known| Arc::ptr_eq(&known.node, node)) {
                self.watched.push(WatchedMaster::new(node));
                self.due = Instant::now();
                new.push(WatchedMaster::new(node));
            }
        }
        report(retired, new)
    }
}

/// Logs and counts the loss by each failover from a master that has left to a new one.
async fn report(mut retired: Vec<WatchedMaster>, new: Vec<WatchedMaster>) {
    if retired.is_empty() {
        return;
    }
    let ends = retired.iter_mut().map(|old| old.watch.note_end(old.node.link.acknowledged()));
    let asked = new.into_iter().map(WatchedMaster::replication);
    let (_, new) = join(join_all(ends), join_all(asked)).await;
    for (next, replication) in new.into_iter().flatten() {
        let mut costs = retired
            .iter()
            .map(|old| (old, old.watch.cost(old.node.link.acknowledged(), &replication)));
        if let Some((old, Some(cost))) = costs.find(|(_, cost)| cost.is_some()) {
            let (from, to) = (&old.node.server.address, &next.node.server.address);
            let text = format!("failover from {from} to {to}");
            failover::report(&text, Some(cost), &next.node.link.metrics);
        }
    }
}
