//! What goes wrong: the network, the server, the clocks.

use std::{rc::Rc, time::Duration};

use tokio::{
    task::spawn_local,
    time::{self, Instant},
};
use tollkeeper_sim::{
    dice::Dice,
    network::{Connects, Fate, Weather},
    redis::{database::Database, server::Refusal},
};

use super::{BACK_WITHIN, CHANGES, World, cluster, sentinel};

const REFUSALS: [Refusal; 6] = [
    Refusal::OutOfMemory,
    Refusal::ReadOnly,
    Refusal::NoReplicas,
    Refusal::CannotSave,
    Refusal::Loading,
    Refusal::MasterDown,
];

const CONNECTS: [Connects; 4] =
    [Connects::AtOnce, Connects::Slowly, Connects::Refused, Connects::Never];

/// The longest call: three quarters of the longest timeout.
const CALLS_END_WITHIN: Duration = Duration::from_millis(301);

/// An answer that is on its way for longer than this, in microseconds, may be too late for the service.
const LATE_US: u64 = 3000;

/// A call that is on its way for longer than this, in microseconds, may come after its release.
const RELEASED_AFTER_US: u64 = 1_000_000;

/// Disturbs the world for as long as its plan says.
pub async fn happen(world: &Rc<World>, dice: &Dice) {
    let ends = Instant::now() + world.plan.lasts;
    let pause_us = world.plan.lasts.as_micros() as u64 / (world.plan.faults_max as u64 + 1);
    for _ in 0..world.plan.faults_max {
        time::sleep(dice.micros(pause_us / 2..pause_us * 3 / 2 + 2)).await;
        if Instant::now() >= ends {
            return;
        }
        begin(world, dice);
    }
    time::sleep_until(ends).await;
}

fn begin(world: &Rc<World>, dice: &Dice) {
    note_cuts(world);
    world.stopped_at.set(None);
    // What happens to one node, or to all.
    let mut struck = world.masters();
    if dice.hits(600) {
        struck = vec![*dice.one_of(&struck)];
    }
    let kinds = world.plan.kinds_of_faults();
    let kind = dice.within(if world.plan.only_changes { CHANGES..kinds } else { 0..kinds });
    let now = Some(Instant::now());
    for (node, host) in world.hosts.iter().enumerate() {
        if kind < CHANGES && struck.contains(&node) || !host.is_calm() {
            host.troubled.set(now);
        }
    }
    let struck: Vec<_> = struck.into_iter().map(|node| (node, &world.hosts[node])).collect();
    let servers = struck.iter().map(|(node, _)| *node).collect::<Vec<_>>();
    match kind {
        0..=2 => {
            let fates = (0..1 + dice.below(3)).map(|_| *dice.one_of(&Fate::ALL)).collect();
            let latest_us = *dice.one_of(&[500, 500, 3000, 20_000]);
            let weather = Weather {
                latency_us: 50..latest_us,
                share: *dice.one_of(&[5, 50, 300]),
                fates,
                stall_us: 500..*dice.one_of(&[5000, 60_000, 2_000_000]),
                connects: *dice.one_of(&CONNECTS),
            };
            world.note(|| format!("at {servers:?}: {weather:?}"));
            struck.iter().for_each(|(_, host)| *host.weather.borrow_mut() = weather.clone());
        }
        3 => {
            world.note(|| format!("the network is calm at {servers:?}"));
            struck.iter().for_each(|(_, host)| *host.weather.borrow_mut() = Weather::default());
        }
        4 => {
            let refusal = dice.hits(700).then(|| *dice.one_of(&REFUSALS));
            world.note(|| format!("Redis refuses at {servers:?}: {refusal:?}"));
            for (_, host) in struck {
                host.server.borrow().state.borrow_mut().refusal = refusal;
            }
        }
        5 => drop(spawn_local(crash(Rc::clone(world), dice.below(3) as usize))),
        6 => {
            world.note(|| format!("all connections to {servers:?} are cut"));
            struck.iter().for_each(|(_, host)| host.cut_all());
            world.ledger.borrow_mut().cut();
        }
        7 => {
            world.note(|| format!("the network forgets all connections to {servers:?}"));
            struck.iter().for_each(|(_, host)| host.forget_all());
            world.ledger.borrow_mut().cut_for_ever();
        }
        8 => {
            let stop = dice.micros(1000..*dice.one_of(&[50_000, 3_000_000]));
            world.note(|| format!("Redis stops for {stop:?} at {servers:?}"));
            if let [(node, host)] = struck[..] {
                let is_calm = host.weather.borrow().share == 0;
                world.stopped_at.set(is_calm.then(|| (Instant::now(), node)));
            }
            for (_, host) in struck {
                host.stop(stop);
            }
        }
        9 => {
            world.note(|| format!("Redis starts again, empty, at {servers:?}"));
            for (node, host) in struck {
                world.loses(node, &mut Database::default());
                world.ledger.borrow_mut().cut();
                host.server.borrow_mut().restart();
                host.cut_all();
            }
        }
        10 => {
            world.note(|| format!("Redis forgets its scripts at {servers:?}"));
            struck.iter().for_each(|(_, host)| host.server.borrow().flush_scripts());
        }
        CHANGES.. => {
            if world.begins_change() {
                let (world, dice) = (Rc::clone(world), dice.another());
                drop(match (world.plan.has_cluster, dice.hits(700)) {
                    (true, true) => spawn_local(cluster::move_slot(world, dice)),
                    (true, false) => spawn_local(cluster::fail_over(world, dice)),
                    (false, true) => spawn_local(sentinel::fail_over(world, dice)),
                    (false, false) => spawn_local(sentinel::be_unreachable(world, dice)),
                });
            }
        }
        _ => {
            let jump = Duration::from_millis(dice.below(4000)).as_micros() as i64;
            let jump = if dice.hits(500) { -jump } else { jump };
            world.note(|| format!("the clock of Redis jumps by {jump} us"));
            let before_ms = world.redis_now_ms();
            world.redis_ahead_us.set(world.redis_ahead_us.get() + jump);
            world.jumps.set(world.jumps.get() + 1);
            world.jumped_at.set(Some(Instant::now()));
            world.troubles_all();
            let (now_ms, mut ledger) = (world.redis_now_ms(), world.ledger.borrow_mut());
            ledger.places.disturbed(before_ms, now_ms);
            if jump < 0 {
                ledger.set_back(before_ms, now_ms);
            }
        }
    }
}

/// A replica is killed, and another takes its calls.
async fn crash(world: Rc<World>, place: usize) {
    let replica = world.replace(place % world.plan.replicas).await;
    let number = replica.number;
    world.note(|| format!("replica {number} is killed"));
    replica.end_at_once();
    world.ledger.borrow_mut().killed(world.redis_now_ms());
}

/// Replaces one replica after the other, as a deployment does: nothing is lost.
pub async fn restart_all(world: &World) {
    time::sleep(BACK_WITHIN).await;
    for place in 0..world.plan.replicas {
        let replica = world.replace(place).await;
        time::sleep(CALLS_END_WITHIN).await;
        replica.end().await;
        let number = replica.number;
        world.note(|| format!("replica {number} has ended"));
    }
}

/// Tells the ledger whether the weather may have cut connections or delayed calls up to now.
pub fn note_cuts(world: &World) {
    let mut ledger = world.ledger.borrow_mut();
    for host in &world.hosts {
        let weather = host.weather.borrow();
        // What a server refuses, or cannot be sent, is known not to have run.
        let is_late = weather.share > 0 || weather.latency_us.end > LATE_US;
        if is_late || host.stopped_until.get().is_some() {
            ledger.late();
        }
        for fate in weather.fates.iter().filter(|_| weather.share > 0) {
            match fate {
                Fate::CutBefore | Fate::CutInside | Fate::CutAfter => ledger.cut(),
                // The service notices such a connection when it uses it next.
                Fate::HalfOpen => ledger.cut_for_ever(),
                Fate::Stall if weather.stall_us.end > RELEASED_AFTER_US => {
                    ledger.places.unreleased(world.redis_now_ms());
                }
                Fate::Stall | Fate::StallAfter | Fate::Drip => {}
            }
        }
    }
}
