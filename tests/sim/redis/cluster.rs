//! The hash slots of a cluster: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use super::{database::Database, reply::Reply};

pub const SLOTS: u16 = 16_384;

/// Which node has which slot. All nodes know it at once.
pub struct Cluster {
    /// The host of each node, and the slots that it has.
    pub nodes: Vec<String>,
    owners: Vec<usize>,
    /// Slots whose keys are being moved to another node.
    pub moving: BTreeMap<u16, usize>,
}

/// A cluster as one of its servers sees it.
#[derive(Clone)]
pub struct Member {
    pub cluster: Rc<RefCell<Cluster>>,
    pub host: String,
    /// Whether the command comes after ASKING.
    pub is_asking: bool,
}

impl Cluster {
    /// A cluster of these hosts, each of which has an equal part of the slots.
    pub fn new(nodes: Vec<String>) -> Rc<RefCell<Self>> {
        let count = nodes.len();
        let owners = (0..SLOTS).map(|slot| usize::from(slot) * count / usize::from(SLOTS)).collect();
        Rc::new(RefCell::new(Self { nodes, owners, moving: BTreeMap::new() }))
    }

    pub fn owner(&self, slot: u16) -> usize {
        self.owners[usize::from(slot)]
    }

    /// The slot has been moved.
    pub fn settle(&mut self, slot: u16) {
        if let Some(node) = self.moving.remove(&slot) {
            self.owners[usize::from(slot)] = node;
        }
    }

    /// The answer to CLUSTER SLOTS: a range for each run of slots of one node.
    pub fn slots(&self) -> Reply {
        let (mut ranges, mut first) = (Vec::new(), 0);
        for slot in 1..=SLOTS {
            if slot == SLOTS || self.owner(slot) != self.owner(first) {
                let host = Reply::bulk(&*self.nodes[self.owner(first)]);
                let id = Reply::bulk(format!("{:040x}", self.owner(first)));
                let node = Reply::Array(vec![host, Reply::Integer(6379), id]);
                let bounds = [first, slot - 1].map(|slot| Reply::Integer(slot.into()));
                ranges.push(Reply::Array(bounds.into_iter().chain([node]).collect()));
                first = slot;
            }
        }
        Reply::Array(ranges)
    }
}

impl Member {
    /// Why the server does not run a command on these keys, if it does not.
    pub fn refusal(&self, database: &mut Database, keys: &[Vec<u8>]) -> Option<String> {
        let slot = slot_of(keys.first()?);
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Some("CROSSSLOT Keys in request don't hash to the same slot".to_owned());
        }
        let cluster = self.cluster.borrow();
        let (owner, target) = (cluster.owner(slot), cluster.moving.get(&slot).copied());
        let missing = keys.iter().filter(|key| database.value(key).is_none()).count();
        let try_again = || Some("TRYAGAIN Multiple keys request during rehashing of slot".to_owned());
        let is_at = |node: usize| cluster.nodes[node] == self.host;
        match target {
            Some(target) if is_at(owner) && missing > 0 => {
                if missing < keys.len() {
                    return try_again();
                }
                Some(format!("ASK {slot} {}:6379", cluster.nodes[target]))
            }
            Some(target) if is_at(target) && self.is_asking => {
                if keys.len() > 1 && missing > 0 { try_again() } else { None }
            }
            _ if is_at(owner) => None,
            _ => Some(format!("MOVED {slot} {}:6379", cluster.nodes[owner])),
        }
    }
}

/// The slot of a key: CRC-16/XMODEM of its hash tag.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}').filter(|length| *length > 0)?;
        Some(&rest[..close])
    });
    let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let add = |crc: u16, byte: &u8| (0..8).fold(crc ^ (u16::from(*byte) << 8), shift);
    tag.unwrap_or(key).iter().fold(0, add) % SLOTS
}
