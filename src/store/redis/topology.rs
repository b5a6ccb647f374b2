//! Which server has which counters. A single server, and the one that Sentinels name, have all of them; on a
//! cluster each server has those of some hash slots.
//!
//! The servers are found (`discovery`, `sentinel`, `cluster`), the loss of a `failover` is estimated, and calls are led
//! to their servers (`route`), in parts if several have their counters (`reservation`), alone if a hash slot has moved
//! (`redirect`).

pub(super) mod cluster;
pub mod discovery;
pub(super) mod failover;
pub(super) mod redirect;
pub(super) mod reservation;
pub(super) mod route;
pub mod sentinel;
pub(super) mod wrong_modes;

use std::{collections::HashMap, fmt, ops::RangeInclusive, sync::Arc};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use super::{
    node::{NodeOptions, RedisNode, batch::Runs, batcher::QueuedCall, decided::NotDecided},
    script::work::NodeWork,
    wire::{
        endpoint::{Address, Server},
        hash_slot::HashSlot,
        server_info::ServerMode,
    },
};
use crate::{
    engine::{key::Counter, time::Timestamp},
    store::{StoreError, outage::Outage},
};

/// The nodes of a store. Every call reads which they are; one task replaces them.
pub(crate) struct Topology {
    pub(super) options: NodeOptions,
    current: ArcSwap<NodeMap>,
    /// Held during a change.
    change: Mutex<()>,
    /// Why there is no node, and whether that has been logged.
    problem: Mutex<String>,
    outage: Outage,
    /// The server to which a hash slot has moved: it knows that before others do.
    moved_to: Mutex<Option<Server>>,
    /// Whether nodes were searched once, with or without success.
    searched: watch::Sender<bool>,
    /// Work that goes on although its caller has gone.
    pub(super) outliving: TaskTracker,
    /// Is notified when the nodes may have changed.
    pub(super) search_due: Arc<Notify>,
}

/// The nodes at one time.
#[derive(Debug, Clone)]
pub(crate) struct NodeMap {
    nodes: Vec<Arc<RedisNode>>,
    /// By hash slot: an index into the nodes, or [`NO_OWNER`]. Empty if the first node has all counters.
    owners: Vec<u16>,
    /// Masters and replicas as the map of a cluster named them. A redirection says an address only.
    announced: HashMap<Address, Server>,
}

/// The owner of a hash slot that no node has.
const NO_OWNER: u16 = u16::MAX;

/// Why a cluster serves no key, by what its nodes answer.
pub(super) const DOWN: &str = "CLUSTERDOWN: its nodes consider the cluster down; with \
    cluster-require-full-coverage yes, one hash slot without a server is enough";

/// Hash slots, from the first to the last, and the server that has them.
#[derive(Debug, Clone)]
pub(crate) struct SlotRange {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) server: Server,
    pub(super) replicas: Vec<Server>,
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology").field("nodes", &self.map().nodes).finish_non_exhaustive()
    }
}

impl Topology {
    /// Without any node.
    pub(super) fn new(options: NodeOptions) -> Self {
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
            search_due: Arc::default(),
        }
    }

    /// Waits until nodes were searched once: the first calls after a start do not fail.
    pub(super) async fn searched(&self) {
        if self.map().nodes.is_empty() {
            // The sender lives as long as this.
            drop(self.searched.subscribe().wait_for(|searched| *searched).await);
        }
    }

    /// The present nodes.
    pub(super) fn map(&self) -> Arc<NodeMap> {
        self.current.load_full()
    }

    /// Whether counters are distributed over several servers.
    pub(super) fn is_cluster(&self) -> bool {
        self.options.expected.mode == ServerMode::Cluster
    }

    /// The node that has the counters of a hash slot.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn owner(&self, slot: HashSlot) -> Result<Arc<RedisNode>, StoreError> {
        self.map().owner(slot).cloned().ok_or_else(|| self.no_node())
    }

    /// The time by the clock of the server that does this work; without a server, by our own.
    pub(super) fn now(&self, work: &NodeWork) -> Timestamp {
        let map = self.map();
        let node = work.slot().and_then(|slot| map.owner(slot));
        node.map_or_else(self.options.clock, |node| node.link.clock.now())
    }

    /// The server that has a counter.
    pub(super) fn server_of(&self, counter: &Counter) -> Option<String> {
        let map = self.map();
        map.owner(HashSlot::of(counter)).map(|node| format!("Redis at {}", node.server.address))
    }

    /// The error of a call for whose counters there is no node. Asks for the nodes to be searched.
    pub(super) fn no_node(&self) -> StoreError {
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
    pub(super) fn is_down(&self) {
        self.outage.failed(&StoreError::Unavailable(DOWN.to_owned()));
    }

    /// Whether there are nodes, and none is known to be in an outage.
    pub(super) fn is_up(&self) -> bool {
        let map = self.map();
        !map.nodes.is_empty() && map.nodes.iter().all(|node| node.link.state.is_up())
    }

    /// Notes why nodes cannot be found. It matters to calls only as long as they have no node.
    pub(super) fn set_problem(&self, problem: String) {
        if self.is_cluster() && self.map().nodes.is_empty() {
            self.outage.failed(&StoreError::Unavailable(problem.clone()));
        }
        *self.problem.lock() = problem;
        self.searched.send_replace(true);
    }

    /// Makes `server` the only node. Calls that wait for others move to it.
    pub(super) async fn replace_only(&self, server: Server) {
        self.replace(|node_at| NodeMap {
            nodes: vec![node_at(&server)],
            ..NodeMap::without_owners(ServerMode::Single)
        })
        .await;
    }

    /// Makes these servers the nodes of a cluster. Calls that wait for nodes that are left move.
    pub(super) async fn replace_cluster(&self, ranges: &[SlotRange]) {
        self.replace(|node_at| {
            let mut map = NodeMap::without_owners(ServerMode::Cluster);
            for SlotRange { slots, server, replicas } in ranges {
                let owner = map.index_of(node_at(server));
                for server in replicas.iter().chain([server]) {
                    map.announced.insert(server.address.clone(), server.clone());
                }
                for slot in slots.clone() {
                    map.set_owner(slot, owner);
                }
            }
            map
        })
        .await;
    }

    /// The node at this address. One that is not known becomes a node without hash slots.
    pub(super) fn node_at(&self, server: &Server) -> Arc<RedisNode> {
        let _change = self.change.lock();
        let map = self.map();
        if let Some(node) = map.find(&server.address) {
            return Arc::clone(node);
        }
        let node = self.new_node(map.announced.get(&server.address).unwrap_or(server));
        let mut map = NodeMap::clone(&map);
        map.nodes.push(Arc::clone(&node));
        self.current.store(Arc::new(map));
        node
    }

    /// Notes that a hash slot has moved to this node.
    pub(super) fn move_slot(&self, slot: HashSlot, node: &Arc<RedisNode>) {
        let _change = self.change.lock();
        let mut map = NodeMap::clone(&self.map());
        let owner = map.index_of(Arc::clone(node));
        map.set_owner(slot.number(), owner);
        self.current.store(Arc::new(map));
        *self.moved_to.lock() = Some(node.server.clone());
    }

    /// The server to which a hash slot has moved since this was asked last.
    pub(super) fn take_moved_to(&self) -> Option<Server> {
        self.moved_to.lock().take()
    }

    async fn replace(&self, next: impl FnOnce(&dyn Fn(&Server) -> Arc<RedisNode>) -> NodeMap) {
        let left = {
            let _change = self.change.lock();
            let old = self.map();
            let known = |server: &Server| match old.find(&server.address) {
                Some(node) if node.server.is_entered_like(server) => Arc::clone(node),
                _ => self.new_node(server),
            };
            let new = Arc::new(next(&known));
            new.aim_probes();
            self.current.store(Arc::clone(&new));
            let left: Vec<_> = old.nodes.iter().filter(|node| !new.has(node)).cloned().collect();
            left
        };
        self.problem.lock().clear();
        self.searched.send_replace(true);
        if self.map().is_complete() {
            self.outage.ended();
        }
        for node in &left {
            for call in node.batcher.close() {
                self.take_over(call);
            }
        }
        for node in left {
            node.batcher.ended().await;
            node.link.state.leave().await;
        }
    }

    /// Gives a call whose node has left to the one that has its counters now.
    fn take_over(&self, mut call: QueuedCall) {
        // This thread hands out the answer: a dispatcher of the call's own thread can be started only there.
        call.mailbox = 0;
        let is_in_one_slot = call.work.is_in_one_slot();
        // A new node may not be known yet to take several slots at once: then the caller asks for each by itself.
        let takes_it =
            |node: &&Arc<RedisNode>| is_in_one_slot || node.batcher.runs() != Runs::PerSlot;
        let node = self.map().owner_of_all(call.work.counters()).filter(takes_it).cloned();
        let left = match node {
            Some(node) => node.batcher.enqueue(call).err(),
            None => Some(call),
        };
        if let Some(call) = left
            && call.answer.send(Err(NotDecided::Elsewhere(None))).is_err()
        {
            self.keep(call.work);
        }
    }

    /// Keeps work that was not sent.
    pub(super) fn keep(&self, work: NodeWork) {
        let made = self.now(&work);
        self.options.unsent.keep(work, made);
    }

    fn new_node(&self, server: &Server) -> Arc<RedisNode> {
        Arc::new(RedisNode::new(&self.options, server.clone(), Arc::clone(&self.search_due)))
    }
}

impl NodeMap {
    fn without_owners(mode: ServerMode) -> Self {
        let slots = match mode {
            ServerMode::Single => 0,
            ServerMode::Cluster => usize::from(HashSlot::COUNT),
        };
        Self { nodes: Vec::new(), owners: vec![NO_OWNER; slots], announced: HashMap::new() }
    }

    /// All nodes.
    pub(super) fn nodes(&self) -> &[Arc<RedisNode>] {
        &self.nodes
    }

    /// Whether each counter has a node.
    fn is_complete(&self) -> bool {
        !self.owners.contains(&NO_OWNER)
    }

    /// Whether this is one of the nodes.
    pub(super) fn has(&self, node: &Arc<RedisNode>) -> bool {
        self.nodes.iter().any(|known| Arc::ptr_eq(known, node))
    }

    /// The node that has the counters of a hash slot.
    pub(super) fn owner(&self, slot: HashSlot) -> Option<&Arc<RedisNode>> {
        if self.owners.is_empty() {
            return self.nodes.first();
        }
        let owner = *self.owners.get(usize::from(slot.number()))?;
        self.nodes.get(usize::from(owner))
    }

    /// The hash slots of a node.
    pub(super) fn slots_of(&self, node: &RedisNode) -> impl Iterator<Item = HashSlot> {
        let index = self.nodes.iter().position(|known| known.server.address == node.server.address);
        let owned = self.owners.iter().enumerate();
        owned.filter_map(move |(slot, owner)| {
            let slot = HashSlot::new(u16::try_from(slot).ok()?);
            slot.filter(|_| Some(usize::from(*owner)) == index)
        })
    }

    /// Has each node of a cluster probed by writes to a hash slot of its own.
    fn aim_probes(&self) {
        for node in self.nodes.iter().filter(|_| !self.owners.is_empty()) {
            let probe = &node.link.state.probe;
            let is_own = |slot| self.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, node));
            if !probe.slot().is_some_and(is_own)
                && let Some(slot) = self.slots_of(node).next()
            {
                probe.aim(slot);
            }
        }
    }

    /// The node that has all these counters.
    pub(super) fn owner_of_all<'a>(
        &self,
        counters: impl Iterator<Item = &'a Counter>,
    ) -> Option<&Arc<RedisNode>> {
        if self.owners.is_empty() {
            return self.nodes.first();
        }
        let mut owners = counters.map(|counter| self.owner(HashSlot::of(counter)));
        let first = owners.next()??;
        owners.all(|owner| owner.is_some_and(|owner| Arc::ptr_eq(owner, first))).then_some(first)
    }

    /// Whether there is a node at this address.
    pub(super) fn has_address(&self, address: &Address) -> bool {
        self.find(address).is_some()
    }

    fn find(&self, address: &Address) -> Option<&Arc<RedisNode>> {
        self.nodes.iter().find(|node| node.server.address == *address)
    }

    /// The index of a node, which is added if it is new.
    fn index_of(&mut self, node: Arc<RedisNode>) -> u16 {
        let address = &node.server.address;
        let known = self.nodes.iter().position(|known| known.server.address == *address);
        let index = known.unwrap_or(self.nodes.len());
        if known.is_none() {
            self.nodes.push(node);
        }
        u16::try_from(index).unwrap_or(NO_OWNER)
    }

    fn set_owner(&mut self, slot: u16, owner: u16) {
        if let Some(entry) = self.owners.get_mut(usize::from(slot)) {
            *entry = owner;
        }
    }
}
