//! Which nodes there are.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::task::TaskTracker;
use tollkeeper_engine::{key::Counter, time::Timestamp};

use super::map::{NodeAt, NodeMap, SlotRange};
use crate::{
    StoreError,
    outage::Outage,
    redis::{
        node::{
            NodeOptions, RedisNode, batch::Runs, batcher::QueuedCall, decided::NotDecided,
            owed::Owed,
        },
        script::work::NodeWork,
        wire::{endpoint::Server, hash_slot::HashSlot, server_info::ServerMode},
    },
};

/// The nodes of a store. Every call reads which they are. A task replaces them, and a call that is redirected adds one or
/// moves a hash slot.
pub(crate) struct Directory {
    pub(crate) options: NodeOptions,
    current: ArcSwap<NodeMap>,
    /// Held during a change.
    change: Mutex<()>,
    /// Why nodes could not be found; empty after a search that found them.
    problem: Mutex<String>,
    outage: Outage,
    /// The server to which a hash slot has moved: it knows that before others do.
    moved_to: Mutex<Option<Server>>,
    /// Whether nodes were searched once, with or without success.
    searched: watch::Sender<bool>,
    /// Work that goes on although its caller has gone.
    pub(crate) outliving: TaskTracker,
    /// One permit for each charge of lone work that may outlive its caller.
    pub(super) outliving_charges: Arc<Semaphore>,
    /// Is notified when the nodes may have changed.
    pub(crate) search_due: Arc<Notify>,
}

/// Why a cluster serves no key, by what its nodes answer.
pub(super) const DOWN: &str = "CLUSTERDOWN: its nodes consider the cluster down; with \
    cluster-require-full-coverage yes, one hash slot without a server is enough";

/// How many charges of lone work may outlive their callers, some 40 MiB. Further ones are kept.
const OUTLIVING_MAX: usize = 1 << 16;

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("nodes", &self.map().nodes()).finish_non_exhaustive()
    }
}

impl Directory {
    /// Without any node.
    pub(crate) fn new(options: NodeOptions) -> Self {
        let current = NodeMap::without_owners(options.expected.mode);
        Self {
            options,
            current: ArcSwap::from_pointee(current),
            change: Mutex::default(),
            problem: Mutex::default(),
            outage: Outage::default(),
            moved_to: Mutex::default(),
            searched: watch::Sender::default(),
            outliving: TaskTracker::new(),
            outliving_charges: Arc::new(Semaphore::new(OUTLIVING_MAX)),
            search_due: Arc::default(),
        }
    }

    /// Waits until nodes were searched once: the first calls after a start do not fail.
    pub(crate) async fn searched(&self) {
        if self.map().nodes().is_empty() {
            // The sender lives as long as this.
            drop(self.searched.subscribe().wait_for(|searched| *searched).await);
        }
    }

    pub(crate) fn map(&self) -> Arc<NodeMap> {
        self.current.load_full()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.options.expected.mode == ServerMode::Cluster
    }

    pub(crate) fn owner(&self, slot: HashSlot) -> Result<Arc<RedisNode>, StoreError> {
        self.map().owner(slot).cloned().ok_or_else(|| self.no_node())
    }

    /// The time by the clock of the server that does this work, if it is known.
    fn now(&self, work: &NodeWork) -> Option<Timestamp> {
        self.map().owner(work.slot()?)?.link.clock.known_now()
    }

    pub(crate) fn server_of(&self, counter: &Counter) -> Option<String> {
        let map = self.map();
        map.owner(HashSlot::of(counter)).map(|node| format!("Redis at {}", node.server.address))
    }

    /// The error of a call whose counters belong to an unknown node. Also requests a new search for nodes.
    pub(crate) fn no_node(&self) -> StoreError {
        let problem = self.problem.lock().clone();
        let error = StoreError::Unavailable(if problem.is_empty() {
            "no server of the cluster has the counter's hash slot".to_owned()
        } else {
            problem
        });
        self.outage.failed(&error);
        self.search_due.notify_one();
        error
    }

    /// Notes that a node considers the whole cluster down, until a map with an owner for each slot is read.
    pub(crate) fn report_down(&self) {
        self.outage.failed(&StoreError::Unavailable(DOWN.to_owned()));
    }

    /// Whether there are nodes, and none is known to be in an outage.
    pub(crate) fn is_up(&self) -> bool {
        let map = self.map();
        !map.nodes().is_empty() && map.nodes().iter().all(|node| node.link.state.is_up())
    }

    /// Notes why nodes cannot be found. It matters to calls only as long as they have no node.
    pub(crate) fn set_problem(&self, problem: String) {
        if self.is_cluster() && self.map().nodes().is_empty() {
            self.outage.failed(&StoreError::Unavailable(problem.clone()));
        }
        *self.problem.lock() = problem;
        self.searched.send_replace(true);
    }

    /// Makes `server` the only node. Calls that wait for others move to it. Returns a future that ends once
    /// nothing is under way to the nodes that have left.
    pub(crate) fn replace_only(&self, server: &Server) -> impl Future<Output = ()> + Send + use<> {
        self.replace(&|node_at| NodeMap::of_one(node_at(server)))
    }

    /// Makes these servers the nodes of a cluster. Calls that wait for nodes that have left move. Returns a future
    /// that ends once nothing is under way to those.
    pub(crate) fn replace_cluster(
        &self,
        ranges: &[SlotRange],
    ) -> impl Future<Output = ()> + Send + use<> {
        self.replace(&|node_at| NodeMap::of_cluster(ranges, node_at))
    }

    /// The node at this address. It enters the map if it is new there. If a hash slot has `moved`, the node owns it from now on.
    pub(crate) fn node_at(&self, server: &Server, moved: Option<HashSlot>) -> Arc<RedisNode> {
        let _change = self.change.lock();
        let map = self.map();
        let known = map.find(&server.address).cloned();
        if let (Some(node), None) = (&known, moved) {
            return Arc::clone(node);
        }
        let node = known.unwrap_or_else(|| self.new_node(map.announced(server)));
        self.current.store(Arc::new(map.with(Arc::clone(&node), moved)));
        if moved.is_some() {
            *self.moved_to.lock() = Some(node.server.clone());
        }
        node
    }

    /// The server to which a hash slot has moved since the last call of this function.
    pub(crate) fn take_moved_to(&self) -> Option<Server> {
        self.moved_to.lock().take()
    }

    fn replace(
        &self,
        next: &dyn Fn(&NodeAt<'_>) -> NodeMap,
    ) -> impl Future<Output = ()> + Send + use<> {
        let retired = {
            let _change = self.change.lock();
            let old = self.map();
            let known = |server: &Server| match old.find(&server.address) {
                Some(node) if node.server.is_entered_like(server) => Arc::clone(node),
                _ => self.new_node(server),
            };
            let new = Arc::new(next(&known));
            new.aim_probes();
            self.current.store(Arc::clone(&new));
            let retired: Vec<_> =
                old.nodes().iter().filter(|node| !new.has(node)).cloned().collect();
            retired
        };
        self.problem.lock().clear();
        self.searched.send_replace(true);
        if self.map().is_complete() {
            self.outage.ended();
        }
        for node in &retired {
            for call in node.batcher.close() {
                self.take_over(call);
            }
        }
        async move {
            for node in retired {
                node.batcher.ended().await;
                node.link.state.leave().await;
            }
        }
    }

    /// Gives a call whose node has left to the one that has its counters now.
    fn take_over(&self, mut call: QueuedCall) {
        // This thread hands out the answer: a dispatcher of the call's own thread can be started only there.
        call.caller.mailbox = 0;
        let is_in_one_slot = call.owed.work.is_in_one_slot();
        // A new node may not be known yet to take several slots at once: then the caller sends each alone.
        let takes_it =
            |node: &&Arc<RedisNode>| is_in_one_slot || node.batcher.runs() != Runs::PerSlot;
        let node = self.map().owner_of_all(call.owed.work.counters()).filter(takes_it).cloned();
        let unsent = match node {
            Some(node) => node.batcher.enqueue(call).err(),
            None => Some(call),
        };
        if let Some(QueuedCall { caller, owed, .. }) = unsent {
            drop(caller.answer.send(Err(NotDecided::Elsewhere(None, owed))));
        }
    }

    /// Work that arrives now. What must not be lost of it is kept if it is dropped unsettled.
    pub(crate) fn owe(&self, work: NodeWork) -> Owed {
        Owed::new(work, &self.options.unsent, |work| self.now(work))
    }

    fn new_node(&self, server: &Server) -> Arc<RedisNode> {
        Arc::new(RedisNode::new(&self.options, server.clone(), Arc::clone(&self.search_due)))
    }
}
