//! A Redis Cluster.

use super::{certificates::Issued, prelude::*, redis_server::Setup};

pub const SLOTS: u16 = 16_384;

/// How to start it.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    pub version: Version,
    pub masters: usize,
    /// Whether each master has a replica.
    pub replicas: bool,
    /// The password of all nodes, or empty.
    pub password: String,
    /// The certificate of all nodes. Between them all is TLS, and each has a TLS port too.
    pub tls: Option<Issued>,
    /// The host name that all nodes announce beside their addresses, or empty.
    pub hostname: &'static str,
}

impl Default for ClusterSetup {
    fn default() -> Self {
        Self {
            version: Version::default(),
            masters: 3,
            replicas: true,
            password: String::new(),
            tls: None,
            hostname: "",
        }
    }
}

pub struct Cluster {
    /// First the nodes that began as masters, in the order of their slots, then a replica of each in the same
    /// order.
    pub nodes: Vec<Redis>,
    ids: Vec<String>,
    /// Nodes that were killed or stopped, until [`heal`](Self::heal).
    down: BTreeSet<usize>,
    replicas: bool,
    tls: bool,
}

/// First and last slot of each range.
type Slots = Vec<(u16, u16)>;

/// A line of CLUSTER NODES.
struct Seen {
    /// Its index in [`Cluster::nodes`].
    node: usize,
    flags: String,
    /// The index of the master that it is a replica of.
    master: Option<usize>,
    is_linked: bool,
    slots: Slots,
}

impl Seen {
    fn is_well(&self) -> bool {
        self.is_linked && !self.flags.contains("fail") && !self.flags.contains("handshake")
    }

    fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

impl Cluster {
    /// Three masters with a replica each.
    pub fn start() -> Self {
        Self::start_as(&ClusterSetup::default())
    }

    pub fn start_as(setup: &ClusterSetup) -> Self {
        let ClusterSetup { version, masters, replicas, password, tls, hostname } = setup;
        let count = if *replicas { 2 * masters } else { *masters };
        let mut node = Setup {
            version: *version,
            password: password.clone(),
            tls: tls.clone(),
            ..Setup::default()
        }
        .with(&["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"])
        .with(&["--cluster-require-full-coverage", "no"])
        .with(&["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
        if tls.is_some() {
            node = node.with(&["--tls-cluster", "yes", "--tls-replication", "yes"]);
        }
        if !hostname.is_empty() {
            node = node.with(&["--cluster-announce-hostname", hostname]);
        }
        let nodes: Vec<_> = (0..count).map(|_| Redis::start_as(node.clone())).collect();
        let ids = nodes.iter().map(|node| node.query(&["CLUSTER", "MYID"])).collect();
        let cluster =
            Self { nodes, ids, down: BTreeSet::new(), replicas: *replicas, tls: tls.is_some() };
        cluster.form(*masters);
        cluster.ready();
        if !hostname.is_empty() {
            // Until then, they name each other by their addresses.
            let named = format!(",{hostname}");
            wait_until("all nodes know each other's host names", || {
                let mut seen = cluster.nodes.iter().map(|node| node.query(&["CLUSTER", "NODES"]));
                seen.all(|nodes: String| nodes.lines().all(|line| line.contains(&named)))
            });
        }
        cluster
    }

    fn form(&self, masters: usize) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            for other in &self.nodes[..index] {
                let port = self.port_of(other);
                let bus = (port + 10_000).to_string();
                node.query::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port.to_string(), &bus]);
            }
        }
        for (index, node) in self.nodes[..masters].iter().enumerate() {
            let first = |index| usize::from(SLOTS) * index / masters;
            let mut add = redis::cmd("CLUSTER");
            add.arg("ADDSLOTS").arg((first(index)..first(index + 1)).collect::<Vec<_>>());
            add.query::<()>(&mut node.connect()).unwrap();
        }
        for (index, replica) in self.nodes.iter().enumerate().skip(masters) {
            let master = &self.ids[index - masters];
            eventually("the replica knows its master", || {
                let mut replicate = redis::cmd("CLUSTER");
                replicate.arg("REPLICATE").arg(master);
                replicate.query::<()>(&mut replica.connect()).ok()
            });
        }
    }

    /// Waits until a failover would succeed and lose nothing: all nodes see each other, they agree on the owners of
    /// all slots and on whose replica each node is, and each master's replica acknowledges a write.
    pub fn ready(&self) {
        eventually("all nodes agree and serve", || {
            let mut roles = self.nodes.iter().map(|node| self.roles_if_well(node));
            let first = roles.next()??;
            roles.all(|roles| roles.as_ref() == Some(&first)).then_some(())
        });
        for master in self.masters() {
            let key = format!("{{{}}}ready", self.key_on(master));
            eventually("a master's replica acknowledges a write", || {
                let mut connection = self.nodes[master].connect();
                let mut write = redis::pipe();
                write.cmd("SET").arg(&key).arg(1).ignore().cmd("DEL").arg(&key).ignore();
                write.cmd("WAIT").arg(u8::from(self.replicas)).arg(1_000);
                let (acknowledged,): (u8,) = write.query(&mut connection).ok()?;
                (acknowledged == u8::from(self.replicas)).then_some(())
            });
        }
    }

    /// Each node's slots and master as this node sees them, if it sees all nodes well and serves.
    fn roles_if_well(&self, node: &Redis) -> Option<BTreeMap<usize, (Slots, Option<usize>)>> {
        let seen = self.seen_by(node)?;
        let covered: u16 =
            seen.iter().flat_map(|seen| &seen.slots).map(|(first, last)| last - first + 1).sum();
        let info: String = node.query(&["CLUSTER", "INFO"]);
        let is_well = seen.len() == self.nodes.len()
            && seen.iter().all(Seen::is_well)
            && covered == SLOTS
            && info.contains("cluster_state:ok");
        let role = |seen: Seen| (seen.node, (seen.slots, seen.master));
        is_well.then(|| seen.into_iter().map(role).collect())
    }

    /// Host and port of each node, with commas between.
    pub fn hosts(&self) -> String {
        let host = |node| format!("127.0.0.1:{}", self.port_of(node));
        self.nodes.iter().map(host).collect::<Vec<_>>().join(",")
    }

    /// The port that the nodes use among themselves, and tell to clients with TLS.
    fn port_of(&self, node: &Redis) -> u16 {
        if self.tls { node.tls_port } else { node.port }
    }

    /// The store's URL, for nodes without a password and TLS.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.hosts())
    }

    /// The URL with the user of docs/redis.md, who has no more rights than are needed.
    pub fn url_with_minimal_rights(&self) -> String {
        for node in &self.nodes {
            node.allow("For a single server:");
            node.allow("Each node of a Cluster needs this user, and:");
        }
        format!("redis+cluster://tollkeeper:secret@{}", self.hosts())
    }

    /// What each node says of all, for the message of a test that fails.
    pub fn views(&self) -> String {
        let view = |node: &Redis| node.query::<String>(&["CLUSTER", "NODES"]);
        self.living().map(view).collect::<Vec<_>>().join("\n")
    }

    /// What a node knows of the nodes, if it knows only ours.
    fn seen_by(&self, node: &Redis) -> Option<Vec<Seen>> {
        let lines: String = node.query(&["CLUSTER", "NODES"]);
        let parse = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            // Slots under migration are in brackets.
            let slots = words[8..].iter().filter(|word| !word.starts_with('['));
            let slots = slots.map(|word| {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                (first.parse().unwrap(), last.parse().unwrap())
            });
            Some(Seen {
                node: self.ids.iter().position(|id| id == words[0])?,
                flags: words[2].to_owned(),
                master: self.ids.iter().position(|id| id == words[3]),
                is_linked: words[7] == "connected",
                slots: slots.collect(),
            })
        };
        lines.lines().map(parse).collect()
    }

    /// The nodes that were neither killed nor stopped.
    fn living(&self) -> impl Iterator<Item = &Redis> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(index, _)| !self.down.contains(index)).map(|(_, node)| node)
    }

    /// The nodes that own slots.
    pub fn masters(&self) -> Vec<usize> {
        let seen = eventually("a node knows all others", || self.seen_by(self.living().next()?));
        seen.iter().filter(|seen| !seen.slots.is_empty()).map(|seen| seen.node).collect()
    }

    /// The node that owns the slot, once all living nodes agree.
    pub fn node_of(&self, slot: u16) -> usize {
        eventually("the nodes name one owner of a slot", || {
            let mut owners = self.living().map(|node| self.owner_by(node, slot));
            let first = owners.next()??;
            owners.all(|owner| owner == Some(first)).then_some(first)
        })
    }

    fn owner_by(&self, node: &Redis, slot: u16) -> Option<usize> {
        let seen = self.seen_by(node)?;
        Some(seen.iter().find(|seen| seen.owns(slot))?.node)
    }

    pub fn slot_of(&self, key: &str) -> u16 {
        let node = self.living().next().expect("a living node");
        node.query(&["CLUSTER", "KEYSLOT", key])
    }

    /// A key, of no counter, that is in a slot of this node.
    pub fn key_on(&self, node: usize) -> String {
        let own = eventually("the node owns slots", || {
            let seen = self.seen_by(&self.nodes[node])?;
            seen.into_iter().find(|seen| seen.node == node && !seen.slots.is_empty())
        });
        let mut keys = (0..).map(|number| format!("key-{number}"));
        keys.find(|key| own.owns(self.slot_of(key))).unwrap()
    }

    /// Moves a slot and its keys.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let migration = self.begin_move(slot, to);
        migration.move_keys();
        migration.finish();
    }

    /// Moves all slots of a node to another, those with keys one by one.
    pub fn empty(&self, from: usize, to: usize) {
        let slots = |node: usize| {
            let seen = eventually("a node knows all", || self.seen_by(&self.nodes[node]));
            let own = seen.into_iter().find(|seen| seen.node == node).expect("it knows itself");
            own.slots.into_iter().flat_map(|(first, last)| first..=last).collect::<Vec<_>>()
        };
        let all = slots(from);
        for node in &self.nodes {
            // A master without slots would become a replica.
            node.query::<()>(&["CONFIG", "SET", "cluster-allow-replica-migration", "no"]);
        }
        // Those that move one by one give the new owner the newest epoch, so that it is believed.
        let keyed: BTreeSet<_> =
            self.nodes[from].keys().iter().map(|key| self.slot_of(key)).collect();
        assert!(!keyed.is_empty(), "the node has a key");
        for slot in &keyed {
            self.move_slot(*slot, to);
        }
        let others = self.masters().into_iter().filter(|node| ![from, to].contains(node));
        for node in [to, from].into_iter().chain(others) {
            let mut pipe = redis::pipe();
            for slot in all.iter().filter(|slot| !keyed.contains(slot)) {
                pipe.cmd("CLUSTER")
                    .arg("SETSLOT")
                    .arg(slot)
                    .arg("NODE")
                    .arg(&self.ids[to])
                    .ignore();
            }
            pipe.query::<()>(&mut self.nodes[node].connect()).unwrap();
        }
        wait_until("the node has no slots", || slots(from).is_empty());
    }

    /// Begins to move a slot: from here on the old owner answers ASK for keys that it does not have.
    pub fn begin_move(&self, slot: u16, to: usize) -> Migration<'_> {
        let migration = Migration { cluster: self, slot, from: self.node_of(slot), to };
        let Migration { from, .. } = migration;
        self.set_slot(to, slot, &["IMPORTING", &self.ids[from]]);
        self.set_slot(from, slot, &["MIGRATING", &self.ids[to]]);
        migration
    }

    fn set_slot(&self, node: usize, slot: u16, words: &[&str]) {
        let slot = slot.to_string();
        self.nodes[node].query::<()>(&[&["CLUSTER", "SETSLOT", &slot], words].concat());
    }

    /// Ends a node's process at once.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].stop();
        self.down.insert(node);
    }

    /// Stops a node's process, as a host that hangs would.
    pub fn stop(&mut self, node: usize) {
        self.nodes[node].signal("STOP");
        self.down.insert(node);
    }

    /// Lets a node go on that was [`stop`](Self::stop)ped.
    pub fn resume(&mut self, node: usize) {
        self.nodes[node].signal("CONT");
        self.down.remove(&node);
    }

    /// Has the nodes consider another one down after this time without an answer.
    pub fn notice_after(&self, time: Duration) {
        for node in self.living() {
            let time = time.as_millis().to_string();
            node.query::<()>(&["CONFIG", "SET", "cluster-node-timeout", &time]);
        }
    }

    /// Has the other nodes forget this one, which remembers them: for a minute, nobody can tell them of it.
    pub fn forget_node(&self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.nodes[other].query::<()>(&["CLUSTER", "FORGET", &self.ids[node]]);
        }
    }

    /// Takes a slot from its owner, as all nodes see it. Returns when all consider the cluster down; the news of an
    /// owner may still be under way, so `None` asks for another try.
    pub fn forget_slot(&self, slot: &str) -> Option<()> {
        for node in self.nodes.iter().rev() {
            let mut forget = redis::cmd("CLUSTER");
            // It fails if the node knows no owner.
            let _ = forget.arg("DELSLOTS").arg(slot).query::<()>(&mut node.connect());
        }
        let is_down = |node: &Redis| {
            node.query::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:fail")
        };
        self.nodes.iter().all(is_down).then_some(())
    }

    /// Has the replica of this master take over from it. The master then becomes the replica.
    pub fn failover_by_hand(&self, master: usize) {
        let id = &self.ids[master];
        let replicas: Vec<String> = self.nodes[master].query(&["CLUSTER", "REPLICAS", id]);
        let replica = replicas[0].split(' ').next().unwrap();
        let replica = self.ids.iter().position(|id| id == replica).expect("one of the cluster");
        self.nodes[replica].query::<()>(&["CLUSTER", "FAILOVER"]);
    }

    /// Waits until a living node names another owner of this slot, and returns when that was, to 20 ms.
    pub fn announced(&self, slot: u16, before: usize) -> Instant {
        eventually("a node names another owner of a slot", || {
            let mut owners = self.living().filter_map(|node| self.owner_by(node, slot));
            owners.any(|owner| owner != before).then(Instant::now)
        })
    }

    /// Starts the nodes again that were killed or stopped, and waits until all are [`ready`](Self::ready).
    pub fn heal(&mut self) {
        for node in std::mem::take(&mut self.down) {
            self.nodes[node].stop();
            self.nodes[node].start_again();
        }
        self.ready();
    }

    /// Promise "a time to live": fails if a key of any master has no TTL.
    #[track_caller]
    pub fn assert_no_key_leaks(&self) {
        for master in self.masters() {
            self.nodes[master].assert_no_key_leaks();
        }
    }
}

/// A slot that is being moved.
pub struct Migration<'a> {
    cluster: &'a Cluster,
    pub slot: u16,
    pub from: usize,
    pub to: usize,
}

impl Migration<'_> {
    /// Moves the keys that the old owner has.
    pub fn move_keys(&self) {
        let mut source = self.cluster.nodes[self.from].connect();
        loop {
            let mut keys = redis::cmd("CLUSTER");
            keys.arg("GETKEYSINSLOT").arg(self.slot).arg(100);
            let keys: Vec<Vec<u8>> = keys.query(&mut source).unwrap();
            if keys.is_empty() {
                return;
            }
            self.migrate(&mut source, &keys);
        }
    }

    /// Moves one key.
    pub fn move_key(&self, key: &str) {
        let mut source = self.cluster.nodes[self.from].connect();
        self.migrate(&mut source, &[key.as_bytes().to_vec()]);
    }

    fn migrate(&self, source: &mut redis::Connection, keys: &[Vec<u8>]) {
        let target = &self.cluster.nodes[self.to];
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.cluster.port_of(target));
        migrate.arg("").arg(0).arg(5_000);
        if !target.password().is_empty() {
            migrate.arg("AUTH").arg(target.password());
        }
        migrate.arg("KEYS").arg(keys);
        // A busy machine may make the nodes believe for a moment that the cluster is down.
        eventually("keys are moved", || migrate.query::<()>(source).ok());
    }

    /// Names the new owner, to it first and then to all.
    pub fn finish(self) {
        let Self { cluster, slot, to, .. } = self;
        let others = cluster.masters().into_iter().filter(|master| *master != to);
        for node in [to].into_iter().chain(others) {
            cluster.set_slot(node, slot, &["NODE", &cluster.ids[to]]);
        }
    }
}
