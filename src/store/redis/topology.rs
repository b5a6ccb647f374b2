//! Which server has which counters. A single server, and the one that Sentinels name, have all of them; on a
//! cluster each server has those of some hash slots.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::{
    batch::Runs,
    batcher::queue::QueuedCall,
    hash_slot::HashSlot,
    node::{NodeOptions, RedisNode},
    server::Server,
};

/// The present nodes. It is read by every call, and replaced by one task.
pub(super) struct Topology {
    options: NodeOptions,
    current: ArcSwap<NodeMap>,
    /// Held during a change.
    change: Mutex<()>,
    /// Something says that the map may be out of date.
    pub(super) bell: Notify,
}

/// The nodes at one time.
#[derive(Debug, Clone)]
pub(super) struct NodeMap {
    pub(super) nodes: Vec<Arc<RedisNode>>,
    owners: Owners,
}

#[derive(Debug, Clone)]
enum Owners {
    /// The first node has all counters.
    First,
    /// By hash slot: an index into the nodes.
    BySlot(Box<[u16]>),
}

/// The owner of a hash slot that no node has.
const NOBODY: u16 = u16::MAX;
