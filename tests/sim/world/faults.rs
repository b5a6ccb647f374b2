//! What goes wrong: the network, the server, the clocks.

use std::{rc::Rc, time::Duration};

use tokio::{
    task::spawn_local,
    time::{self, Instant},
};
use tollkeeper_sim::{
    dice::Dice,
    network::{Connects, Fate, Weather},
    redis::server::Refusal,
};

use super::{BACK_WITHIN, World};

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
    let host = &world.host;
    note_cuts(world);
    world.stopped_at.set(None);
    match dice.below(12) {
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
            world.note(|| format!("{weather:?}"));
            *host.weather.borrow_mut() = weather;
        }
        3 => {
            world.note(|| "the network is calm".to_owned());
            *host.weather.borrow_mut() = Weather::default();
        }
        4 => {
            let refusal = dice.hits(700).then(|| *dice.one_of(&REFUSALS));
            world.note(|| format!("Redis refuses: {refusal:?}"));
            host.server.borrow().state.borrow_mut().refusal = refusal;
        }
        5 => drop(spawn_local(crash(Rc::clone(world), dice.below(3) as usize))),
        6 => {
            world.note(|| "all connections are cut".to_owned());
            host.cut_all();
            world.ledger.borrow_mut().cut();
        }
        7 => {
            world.note(|| "the network forgets all connections".to_owned());
            host.forget_all();
            world.ledger.borrow_mut().cut_for_ever();
        }
        8 => {
            let stop = dice.micros(1000..*dice.one_of(&[50_000, 3_000_000]));
            world.note(|| format!("Redis stops for {stop:?}"));
            let is_calm = host.weather.borrow().share == 0;
            world.stopped_at.set(is_calm.then(Instant::now));
            host.stopped_until.set(Some(Instant::now() + stop));
        }
        9 => {
            world.note(|| "Redis starts again, empty".to_owned());
            let (at_ms, mut ledger) = (world.redis_now_ms(), world.ledger.borrow_mut());
            ledger.lost_data(at_ms);
            ledger.places.disturbed(at_ms, at_ms);
            ledger.cut();
            host.server.borrow_mut().restart();
            host.cut_all();
        }
        10 => {
            world.note(|| "Redis forgets its scripts".to_owned());
            host.server.borrow().flush_scripts();
        }
        _ => {
            let jump = Duration::from_millis(dice.below(4000)).as_micros() as i64;
            let jump = if dice.hits(500) { -jump } else { jump };
            world.note(|| format!("the clock of Redis jumps by {jump} us"));
            let before_ms = world.redis_now_ms();
            world.redis_ahead_us.set(world.redis_ahead_us.get() + jump);
            world.jumps.set(world.jumps.get() + 1);
            world.jumped_at.set(Some(Instant::now()));
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

/// Tells the ledger if the present weather may have cut connections until now.
pub fn note_cuts(world: &World) {
    let weather = world.host.weather.borrow();
    let mut ledger = world.ledger.borrow_mut();
    for fate in weather.fates.iter().filter(|_| weather.share > 0) {
        match fate {
            Fate::CutBefore | Fate::CutInside | Fate::CutAfter => ledger.cut(),
            // The service notices such a connection when it uses it next.
            Fate::HalfOpen => ledger.cut_for_ever(),
            Fate::Stall | Fate::StallAfter | Fate::Drip => {}
        }
    }
}
