//! Clients of counters that nobody else calls, and the histories of their calls: some order of them explains every answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use tokio::time::{self, Instant};
use tollkeeper::{
    engine::{
        decision::{Decision, Outcome},
        request::{Hits, HitsMeaning, Request},
    },
    store::{Clear, CounterReading},
};
use tollkeeper_sim::dice::Dice;

use super::{
    World,
    clients::{Client, descriptor},
    linearizable::{self, Act, Event, Told},
};

/// The counters.
pub const COUNTERS: [&str; 2] = ["linear=u0", "linear=u1"];

/// Of each minute.
pub const LIMIT: u64 = 12;
pub const WINDOW_MS: u64 = 60_000;

/// For so long, a replica denies calls by an answer of Redis, unless a call through itself frees hits.
const CACHED_FOR: Duration = Duration::from_secs(1);

/// The longest pauses between two calls, in microseconds.
const PAUSES_US: [u64; 3] = [2000, 60_000, 600_000];

#[derive(Default)]
pub struct Histories {
    all: BTreeMap<String, History>,
    /// The windows in which two servers took calls for a while.
    excused: BTreeSet<u64>,
}

#[derive(Default)]
struct History {
    /// The window, if it is known.
    events: Vec<(Option<u64>, Event)>,
    /// When hits were freed last through a replica.
    freed: BTreeMap<usize, u64>,
}

impl Histories {
    fn add(&mut self, counter: &str, window: Option<u64>, event: Event) {
        self.all.entry(counter.to_owned()).or_default().events.push((window, event));
    }

    /// A call through a replica has freed hits.
    fn freed(&mut self, counter: &str, replica: usize, at: u64) {
        self.all.entry(counter.to_owned()).or_default().freed.insert(replica, at);
    }

    /// A server has lost writes. This many hits of the window are still counted.
    pub fn lost(&mut self, counter: &str, start_ms: u64, used: u64, at: Duration) {
        let at = at.as_micros() as u64;
        let lose = Event { from: at, to: Some(at), act: Act::Lose(used), told: None };
        self.add(counter, Some(start_ms / WINDOW_MS), lose);
    }

    /// Nothing is claimed of the windows between these times, since two servers took their calls. The clock may have been set
    /// back meanwhile.
    pub fn excuse(&mut self, one_ms: u64, other_ms: u64) {
        self.excused.extend(one_ms.min(other_ms) / WINDOW_MS..=one_ms.max(other_ms) / WINDOW_MS);
    }

    /// What no order explains, in windows that are not excused.
    pub fn broken(&self, is_excused: impl Fn(u64) -> bool) -> Option<String> {
        self.all.iter().find_map(|(counter, History { events, .. })| {
            let mut windows: Vec<u64> = events.iter().filter_map(|(window, _)| *window).collect();
            windows.sort_unstable();
            windows.dedup();
            windows.retain(|window| {
                !self.excused.contains(window) && !is_excused((window + 1) * WINDOW_MS)
            });
            windows.into_iter().find_map(|window| {
                let may_be_of = |known: Option<u64>| known.is_none_or(|known| known == window);
                let events = events.iter().filter(|(known, _)| may_be_of(*known));
                let events: Vec<Event> = events.map(|(_, event)| *event).collect();
                let wrong = linearizable::check(LIMIT, &events).err()?;
                Some(format!("no order of the calls on {counter} explains {wrong:?}"))
            })
        })
    }
}

pub struct Watcher {
    client: Client,
    world: Rc<World>,
    dice: Dice,
}

impl Watcher {
    pub fn new(number: usize, world: &Rc<World>, dice: Dice) -> Self {
        let client = Client::new(number, world, dice.another());
        Self { client, world: Rc::clone(world), dice }
    }

    /// Calls until the world ends.
    pub async fn call(self) {
        let mut pause_us = PAUSES_US[0];
        while !self.world.ends.get() {
            if self.dice.hits(100) {
                pause_us = *self.dice.one_of(&PAUSES_US);
            }
            time::sleep(self.dice.micros(500..pause_us)).await;
            let counter = *self.dice.one_of(&COUNTERS);
            let hits = 1 + self.dice.below(4);
            match self.dice.below(20) {
                0..=11 => self.ask(counter, Act::Take(hits), Hits::Charge(hits)).await,
                12..=14 => self.ask(counter, Act::Check, Hits::Check).await,
                15..=17 => self.ask(counter, Act::Refund(hits), Hits::Refund(hits)).await,
                18 => self.read(counter, Act::Check, Clear::No).await,
                _ => self.read(counter, Act::Reset, Clear::Yes).await,
            }
        }
    }

    /// The time since the world began, in microseconds.
    fn micros(&self, at: Instant) -> u64 {
        at.duration_since(self.world.began).as_micros() as u64
    }

    async fn ask(&self, counter: &str, act: Act, hits: Hits) {
        let (began, began_ms) = (Instant::now(), self.world.redis_now_ms());
        let descriptors = vec![descriptor(counter, hits, &[])];
        let counters = [counter.to_owned()];
        let event = || format!("{act:?} on {counter}");
        let (answer, decision) =
            self.client.ask(&counters, descriptors, HitsMeaning::Charged, event).await;
        let (from, to) = (self.micros(began), self.micros(Instant::now()));
        let told = decision.as_ref().and_then(told);
        let histories = &mut self.world.ledger.borrow_mut().histories;
        let replica = answer.replica;
        match (answer.at, told) {
            (Some(at), Some(_)) => {
                if matches!(act, Act::Refund(_)) {
                    histories.freed(counter, replica, to);
                }
                let event = Event { from, to: Some(to), act, told };
                histories.add(counter, Some(at / WINDOW_MS), event);
            }
            (None, Some(Told::Over)) => {
                let cached_us = CACHED_FOR.as_micros() as u64;
                let freed = histories.all.get(counter).and_then(|known| known.freed.get(&replica));
                let earliest = from.saturating_sub(cached_us).max(freed.copied().unwrap_or(0));
                let window = began_ms / WINDOW_MS;
                let is_known = began_ms.saturating_sub(2000) / WINDOW_MS == window
                    && self.world.redis_now_ms() / WINDOW_MS == window;
                let jumped_at = self.world.jumped_at.get();
                if is_known && jumped_at.is_none_or(|at| at + 2 * CACHED_FOR < began) {
                    let event = Event { from: earliest, to: Some(to), act, told };
                    histories.add(counter, Some(window), event);
                }
            }
            // It was not sent, and what is not a refund is not kept.
            _ if answer.was_at_once && !matches!(act, Act::Refund(_)) => {}
            _ => histories.add(counter, None, Event { from, to: None, act, told: None }),
        }
    }

    /// Reads a counter as an operator does, and clears it at times.
    async fn read(&self, counter: &str, act: Act, clear: Clear) {
        let (began, began_ms) = (Instant::now(), self.world.redis_now_ms());
        let replica = &*Rc::clone(self.dice.one_of(&self.world.replicas()));
        let jumps = self.world.jumps.get();
        let descriptors = vec![descriptor(counter, Hits::Check, &[])];
        let request = Request { domain: "shop".to_owned(), descriptors };
        let readings = replica.limiter.read_counters(&request, clear).await;
        let (from, to) = (self.micros(began), self.micros(Instant::now()));
        self.world
            .note(|| format!("{act:?} of {counter} at replica {}: {readings:?}", replica.number));
        let (window, now_ms) = (began_ms / WINDOW_MS, self.world.redis_now_ms());
        let histories = &mut self.world.ledger.borrow_mut().histories;
        let is_known = now_ms / WINDOW_MS == window && jumps == self.world.jumps.get();
        match &readings[..] {
            [(_, CounterReading::State(state))] if is_known && !replica.has_ended.get() => {
                if act == Act::Reset {
                    histories.freed(counter, replica.number, to);
                }
                let told = Some(Told::of(state.remaining));
                histories.add(counter, Some(window), Event { from, to: Some(to), act, told });
            }
            _ if act == Act::Reset => {
                histories.add(counter, None, Event { from, to: None, act, told: None });
            }
            _ => {}
        }
    }
}

/// What a decision says of the counter; `None` if its counter has not judged it.
fn told(decision: &Decision) -> Option<Told> {
    let [status] = &decision.statuses[..] else { panic!("{decision:?}") };
    match &status.outcome {
        Outcome::Within { remaining, .. } => Some(Told::Within(*remaining)),
        over if !over.is_by_failure_mode() => Some(Told::Over),
        _ => None,
    }
}
