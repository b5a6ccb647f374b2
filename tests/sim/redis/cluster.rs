//! A Redis Cluster as one of its nodes knows it: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use std::rc::Rc;

use super::{database::Database, reply::Reply};

pub const SLOTS: u16 = 16_384;

/// What a node knows of its cluster.
#[derive(Clone)]
pub struct View {
    /// Host and port of each node.
    nodes: Rc<[String]>,
    own: usize,
    /// By slot: the node that has it, if that is known.
    pub owners: Vec<Option<usize>>,
    /// A slot that is being moved from here, and where.
    pub migrating: Option<(u16, usize)>,
    /// A slot that is being moved here.
    pub importing: Option<u16>,
    /// Whether it considers the cluster down.
    pub is_down: bool,
}

impl View {
    /// The view of the node `own`. The first nodes, as many as there are masters, have an equal part of the slots.
    pub fn new(nodes: Rc<[String]>, own: usize, masters: usize) -> Self {
        let owner = |slot: u16| Some(usize::from(slot) * masters / usize::from(SLOTS));
        let owners = (0..SLOTS).map(owner).collect();
        Self { nodes, own, owners, migrating: None, importing: None, is_down: false }
    }

    pub fn owner(&self, slot: u16) -> Option<usize> {
        self.owners[usize::from(slot)]
    }

    pub fn is_master(&self) -> bool {
        self.owners.contains(&Some(self.own))
    }

    /// Why the node does not run a command on these keys, if it does not.
    pub fn refusal(
        &self,
        database: &mut Database,
        keys: &[Vec<u8>],
        is_asking: bool,
    ) -> Option<String> {
        let slot = slot_of(keys.first()?);
        let owner = self.owner(slot);
        if owner.is_some() && keys.iter().any(|key| slot_of(key) != slot) {
            return Some("CROSSSLOT Keys in request don't hash to the same slot".to_owned());
        }
        let Some(owner) = owner else {
            return Some("CLUSTERDOWN Hash slot not served".to_owned());
        };
        if self.is_down {
            return Some("CLUSTERDOWN The cluster is down".to_owned());
        }
        let missing = keys.iter().filter(|key| database.value(key).is_none()).count();
        let try_again =
            || Some("TRYAGAIN Multiple keys request during rehashing of slot".to_owned());
        match self.migrating {
            Some((moved, _)) if moved == slot && (1..keys.len()).contains(&missing) => try_again(),
            Some((moved, to)) if moved == slot && missing > 0 => {
                Some(format!("ASK {slot} {}", self.nodes[to]))
            }
            _ if self.importing == Some(slot) && is_asking => {
                let differ = keys.iter().any(|key| *key != keys[0]);
                if differ && missing > 0 { try_again() } else { None }
            }
            _ if owner == self.own => None,
            _ => Some(format!("MOVED {slot} {}", self.nodes[owner])),
        }
    }

    /// The answer to CLUSTER SLOTS: a range for each run of slots of one node.
    pub fn slots(&self) -> Reply {
        let (mut ranges, mut first) = (Vec::new(), 0);
        for slot in 1..=SLOTS {
            if slot < SLOTS && self.owner(slot) == self.owner(first) {
                continue;
            }
            if let Some(owner) = self.owner(first) {
                let (host, port) = self.nodes[owner].rsplit_once(':').expect("host and port");
                let port = Reply::Integer(port.parse().expect("a port"));
                let node = vec![Reply::bulk(host), port, Reply::bulk(format!("{owner:040x}"))];
                let [first, last] = [first, slot - 1].map(|slot| Reply::Integer(slot.into()));
                ranges.push(Reply::Array(vec![first, last, Reply::Array(node)]));
            }
            first = slot;
        }
        Reply::Array(ranges)
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
