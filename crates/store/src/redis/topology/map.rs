//! The nodes of a store at one time, and which of them has a hash slot.

use std::{collections::HashMap, ops::RangeInclusive, sync::Arc};

use tollkeeper_engine::key::Counter;

use crate::redis::{
    node::RedisNode,
    wire::{
        endpoint::{Address, Server},
        hash_slot::HashSlot,
        server_info::ServerMode,
    },
};

#[derive(Debug, Clone)]
pub(crate) struct NodeMap {
    nodes: Vec<Arc<RedisNode>>,
    /// By hash slot: an index into the nodes, or [`NO_OWNER`]. Empty if the first node has all counters.
    owners: Vec<u16>,
    /// Masters and replicas as the map of a cluster named them. A redirection names an address only.
    announced: HashMap<Address, Server>,
}

/// The node at an address, which may be a new one.
pub(super) type NodeAt<'known> = dyn Fn(&Server) -> Arc<RedisNode> + 'known;

/// The owner of a hash slot that no node has.
const NO_OWNER: u16 = u16::MAX;

/// Hash slots, from the first to the last, and the server that has them.
#[derive(Debug, Clone)]
pub(crate) struct SlotRange {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) server: Server,
    pub(super) replicas: Vec<Server>,
}

impl NodeMap {
    /// One server that has all counters.
    pub(super) fn of_one(node: Arc<RedisNode>) -> Self {
        Self { nodes: vec![node], ..Self::without_owners(ServerMode::Single) }
    }

    /// The servers of a cluster, whose nodes are `node_at` them.
    pub(super) fn of_cluster(ranges: &[SlotRange], node_at: &NodeAt<'_>) -> Self {
        let mut map = Self::without_owners(ServerMode::Cluster);
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
    }

    /// This map with a node, which owns the hash slot that has `moved`, if one has.
    pub(super) fn with(&self, node: Arc<RedisNode>, moved: Option<HashSlot>) -> Self {
        let mut map = self.clone();
        let owner = map.index_of(node);
        if let Some(slot) = moved {
            map.set_owner(slot.number(), owner);
        }
        map
    }

    /// The server as the cluster announced it, by its address.
    pub(super) fn announced<'a>(&'a self, server: &'a Server) -> &'a Server {
        self.announced.get(&server.address).unwrap_or(server)
    }

    pub(super) fn without_owners(mode: ServerMode) -> Self {
        let slots = match mode {
            ServerMode::Single => 0,
            ServerMode::Cluster => usize::from(HashSlot::COUNT),
        };
        Self { nodes: Vec::new(), owners: vec![NO_OWNER; slots], announced: HashMap::new() }
    }

    pub(crate) fn nodes(&self) -> &[Arc<RedisNode>] {
        &self.nodes
    }

    pub(super) fn is_complete(&self) -> bool {
        !self.owners.contains(&NO_OWNER)
    }

    pub(super) fn has(&self, node: &Arc<RedisNode>) -> bool {
        self.nodes.iter().any(|known| Arc::ptr_eq(known, node))
    }

    pub(super) fn owner(&self, slot: HashSlot) -> Option<&Arc<RedisNode>> {
        if self.owners.is_empty() {
            return self.nodes.first();
        }
        let owner = *self.owners.get(usize::from(slot.number()))?;
        self.nodes.get(usize::from(owner))
    }

    pub(super) fn slots_of(&self, node: &RedisNode) -> impl Iterator<Item = HashSlot> {
        let index = self.nodes.iter().position(|known| known.server.address == node.server.address);
        let owned = self.owners.iter().enumerate();
        owned.filter_map(move |(slot, owner)| {
            let slot = HashSlot::new(u16::try_from(slot).ok()?);
            slot.filter(|_| Some(usize::from(*owner)) == index)
        })
    }

    /// Has each node of a cluster probed by writes to a hash slot of its own.
    pub(super) fn aim_probes(&self) {
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

    pub(super) fn has_address(&self, address: &Address) -> bool {
        self.find(address).is_some()
    }

    pub(super) fn find(&self, address: &Address) -> Option<&Arc<RedisNode>> {
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
