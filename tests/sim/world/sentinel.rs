//! Three Sentinels, a master and its replica: failovers, and Sentinels that cannot be reached.

use std::{rc::Rc, time::Duration};

use tokio::time::{self};
use tollkeeper_sim::{
    dice::Dice,
    network::{Connects, Host},
    redis::{
        sentinel::Monitor,
        server::{Clock, Server},
    },
};

use super::{Plan, World, cluster::moment};

/// How the Sentinels call the master.
pub const NAME: &str = "counters";

/// Host and port of the master and of its replica.
pub const SERVERS: [&str; 2] = ["redis0:6379", "redis1:6379"];

pub const SENTINELS: [&str; 3] = ["sentinel0:26379", "sentinel1:26379", "sentinel2:26379"];

/// The Sentinels of a plan that has some.
pub fn hosts(plan: &Plan, clock: &Clock, dice: &Dice) -> Vec<Rc<Host>> {
    let sentinels = SENTINELS.iter().filter(|_| plan.has_sentinels);
    let host = |own: &&str| {
        let server = Server::new(Rc::clone(clock));
        let others =
            SENTINELS.iter().filter(|other| *other != own).map(|other| (*other).to_owned());
        server.state.borrow_mut().sentinel = Some(Monitor {
            name: NAME,
            master: SERVERS[0].to_owned(),
            epoch: 0,
            is_in_failover: false,
            others: others.collect(),
        });
        Host::new(server, dice.another())
    };
    sentinels.map(host).collect()
}

/// Makes the second server a replica of the first.
pub fn follow(hosts: &[Rc<Host>]) {
    let [master, replica] = [0, 1].map(|host| Rc::clone(&hosts[host].server.borrow().state));
    replica.borrow_mut().is_replica = true;
    replica.borrow_mut().replicates = Some(master);
}

impl World {
    /// Changes what a Sentinel knows.
    fn of_monitor<T>(&self, sentinel: usize, act: impl FnOnce(&mut Monitor) -> T) -> T {
        let server = self.sentinels[sentinel].server.borrow();
        act(server.state.borrow_mut().sentinel.as_mut().expect("a Sentinel"))
    }
}

/// A master ends, hangs or goes on, and its replica takes over, which may lack the last writes.
pub async fn fail_over(world: Rc<World>, dice: Dice) {
    let master = world.masters()[0];
    let replica = 1 - master;
    let [old, new] = [master, replica].map(|node| world.hosts[node].server.borrow().state.clone());
    let (mut copied, copied_ms) = (old.borrow().database.clone(), world.redis_now_ms());
    if dice.hits(500) {
        world.note(|| format!("the replica of server {master} gets no more writes"));
        time::sleep(moment(&dice)).await;
    }
    world.troubles_all();
    new.borrow_mut().database = copied.clone();
    new.borrow_mut().replicates = None;
    let (host, goes_on) = (&world.hosts[master], dice.hits(300));
    if !goes_on {
        world.loses(master, &mut copied);
        // Nobody asks the new one before a Sentinel names it.
        (old.borrow_mut().is_replica, new.borrow_mut().is_replica) = (true, false);
        old.borrow_mut().replicates = Some(Rc::clone(&new));
        if dice.hits(500) {
            world.note(|| format!("server {master} is killed"));
            host.cut_all();
            host.server.borrow_mut().run += 1;
            host.weather.borrow_mut().connects =
                *dice.one_of(&[Connects::Refused, Connects::Never]);
        } else {
            world.note(|| format!("server {master} hangs"));
            host.stop(Duration::from_secs(60));
        }
        time::sleep(dice.micros(100..2_000_000)).await;
    }
    let leader = dice.below(SENTINELS.len() as u64) as usize;
    let epoch = world.of_monitor(leader, |monitor| {
        monitor.is_in_failover = true;
        monitor.epoch += 1;
        monitor.epoch
    });
    time::sleep(moment(&dice)).await;
    world.note(|| format!("server {replica} takes over from server {master}"));
    new.borrow_mut().is_replica = false;
    world.ledger.borrow_mut().places.disturbed(copied_ms, world.redis_now_ms());
    let others = (0..SENTINELS.len()).filter(|sentinel| *sentinel != leader);
    for sentinel in [leader].into_iter().chain(others) {
        let announced = world.of_monitor(sentinel, |known| known.switch(SERVERS[replica], epoch));
        world.sentinels[sentinel].announce(&announced);
        time::sleep(moment(&dice)).await;
    }
    if goes_on {
        // What it has answered since then is lost.
        let now_ms = world.redis_now_ms();
        let mut ledger = world.ledger.borrow_mut();
        ledger.places.disturbed(copied_ms, now_ms);
        ledger.histories.excuse(copied_ms, now_ms);
        drop(ledger);
        world.loses(master, &mut copied);
        host.cut_all();
    }
    old.borrow_mut().is_replica = true;
    old.borrow_mut().replicates = Some(new);
    host.weather.borrow_mut().connects = Connects::AtOnce;
    host.resume();
    world.troubles_all();
    world.ledger.borrow_mut().cut();
    world.note(|| format!("server {master} is a replica"));
    world.is_changing.set(false);
}

/// Some or all Sentinels cannot be reached for a while, which matters to no call.
pub async fn be_unreachable(world: Rc<World>, dice: Dice) {
    let away: Vec<_> = world.sentinels.iter().filter(|_| dice.hits(700)).collect();
    world.note(|| format!("{} Sentinels cannot be reached", away.len()));
    for host in &away {
        host.weather.borrow_mut().connects = *dice.one_of(&[Connects::Refused, Connects::Never]);
        host.cut_all();
    }
    time::sleep(dice.micros(1000..4_000_000)).await;
    away.iter().for_each(|host| host.weather.borrow_mut().connects = Connects::AtOnce);
    world.is_changing.set(false);
}
