//! An operator, who bans calls for a time, which every replica follows, and none longer than that; and who resets counters.

use std::{rc::Rc, sync::Arc, time::Duration};

use tokio::{
    task::spawn_local,
    time::{self, Instant},
};
use tollkeeper::{
    engine::{
        directive::DirectiveAction,
        request::{Entry, Hits, Request},
    },
    overrides::{NewOverride, Override},
    store::{Clear, CounterReading},
};
use tollkeeper_sim::dice::Dice;

use super::{World, clients::descriptor, replica::Replica};

/// Until then an override is in force on all replicas.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(1);

/// How exactly a replica knows Redis's clock: by half the time that an answer takes.
const CLOCKS_DIFFER: Duration = Duration::from_millis(2);
const CLOCKS_DIFFER_IN_FAULTS: Duration = Duration::from_millis(550);

/// Sets overrides until the world ends.
pub async fn bans(world: Rc<World>, dice: Dice) {
    while !world.ends.get() {
        time::sleep(dice.micros(50_000..3_000_000)).await;
        let replica = &*Rc::clone(dice.one_of(&world.replicas()));
        let value = format!("u{}", dice.below(3)).into();
        let new = NewOverride {
            domain: "shop".to_owned(),
            entries: vec![Entry { key: "work".into(), value }],
            action: DirectiveAction::Times(2),
            lasts: Duration::from_secs(1 + dice.below(3)),
            because: "a simulation".to_owned(),
            dry_run: false,
        };
        let (began, is_back) = (Instant::now(), world.is_back());
        let set = replica.limiter.overrides().set(&new, "an operator".to_owned()).await;
        let (number, took) = (replica.number, began.elapsed());
        world.note(|| match &set {
            Ok(one) => {
                let id = &one.directive.id;
                format!("replica {number} has set the override {id} after {took:?}")
            }
            Err(error) => format!("replica {number} has set no override after {took:?}: {error}"),
        });
        match set {
            Ok(one) => {
                // One that cannot be read at once is found later, as other replicas find it.
                if is_back && !is_in_force(replica, &one) {
                    world
                        .breaks(format!("replica {number} has set {one:?}, which is not in force"));
                }
                spawn_local(follow(one, Rc::clone(&world), is_back));
            }
            Err(error) if is_back && !replica.has_ended.get() => {
                world.breaks(format!("an operator was told {error}"));
            }
            Err(_) => {}
        }
    }
}

/// Resets hot counters until the world ends.
pub async fn resets(world: Rc<World>, dice: Dice) {
    while !world.ends.get() {
        time::sleep(dice.micros(1_000_000..10_000_000)).await;
        let replica = &*Rc::clone(dice.one_of(&world.replicas()));
        let counter = format!("hot=u{}", dice.below(2));
        let descriptors = vec![descriptor(&counter, Hits::Check, &[])];
        let entries = descriptors[0].entries.clone();
        let request = Request { domain: "shop".to_owned(), descriptors };
        let shown = replica.limiter.read_counters(&request, Clear::No).await;
        let from_ms = world.redis_now_ms();
        let readings = replica.limiter.read_counters(&request, Clear::Yes).await;
        // Without an answer it may happen later.
        let is_done = matches!(readings[..], [(_, CounterReading::State(_))]);
        let credit = match &shown[..] {
            [(_, CounterReading::State(state))] => state.credit,
            _ => 0,
        };
        if is_done && credit > 0 {
            *replica.reset.borrow_mut() = Some((entries, Instant::now()));
        }
        let to_ms = if is_done { world.redis_now_ms() } else { u64::MAX };
        world.note(|| format!("replica {} has reset {counter}: {is_done}", replica.number));
        world.ledger.borrow_mut().reset(counter, from_ms, to_ms);
    }
}

/// Checks when an override is in force.
async fn follow(one: Arc<Override>, world: Rc<World>, is_back: bool) {
    let (set_at, until_ms) = (Instant::now(), one.directive.until.as_millis());
    let left = |world: &World| Duration::from_millis(until_ms.saturating_sub(world.redis_now_ms()));
    let lasts = left(&world);
    if is_back && lasts > IN_FORCE_WITHIN + CLOCKS_DIFFER {
        time::sleep_until(set_at + IN_FORCE_WITHIN).await;
        for replica in world.replicas().iter().filter(|replica| !is_in_force(replica, &one)) {
            let number = replica.number;
            world.breaks(format!("{IN_FORCE_WITHIN:?} later replica {number} lacks {one:?}"));
        }
    }
    let differ = if is_back { CLOCKS_DIFFER } else { CLOCKS_DIFFER_IN_FAULTS };
    time::sleep_until(set_at + lasts + differ).await;
    // A replica that cannot ask does not know of a jump.
    let knows_clock = is_back || world.jumps.get() == 0;
    for replica in &world.replicas() {
        if knows_clock && is_in_force(replica, &one) {
            let number = replica.number;
            world.breaks(format!("replica {number} has {one:?} in force after its end"));
        }
    }
}

fn is_in_force(replica: &Replica, one: &Override) -> bool {
    let in_force = replica.limiter.overrides().in_force();
    let all = in_force.as_ref().map_or(&[][..], |directives| directives.all());
    all.iter().any(|known| known.id == one.directive.id)
}
