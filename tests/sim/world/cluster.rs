//! A Redis Cluster: which node has a counter, slots that move, and replicas that take over.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use tokio::time::{self, Instant};
use tollkeeper_sim::{
    dice::Dice,
    network::{Connects, Host},
    redis::{
        cluster::{SLOTS, View, slot_of},
        server::Refusal,
    },
};

use super::{BACK_WITHIN, World, clients::Client};

/// The number of masters. Each has a replica, whose number is greater by this.
pub const MASTERS: usize = 3;

/// The number of the client whose work is kept while its slot moves.
const MOVERS_NUMBER: usize = 99;

/// Host and port of each node.
pub fn nodes() -> Rc<[String]> {
    (0..2 * MASTERS).map(|node| format!("node{node}:6379")).collect()
}

impl World {
    /// Changes what a node knows.
    fn of_view<T>(&self, node: usize, act: impl FnOnce(&mut View) -> T) -> T {
        let server = self.hosts[node].server.borrow();
        act(server.state.borrow_mut().cluster.as_mut().expect("a node of a cluster"))
    }

    /// The servers that may have these counters: several also while they do not agree.
    pub fn nodes_of(&self, counters: &[String]) -> BTreeSet<usize> {
        if !self.plan.has_cluster {
            return self.masters().into_iter().collect();
        }
        let of_slot = |slot: u16| {
            let named = move |view: &mut View| {
                let to = view.migrating.filter(|(moved, _)| *moved == slot).map(|(_, to)| to);
                [view.owner(slot), to]
            };
            (0..self.hosts.len()).flat_map(move |node| self.of_view(node, named)).flatten()
        };
        slots_of(counters).flat_map(of_slot).collect()
    }

    /// The servers that a replica of this age may ask first for these counters: they had them when it began.
    pub fn asked_before(&self, counters: &[String], began: Instant) -> BTreeSet<usize> {
        let slots: Vec<u16> = slots_of(counters).collect();
        let moved = self.moved.borrow();
        let missed = moved.iter().filter(|(slot, _, at)| slots.contains(slot) && *at > began);
        missed.map(|(_, from, _)| *from).collect()
    }

    /// The servers that take writes: several with a cluster, and for a moment while another server takes over.
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |node: &usize| match self.plan.has_cluster {
            true => self.of_view(*node, |view| view.is_master()),
            false => !self.hosts[*node].server.borrow().state.borrow().is_replica,
        };
        (0..self.hosts.len()).filter(is_master).collect()
    }

    /// Whether all has been well since long before `at`, perhaps but for one server. A slot may move.
    pub fn is_well(&self, stopped: Option<usize>, at: Instant) -> bool {
        let is_well = |(node, host): (usize, &Rc<Host>)| {
            let last = host.troubled.get().max(host.stopped_until.get());
            let is_undisturbed = last.is_none_or(|last| last + BACK_WITHIN < at);
            Some(node) == stopped || host.is_calm() && is_undisturbed
        };
        !self.ledger.borrow().has_half_open() && self.hosts.iter().enumerate().all(is_well)
    }

    /// Something is wrong with all servers now.
    pub fn troubles_all(&self) {
        self.hosts.iter().for_each(|host| host.troubled.set(Some(Instant::now())));
    }

    /// Begins a change of the servers. Returns false if another one is under way.
    pub fn begins_change(&self) -> bool {
        !self.is_changing.replace(true)
    }
}

fn slots_of(counters: &[String]) -> impl Iterator<Item = u16> {
    counters.iter().map(|counter| match counter.split_once('=') {
        Some(("anonymous", _)) => slot_of(b"shop"),
        _ => slot_of(format!("shop|{counter}").as_bytes()),
    })
}

/// A random time of up to 1, 20 or 300 ms.
pub fn moment(dice: &Dice) -> Duration {
    dice.micros(100..*dice.one_of(&[1000, 20_000, 300_000]))
}

/// All nodes learn one after the other, beginning with these, who has these slots.
async fn announce(world: &World, dice: &Dice, first: [usize; 2], slots: &[u16], owner: usize) {
    let others = (0..world.hosts.len()).filter(|node| !first.contains(node));
    for node in first.into_iter().chain(others) {
        world.of_view(node, |view| {
            slots.iter().for_each(|slot| view.owners[usize::from(*slot)] = Some(owner));
            view.migrating = None;
            view.importing = None;
        });
        time::sleep(moment(dice)).await;
    }
}

/// Moves a slot that has a key, key by key. In some schedules it has finished work, and the node that it leaves takes no writes
/// before: then work is kept while its slot moves.
pub async fn move_slot(world: Rc<World>, dice: Dice) {
    let masters = world.masters();
    let (from, to) = (*dice.one_of(&masters), *dice.one_of(&masters));
    let [source, target] = [from, to].map(|node| world.hosts[node].server.borrow().state.clone());
    let mut keys = source.borrow_mut().database.keys();
    let takes_none = world.plan.only_changes && world.plan.seed % 3 < 2;
    keys.retain(|key| !takes_none || String::from_utf8_lossy(key).contains("{shop|work="));
    if from != to && !keys.is_empty() {
        let key = dice.one_of::<Vec<u8>>(&keys);
        let slot = slot_of(key);
        if takes_none {
            world.note(|| format!("node {from} takes no writes"));
            source.borrow_mut().refusal = Some(Refusal::NoReplicas);
            let key = String::from_utf8_lossy(key);
            let counter = key.split(['|', '}']).nth(1).expect("domain and counter").to_owned();
            let mut client = Client::new(MOVERS_NUMBER, &world, dice.another());
            for _ in 0..1 + dice.below(8) {
                client.debit(counter.clone()).await;
            }
            time::sleep(moment(&dice)).await;
        }
        world.note(|| format!("slot {slot} moves from node {from} to node {to}"));
        world.of_view(to, |view| view.importing = Some(slot));
        time::sleep(moment(&dice)).await;
        world.of_view(from, |view| view.migrating = Some((slot, to)));
        let next = || {
            let keys = source.borrow_mut().database.keys();
            keys.into_iter().find(|key| slot_of(key) == slot)
        };
        let pause = moment(&dice);
        time::sleep(pause).await;
        while let Some(key) = next() {
            source.borrow_mut().database.move_key(&key, &mut target.borrow_mut().database);
            time::sleep(pause).await;
        }
        let (host, is_away) = (&world.hosts[to], dice.hits(300));
        if is_away {
            world.note(|| format!("node {to} cannot be reached"));
            host.weather.borrow_mut().connects =
                *dice.one_of(&[Connects::Refused, Connects::Never]);
            host.cut_all();
            world.ledger.borrow_mut().cut();
        }
        announce(&world, &dice, [to, from], &[slot], to).await;
        if is_away {
            host.weather.borrow_mut().connects = Connects::AtOnce;
            host.troubled.set(Some(Instant::now()));
        }
        if takes_none {
            source.borrow_mut().refusal = None;
            world.hosts[from].troubled.set(Some(Instant::now()));
        }
        world.moved.borrow_mut().push((slot, from, Instant::now()));
        world.note(|| format!("slot {slot} has moved"));
    }
    world.is_changing.set(false);
}

/// A master ends, and its replica takes over, which may lack the last writes.
pub async fn fail_over(world: Rc<World>, dice: Dice) {
    let master = *dice.one_of(&world.masters());
    let replica = (master + MASTERS) % (2 * MASTERS);
    let slots: Vec<u16> = (0..SLOTS)
        .filter(|slot| world.of_view(master, |view| view.owner(*slot)) == Some(master))
        .collect();
    let [old, new] = [master, replica].map(|node| world.hosts[node].server.borrow().state.clone());
    let copied = old.borrow().database.clone();
    if dice.hits(500) {
        world.note(|| format!("the replica of node {master} gets no more writes"));
        time::sleep(moment(&dice)).await;
    }
    new.borrow_mut().database = copied;
    let host = &world.hosts[master];
    world.troubles_all();
    let is_killed = dice.hits(500);
    world.note(|| format!("node {master} {}", if is_killed { "is killed" } else { "hangs" }));
    world.loses(master, &mut new.borrow_mut().database);
    // When it is back, it is the replica.
    world.of_view(master, |view| {
        slots.iter().for_each(|slot| view.owners[usize::from(*slot)] = Some(replica));
    });
    if is_killed {
        host.cut_all();
        host.server.borrow_mut().run += 1;
        host.weather.borrow_mut().connects = *dice.one_of(&[Connects::Refused, Connects::Never]);
    } else {
        host.stop(Duration::from_secs(5));
    }
    time::sleep(moment(&dice)).await;
    let others: Vec<usize> = (0..world.hosts.len()).filter(|node| *node != master).collect();
    if dice.hits(500) {
        world.note(|| "the cluster is down".to_owned());
        others.iter().for_each(|node| world.of_view(*node, |view| view.is_down = true));
        time::sleep(dice.micros(100..2_000_000)).await;
    } else if dice.hits(500) {
        // It has heard of the new role of the old master, and not who has taken over.
        world.of_view(*dice.one_of(&others), |view| {
            slots.iter().for_each(|slot| view.owners[usize::from(*slot)] = None);
        });
        time::sleep(moment(&dice)).await;
    }
    others.iter().for_each(|node| world.of_view(*node, |view| view.is_down = false));
    world.note(|| format!("node {replica} takes over from node {master}"));
    announce(&world, &dice, [replica, master], &slots, replica).await;
    host.weather.borrow_mut().connects = Connects::AtOnce;
    host.resume();
    world.troubles_all();
    // What was sent to it meanwhile has not run.
    world.ledger.borrow_mut().cut();
    world.note(|| format!("node {master} is back, as a replica"));
    world.is_changing.set(false);
}
