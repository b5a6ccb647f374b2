//! Each client makes one call after the other, and gives the ledger the answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use tokio::time::{self, Instant};
use tollkeeper::{
    engine::{
        decision::{Code, Committed, Decision, Status},
        ledger::CommitOutcome,
        request::{Descriptor, Entry, Hits, HitsMeaning, Request},
    },
    limiter::Undecided,
    store::guard::Arrival,
};
use tollkeeper_sim::dice::Dice;

use super::{
    BACK_WITHIN, World,
    ledger::{Answer, Call, Commit, Kind},
    replica::{CONNECTIONS_MAX, Replica},
};

/// After this time it may hang, for all that the client cares.
const TIMEOUTS_MS: [u64; 4] = [20, 40, 100, 400];
const TIMEOUT_MIN: Duration = Duration::from_millis(TIMEOUTS_MS[0]);

/// A timer of the world fires up to a millisecond late.
const TIMER: Duration = Duration::from_millis(1);

/// Credit of a window that a jump of Redis's clock has ended is spent for so long, at most. After a reset, a replica asks for
/// none for so long.
const CREDIT_LIVES: Duration = Duration::from_millis(200);

/// The rules whose calls have one key on each counter.
const ONE_KEY: [&str; 5] = ["second", "minute", "hot", "work", "linear"];

/// The rules whose calls have tokens.
const HAVE_TOKENS: [&str; 2] = ["tokens", "slots"];

/// How many calls, one after the other, may wait for a server that has stopped.
const WAIT_IN_VAIN: u32 = 8;

/// A replica has a connection to a server that has answered it so shortly before.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// How long a new replica may take until it has a connection to each server.
const CONNECTS_WITHIN: Duration = Duration::from_millis(200);

/// The longest pauses between two calls, in microseconds: calls come alone and in crowds.
const PAUSES_US: [u64; 4] = [3000, 30_000, 600_000, 3_000_000];

/// Work under way: the number of its take in the ledger, and of its place.
struct Work {
    token: String,
    counters: Vec<String>,
    take: Option<usize>,
    place: Option<usize>,
    used: u64,
}

pub struct Client {
    number: usize,
    world: Rc<World>,
    dice: Dice,
    working: Vec<Work>,
    /// The hits of finished work that the store has counted, by counter: at most these can be refunded.
    counted: BTreeMap<String, u64>,
}

impl Client {
    pub fn new(number: usize, world: &Rc<World>, dice: Dice) -> Self {
        let (working, counted) = (Vec::new(), BTreeMap::new());
        Self { number, world: Rc::clone(world), dice, working, counted }
    }

    /// Calls until the world ends.
    pub async fn call(mut self) {
        let mut pause_us = PAUSES_US[0];
        while !self.world.ends.get() {
            if self.dice.hits(100) {
                pause_us = *self.dice.one_of(&PAUSES_US);
            }
            time::sleep(self.dice.micros(500..pause_us)).await;
            if self.world.plan.leases && self.dice.hits(30) {
                self.crowd().await;
            }
            match self.dice.below(16) {
                0..=7 => self.charge().await,
                8..=9 => self.debit(self.counter("work", 3)).await,
                10 => self.refund().await,
                11 => self.hold_without_token().await,
                12..=13 => self.take().await,
                _ => self.commit().await,
            }
        }
    }

    fn counter(&self, rule: &str, users: u64) -> String {
        format!("{rule}=u{}", self.dice.below(users))
    }

    /// Calls so often on one counter that replicas lease its hits.
    async fn crowd(&self) {
        let counter = self.counter("hot", 2);
        for _ in 0..50 + self.dice.below(250) {
            let call = Call { counters: vec![counter.clone()], hits: 1, kind: Kind::Charge };
            self.make(call, Hits::Charge(1), HitsMeaning::Charged).await;
            time::sleep(self.dice.micros(100..2000)).await;
        }
    }

    /// Leases hits of a hot counter again and again, until the world ends, and spends them as a process of its own would.
    pub async fn lease_all(self) {
        while !self.world.ends.get() {
            time::sleep(self.dice.micros(1000..1_000_000)).await;
            let counter = self.counter("hot", 2);
            let want = 1 + self.dice.below(12);
            let asked = Instant::now();
            let descriptors = vec![descriptor(&counter, Hits::Charge(want), &[])];
            let event = || format!("lease of {want} on {counter}");
            let counters = std::slice::from_ref(&counter);
            let (answer, decided) =
                self.ask(counters, descriptors, HitsMeaning::Lease, event).await;
            let call = |hits| Call { counters: counters.to_vec(), hits, kind: Kind::Charge };
            let Some(TakenLease { granted, token, life, made }) = decided.and_then(leased) else {
                // It may have been charged, or not one hit fitted.
                let hits = if answer.at.is_some() { 1 } else { want };
                self.world.ledger.borrow_mut().answered(call(hits), answer);
                continue;
            };
            let mut spent = 0;
            while spent < granted && !self.dice.hits(60) {
                time::sleep(self.dice.micros(10..60_000)).await;
                if asked.elapsed() >= life {
                    break;
                }
                spent += 1;
                let jumped_at = self.world.jumped_at.get().filter(|at| *at >= asked);
                let at = jumped_at.map_or(self.world.redis_now_ms(), |_| made);
                let answer =
                    Answer { admitted: Some(true), at: Some(at), by_credit: true, ..answer };
                self.world.ledger.borrow_mut().answered(call(1), answer);
            }
            if spent == granted || self.dice.hits(50) {
                continue;
            }
            time::sleep(self.dice.micros(1..20_000)).await;
            let hold = [("hold.commit", token), ("hold.used", spent.to_string())];
            for _ in 0..=self.dice.below(3) / 2 {
                let descriptors = vec![descriptor("commit=", Hits::Check, &hold)];
                let event = || format!("{spent} of the lease of {granted} on {counter} are spent");
                self.ask(counters, descriptors, HitsMeaning::Charged, event).await;
            }
        }
    }

    async fn charge(&self) {
        let counters = match self.dice.below(4) {
            0 => vec![self.counter("second", 3)],
            1 => vec![self.counter("minute", 2)],
            2 => vec![self.counter("second", 3), self.counter("minute", 2)],
            _ => vec![self.counter("hot", 2), self.counter("minute", 2)],
        };
        let hits = 1 + self.dice.below(2);
        let call = Call { counters, hits, kind: Kind::Charge };
        self.make(call, Hits::Charge(hits), HitsMeaning::Charged).await;
    }

    pub async fn debit(&mut self, counter: String) {
        let hits = 1 + self.dice.below(5);
        let call = Call { counters: vec![counter.clone()], hits, kind: Kind::Debit };
        let answer = self.make(call, Hits::Charge(hits), HitsMeaning::Done).await;
        if answer.at.is_some() {
            *self.counted.entry(counter).or_default() += hits;
        }
    }

    /// Gives back a part of what was counted.
    async fn refund(&mut self) {
        let counter = self.counter("work", 3);
        let Some(counted) = self.counted.get_mut(&counter).filter(|counted| **counted > 0) else {
            return;
        };
        let hits = 1 + self.dice.below(*counted);
        *counted -= hits;
        let call = Call { counters: vec![counter], hits, kind: Kind::Refund };
        self.make(call, Hits::Refund(hits), HitsMeaning::Charged).await;
    }

    /// Holds an estimate beside a counter, or ends the oldest of such holds: what it used counts in any case.
    async fn hold_without_token(&self) {
        let (counters, used) = (vec![self.counter("anonymous", 2)], 2 + self.dice.below(19));
        let (hits, asked) = *self.dice.one_of(&[(0, Hits::Check), (used, Hits::Charge(used))]);
        let call = Call { counters, hits, kind: Kind::Debit };
        self.make(call, asked, HitsMeaning::Charged).await;
    }

    /// Makes a call, and gives the ledger its answer.
    async fn make(&self, call: Call, hits: Hits, meaning: HitsMeaning) -> Answer {
        let descriptors = call.counters.iter().map(|counter| descriptor(counter, hits, &[]));
        let (descriptors, asked_ms) = (descriptors.collect(), self.world.redis_now_ms());
        let event = || format!("{call:?}");
        let (mut answer, _) = self.ask(&call.counters, descriptors, meaning, event).await;
        if answer.is_split && asked_ms / 1000 != self.world.redis_now_ms() / 1000 {
            // Its parts may be in the windows of different seconds.
            answer.at = None;
        }
        self.world.ledger.borrow_mut().answered(call, answer);
        answer
    }

    /// Takes a place, or holds an estimate, or both.
    async fn take(&mut self) {
        let estimate = 10 + self.dice.below(190);
        let counter = self.dice.hits(700).then(|| self.counter("tokens", 2));
        let slot = (counter.is_none() || self.dice.hits(300)).then(|| self.counter("slots", 2));
        let now_ms = self.world.redis_now_ms();
        let place =
            slot.as_ref().map(|slot| self.world.ledger.borrow_mut().places.asked(slot, now_ms));
        let hold = [("hold.estimate", estimate.to_string())];
        let descriptors = counter.iter().map(|counter| descriptor(counter, Hits::Charge(1), &hold));
        let slots = slot.iter().map(|slot| descriptor(slot, Hits::Charge(1), &[]));
        let event = || format!("take of {estimate} on {counter:?} and {slot:?}");
        let counters: Vec<String> = counter.iter().chain(&slot).cloned().collect();
        let descriptors = descriptors.chain(slots).collect();
        let (answer, decided) = self.ask(&counters, descriptors, HitsMeaning::Charged, event).await;
        let token = decided.and_then(|decision| decision.token);
        let used = self.dice.below(estimate + 1);
        let ledger = &mut *self.world.ledger.borrow_mut();
        if let Some(place) = place {
            let admitted = answer.admitted == Some(true);
            // Which of two limits has denied it is not known.
            let at = answer.at.filter(|_| admitted || counter.is_none());
            ledger.places.answered(place, admitted, at, self.world.redis_now_ms());
        }
        let take = counter.map(|counter| {
            ledger.check_limit(&mut self.world.database(), &counter);
            ledger.took(counter, estimate, used, answer)
        });
        if answer.at.is_some() && answer.admitted == Some(true) {
            let token = token.expect("a call that holds hits gets a token");
            self.working.push(Work { token, counters, take, place, used });
        }
    }

    /// Commits a take: once, several times or never.
    async fn commit(&mut self) {
        if self.working.is_empty() {
            return;
        }
        let index = self.dice.below(self.working.len() as u64) as usize;
        let Work { token, counters, used, take, place } = &self.working[index];
        let (take, place) = (*take, *place);
        if let Some(place) = place {
            let now_ms = self.world.redis_now_ms();
            self.world.ledger.borrow_mut().places.may_leave(place, now_ms);
        }
        let hold = [("hold.commit", token.clone()), ("hold.used", used.to_string())];
        let descriptor = descriptor("commit=", Hits::Check, &hold);
        let event = || format!("commit of {used} of the take {take:?} and the place {place:?}");
        let (answer, decided) =
            self.ask(counters, vec![descriptor], HitsMeaning::Charged, event).await;
        let commits = decided.map_or_else(Vec::new, |decision| decision.commits);
        let ledger = &mut *self.world.ledger.borrow_mut();
        let told = |is_place: bool| {
            let ours = |commit: &&Committed| commit.limit.counts_calls() == is_place;
            commits.iter().find(ours).and_then(|commit| commit.outcome)
        };
        if let Some(take) = take {
            ledger.committed(
                take,
                match told(false) {
                    Some(CommitOutcome::Applied) => Commit::Applied,
                    Some(CommitOutcome::Repeated) => Commit::Repeated,
                    Some(CommitOutcome::Late) => Commit::Unread,
                    // Its caller got an error: the commit may have counted or not.
                    None if !answer.was_heard || answer.admitted.is_none() => Commit::Lost,
                    None => Commit::Kept,
                },
            );
        }
        if let Some(place) = place.filter(|_| told(true).is_some()) {
            ledger.places.left(place, self.world.redis_now_ms());
        }
        if self.dice.hits(600) {
            self.working.swap_remove(index);
        }
    }

    /// Asks a replica, and checks that its answer comes in time.
    pub async fn ask(
        &self,
        counters: &[String],
        descriptors: Vec<Descriptor>,
        meaning: HitsMeaning,
        event: impl Fn() -> String,
    ) -> (Answer, Option<Decision>) {
        let (world, number) = (&self.world, self.number);
        let (nodes, asked) = (world.nodes_of(counters), world.ledger.borrow_mut().asked());
        let (asked_ms, jumps) = (world.redis_now_ms(), world.jumps.get());
        // What reads several keys of a slot that moves waits until all have moved.
        let has_one_key = |counter: &String| ONE_KEY.iter().any(|rule| counter.starts_with(rule));
        let has_hold =
            |own: &Descriptor| own.entries.iter().any(|one| one.key.starts_with(b"hold."));
        let may_wait = !counters.iter().all(has_one_key) || descriptors.iter().any(has_hold);
        let was_changing = world.is_changing.get();
        let replica = &*Rc::clone(self.dice.one_of(&world.replicas()));
        let has_answered = |node: &usize| replica.seen[*node].answered.get().is_some();
        let has_connections = nodes.iter().all(has_answered);
        let limiter = &replica.limiter;
        let timeout = Duration::from_millis(*self.dice.one_of(&TIMEOUTS_MS));
        let (began, is_back) = (Instant::now(), world.is_back());
        let arrival = Arrival { at: began, timeout: Some(timeout) };
        let request = Request { domain: "shop".to_owned(), descriptors };
        let by = limiter.deciding();
        let decided = limiter.decide_by(&by, &request, meaning, arrival, None).await;
        let took = began.elapsed();
        if replica.has_ended.get() {
            world.note(|| format!("client {number} hears nothing of replica {}", replica.number));
            return (Answer::NONE, None);
        }
        let mut answer = answer(&decided, took);
        (answer.asked, answer.replica) = (asked, replica.number);
        answer.is_split = world.plan.has_cluster && counters.len() > 1;
        let (known_ms, at) =
            (asked_ms..=world.redis_now_ms(), decided.as_ref().ok().and_then(|one| one.at));
        let is_known = at.is_none_or(|at| known_ms.contains(&at.as_millis()));
        if !answer.by_credit && !is_known && jumps == world.jumps.get() {
            world.breaks(format!("what was asked in {known_ms:?} was decided at {at:?}"));
        }
        // By the world's own knowledge of Redis's clock: the window that it counts in is the present one.
        let has_jumped = world.jumped_at.get().is_some_and(|at| at.elapsed() <= CREDIT_LIVES);
        if answer.by_credit && !has_jumped {
            answer.at = Some(world.redis_now_ms());
        }
        let is_reset = replica.reset.borrow().as_ref().is_some_and(|(entries, at)| {
            let is_own = request.descriptors.iter().any(|own| own.entries == *entries);
            is_own && *at < began && began < *at + CREDIT_LIVES
        });
        if answer.by_credit && is_reset {
            world.breaks(format!("replica {} spends credit behind a reset", replica.number));
        }
        let has_token = |counter: &String| HAVE_TOKENS.iter().any(|rule| counter.starts_with(rule));
        let has_token = meaning == HitsMeaning::Lease || counters.iter().any(has_token);
        if decided.as_ref().is_ok_and(|decision| decision.token.is_some()) {
            replica.signs.set(true);
        }
        let asked_before = world.asked_before(counters, replica.began);
        if !answer.by_credit && (!has_token || replica.signs.get()) {
            self.check_breaker(replica, &(&nodes | &asked_before), began, answer, meaning);
        }
        let seen: Vec<_> = nodes.iter().map(|node| &replica.seen[*node].refuses_since).collect();
        if answer.by_credit {
            // It says nothing of the store.
        } else if answer.at.is_some() || !answer.was_at_once {
            seen.iter().for_each(|refuses_since| refuses_since.set(None));
        } else if meaning == HitsMeaning::Done
            && let [refuses_since] = seen[..]
            && refuses_since.get().is_none()
        {
            // Other calls may be answered by the over-limit cache.
            refuses_since.set(Some(began));
        }
        let refuses = |since: Option<Instant>| since.is_some_and(|since| since < began);
        answer.was_at_once &= seen.iter().all(|refuses_since| refuses(refuses_since.get()));
        world.note(|| {
            let event = event();
            let replica = replica.number;
            format!("client {number} at replica {replica}: {event}: {answer:?} after {took:?}")
        });
        // Asked as one call where a slot was, then in parts there and where it is, there with the text of a script: the shortest
        // time may be too short for that.
        let is_sent_on = answer.is_split && !asked_before.is_empty() && timeout == TIMEOUT_MIN;
        let waits = may_wait && (was_changing || world.is_changing.get()) || is_sent_on;
        let is_missed = has_connections && !waits && is_without_store(answer, meaning, took);
        if is_missed && world.is_well(None, Instant::now()) {
            world.breaks("nothing is wrong, and a call has no answer of the store".to_owned());
        }
        let mut ledger = world.ledger.borrow_mut();
        // Of what a caller waits, three quarters are for the decision.
        if took > timeout * 3 / 4 + TIMER {
            ledger.breaks(format!("a call was answered after {took:?} of {timeout:?}"));
        }
        let is_new = !has_connections && replica.began.elapsed() < CONNECTS_WITHIN;
        if is_back && !is_new && is_without_store(answer, meaning, took) {
            replica.late.set(replica.late.get() + 1);
            let connections = CONNECTIONS_MAX * world.hosts.len() as u32;
            let most = if ledger.has_half_open() { connections } else { 0 };
            if replica.late.get() > most {
                ledger.breaks(format!(
                    "{BACK_WITHIN:?} after the faults a call has no answer of the store"
                ));
            }
        }
        (answer, decided.ok())
    }

    /// If a server has answered a replica until it stood still, a few calls wait in vain. Then the breaker is open, and answers
    /// are at once. Calls on counters of other servers do not wait.
    fn check_breaker(
        &self,
        replica: &Replica,
        nodes: &BTreeSet<usize>,
        began: Instant,
        answer: Answer,
        meaning: HitsMeaning,
    ) {
        let (world, now) = (&self.world, Instant::now());
        if let (Some(node), 1) = (nodes.first(), nodes.len())
            && answer.at.is_some()
        {
            replica.seen[*node].answered.set(Some(now));
        }
        // With Sentinels, a replica may call the server that was the master before.
        let stopped_at = world.stopped_at.get().filter(|_| !world.plan.has_sentinels);
        let Some((at, stopped)) = stopped_at.filter(|(at, _)| *at < began) else { return };
        let has_answered = |node: &usize| {
            let answered = replica.seen[*node].answered.get();
            answered.is_some_and(|answered| answered + ANSWERED_WITHIN >= at)
        };
        if world.hosts[stopped].stopped_until.get() <= Some(now) || !nodes.iter().all(has_answered)
        {
            return;
        }
        if !nodes.contains(&stopped) {
            let is_well = !world.is_changing.get() && world.is_well(Some(stopped), at);
            if is_well && is_without_store(answer, meaning, now - began) {
                world.breaks(format!(
                    "server {stopped} stands still, and a call on {nodes:?} has no answer"
                ));
            }
            return;
        }
        let waited = &replica.seen[stopped].waited;
        let before = waited.get().filter(|(since, ..)| *since == at && answer.at.is_none());
        let (_, count, ended) = before.unwrap_or((at, 0, at));
        if answer.was_at_once || began < ended || nodes.len() > 1 {
            return;
        }
        waited.set(Some((at, count + 1, now)));
        if count >= WAIT_IN_VAIN {
            world.breaks(format!("{count} calls have waited in vain since Redis stopped"));
        }
    }
}

struct TakenLease {
    granted: u64,
    token: String,
    life: Duration,
    /// When it was charged, in Unix milliseconds by the clock of the store.
    made: u64,
}

/// What a decision has leased; `None` if it is denied.
fn leased(decision: Decision) -> Option<TakenLease> {
    let taken = decision.taken.filter(|_| decision.code == Code::Ok)?;
    let [charge] = &taken.charges[..] else { panic!("{taken:?}") };
    let life = charge.counter.limit.lease_life(charge.made);
    let token = decision.token.expect("a lease has a token");
    Some(TakenLease { granted: charge.hits, token, life, made: charge.made.as_millis() })
}

/// Whether the store has not answered. The over-limit cache denies calls at once, but none that count work that is done.
fn is_without_store(answer: Answer, meaning: HitsMeaning, took: Duration) -> bool {
    answer.at.is_none() && (meaning == HitsMeaning::Done || !took.is_zero())
}

pub fn descriptor(counter: &str, hits: Hits, parameters: &[(&str, String)]) -> Descriptor {
    let entry = |(key, value): (&str, &str)| Entry {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
    };
    let own = counter.split_once('=').filter(|(_, value)| !value.is_empty());
    let parameters = parameters.iter().map(|(key, value)| (*key, &**value));
    let entries = own.into_iter().chain(parameters).map(entry).collect();
    let states_hits = matches!(hits, Hits::Charge(hits) if hits != 1);
    Descriptor { entries, hits, states_hits, limit: None }
}

fn answer(decided: &Result<Decision, Undecided>, took: Duration) -> Answer {
    let was_at_once = took.is_zero();
    match decided {
        Ok(decision) => {
            // A part of it may have no answer.
            let is_absent = |status: &Status| status.outcome.is_by_failure_mode();
            let is_partial = decision.statuses.iter().any(is_absent)
                || decision.commits.iter().any(|commit| commit.outcome.is_none());
            Answer {
                admitted: Some(decision.code == Code::Ok),
                at: decision.at.map(|at| at.as_millis()).filter(|_| !is_partial),
                was_at_once,
                was_heard: true,
                by_credit: was_at_once && decision.at.is_some(),
                ..Answer::NONE
            }
        }
        Err(_) => Answer { was_at_once, was_heard: true, ..Answer::NONE },
    }
}
