//! Each client makes one call after the other, and gives the ledger the answers.

use std::{rc::Rc, time::Duration};

use tokio::time::{self, Instant};
use tollkeeper::{
    engine::{
        decision::{Code, Decision},
        request::{Descriptor, Entry, Hits, HitsMeaning, Request},
    },
    limiter::Undecided,
    store::guard::Arrival,
};
use tollkeeper_sim::dice::Dice;

use super::{
    BACK_WITHIN, World,
    ledger::{Answer, Call},
};

/// After this time it may hang, for all that the client cares.
const TIMEOUTS_MS: [u64; 4] = [20, 40, 100, 400];

/// A timer of the world fires up to a millisecond late.
const TIMER: Duration = Duration::from_millis(1);

/// Calls until the world ends.
pub async fn call(number: usize, world: Rc<World>, dice: Dice) {
    while !world.ends.get() {
        time::sleep(dice.micros(500..60_000)).await;
        let replica = dice.one_of(&world.replicas);
        let (call, is_done) = random_call(&dice);
        let timeout = Duration::from_millis(*dice.one_of(&TIMEOUTS_MS));
        let began = Instant::now();
        let arrival = Arrival { at: began, timeout: Some(timeout) };
        let meaning = if is_done { HitsMeaning::Done } else { HitsMeaning::Charged };
        let limiter = &replica.limiter;
        let request = request(&call);
        let decided =
            limiter.decide_by(&limiter.deciding(), &request, meaning, arrival, None).await;
        let took = began.elapsed();
        let answer = answer(&decided, took);
        world.note(|| {
            let counters = call.counters.join(" and ");
            let (replica, hits, kind) = (replica.number, call.hits, if is_done { "debits" } else { "charges" });
            format!("client {number} {kind} {hits} on {counters} at replica {replica}: {answer:?} after {took:?}")
        });
        let mut ledger = world.ledger.borrow_mut();
        // Of what a caller waits, three quarters are for the decision.
        if took > timeout * 3 / 4 + TIMER {
            ledger.breaks(format!("a call was answered after {took:?} of {timeout:?}"));
        }
        let is_back = world.calm_since.get().is_some_and(|since| began >= since + BACK_WITHIN);
        // Other calls may be denied by the over-limit cache.
        if is_back && is_done && answer.at.is_none() {
            ledger.breaks(format!(
                "{BACK_WITHIN:?} after the faults a debit has no answer of the store"
            ));
        }
        ledger.answered(call, answer);
    }
}

/// A call, and whether it is for work that is done.
fn random_call(dice: &Dice) -> (Call, bool) {
    let user = |key: &str, users: u64| format!("{key}=u{}", dice.below(users));
    match dice.below(10) {
        0..=4 => (Call { counters: vec![user("second", 3)], hits: 1 + dice.below(2) }, false),
        5..=6 => {
            let counters = vec![user("second", 3), user("minute", 2)];
            (Call { counters, hits: 1 }, false)
        }
        7 => (Call { counters: vec![user("minute", 2)], hits: 1 + dice.below(3) }, false),
        _ => (Call { counters: vec![user("work", 3)], hits: 1 + dice.below(5) }, true),
    }
}

fn request(call: &Call) -> Request {
    let descriptor = |counter: &String| {
        let (key, value) = counter.split_once('=').unwrap();
        let entry = Entry { key: key.to_owned().into(), value: value.to_owned().into() };
        let hits = Hits::Charge(call.hits);
        Descriptor { entries: vec![entry], hits, states_hits: false, limit: None }
    };
    Request {
        domain: "shop".to_owned(),
        descriptors: call.counters.iter().map(descriptor).collect(),
    }
}

fn answer(decided: &Result<Decision, Undecided>, took: Duration) -> Answer {
    let was_at_once = took.is_zero();
    match decided {
        Ok(decision) => Answer {
            admitted: Some(decision.code == Code::Ok),
            at: decision.at.map(|at| at.as_millis()),
            was_at_once,
        },
        Err(_) => Answer { admitted: None, at: None, was_at_once },
    }
}
