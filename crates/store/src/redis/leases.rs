//! Leases: while many calls are decided here on one counter, some of its hits are charged in advance, as credit, and spent
//! without a round trip.
//!
//! A lease is charged in one question, as a call of its own, in the same script run as the calls that wait. It is so small a
//! part of what is left that it fits as a whole, or is not worth a search for what does. What a grant may do, and until when,
//! is in `leased_counter`; this has the table of counters, and the task that follows each grant. A call is decided here only
//! if each of its charges is plain and finds credit; any other goes to Redis as without leases.
//!
//! Other replicas need not be told of anything: credit lives so briefly that a reset, an override, a refund or a reload
//! elsewhere bears it. Of a counter that is changed through this replica it ends at once. What is not spent goes back as a
//! commit of nothing used, which counts once however often it is sent, and not behind a reset.

mod leased_counter;

use std::{
    hash::RandomState,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::HashTable;
use parking_lot::Mutex;
use tokio::{
    select,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tollkeeper_base::process::{clock::Clock, pause::random};
use tollkeeper_engine::{
    hold_id::HoldId,
    key::Counter,
    ledger::{Charge, Few, Fit, HoldAction, JudgedBy, Tally, Verdict},
    request::Hits,
    rule::LEASE_LIFE,
};

pub use self::leased_counter::LeaseTerms;
use self::leased_counter::{Grant, GrantState, LeasedCounter, Moment, Question};
use super::{
    script::{fixed, work::NodeWork},
    topology::{directory::Directory, route},
    wire::hash_slot::HashSlot,
};
use crate::{StoreError, metrics::StoreMetrics};

/// The most counters that are watched. Those beyond are decided in Redis.
const COUNTERS_MAX: usize = 10_000;

/// The longest business ID of one that is watched, in bytes, so that their number bounds the memory.
const ID_BYTES_MAX: usize = 1024;

/// How long the answer to a question is waited for: after the life of credit, to give it back.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// How long what is not spent may take to be given back.
const GIVEN_BACK_WITHIN_MS: u64 = 10_000;

#[derive(Debug)]
pub(super) struct Leases {
    counters: Mutex<HashTable<LeasedCounter>>,
    hasher: RandomState,
    terms: LeaseTerms,
    clock: Clock,
    metrics: StoreMetrics,
    first_id: HoldId,
    ids: AtomicU64,
    /// The service stops: all credit goes back.
    stops: CancellationToken,
}

/// Whether a charge can be made with credit: that of a call that asks for hits of an ordinary limit as a whole, and that
/// [`fixed::accepts`] accepts.
fn is_leased(charge: &Charge) -> bool {
    charge.counter.limit.leases() && !charge.keeps_order
}

impl Leases {
    pub(super) fn new(terms: LeaseTerms, clock: Clock, metrics: StoreMetrics) -> Self {
        Self {
            counters: Mutex::default(),
            hasher: RandomState::new(),
            terms,
            clock,
            metrics,
            first_id: HoldId::new((0..4).fold(0, |id, _| id << 32 | u128::from(random()))),
            ids: AtomicU64::new(0),
            stops: CancellationToken::new(),
        }
    }

    fn now(&self) -> Moment {
        Moment { at: Instant::now(), clock: (self.clock)() }
    }

    /// Decides a call with credit: all of its charges, or none. What should be leased now is asked for beside the call.
    pub(super) fn spend(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        charges: &[Charge],
    ) -> Option<Verdict> {
        if !charges.iter().all(is_leased) || !fixed::accepts(charges) {
            return None;
        }
        let (verdict, questions) = self.spend_all(charges);
        for question in questions {
            let leasing = Arc::clone(self).lease(Arc::clone(directory), question);
            drop(directory.outliving.spawn(leasing));
        }
        verdict
    }

    fn spend_all(&self, charges: &[Charge]) -> (Option<Verdict>, Few<Question>) {
        let mut questions = Few::new();
        let mut counters = self.counters.lock();
        // The clocks are read only behind this: a process that stood still before, or meanwhile, spends nothing stale. One
        // that stands still behind it is like an answer of Redis that arrives late.
        let mut taken: Few<(u64, Moment)> = Few::new();
        for charge in charges {
            let (hash, counter) = (charge.counter.hash_of_identity(&self.hasher), &charge.counter);
            let known = counters.find_mut(hash, |known| known.counter.same_counter(counter));
            let limit = &charge.counter.limit;
            let ends =
                known.and_then(|one| one.take(charge.hits.charged(), limit.requests_per_unit));
            let Some(ends) = ends else { break };
            taken.push((hash, ends));
        }
        let now = self.now();
        let is_decided =
            taken.len() == charges.len() && taken.iter().all(|(_, ends)| !ends.is_reached(now));
        let mut verdict = Verdict::default();
        for (index, charge) in charges.iter().enumerate() {
            let (hits, limit) = (charge.hits.charged(), &charge.counter.limit);
            let hash = match taken.get(index) {
                Some((hash, _)) => *hash,
                None => charge.counter.hash_of_identity(&self.hasher),
            };
            let Some(known) = watched(&mut counters, hash, &charge.counter, now.at) else {
                continue;
            };
            if is_decided {
                let (left, at, window_end) = known.spend(hits, limit.requests_per_unit, now);
                let fit = Fit::Fits { remaining: left };
                verdict.tallies.push(Tally::new(fit, at.until(window_end)));
                verdict.at.push(at);
            } else if index < taken.len() {
                known.put_back(hits, limit.requests_per_unit);
            }
            if let Some(want) = known.demand(hits, limit, now.at, self.terms) {
                let id = self.first_id.plus(self.ids.fetch_add(1, Ordering::Relaxed));
                let counter = charge.counter.clone();
                questions.push(Question { counter, want, asked: now, id });
            }
        }
        (is_decided.then_some(verdict), questions)
    }

    /// Learns what is left from Redis's verdict on a call, and adds the credit in hand to that.
    pub(super) fn learn(&self, charges: &[Charge], verdict: &mut Verdict) {
        let seen = Instant::now();
        for (index, charge) in charges.iter().enumerate() {
            let at = verdict.at.get(index).or(verdict.at.first()).copied();
            let (Some(tally), Some(at)) = (verdict.tallies.get_mut(index), at) else { continue };
            if !is_leased(charge) || tally.judged_by != JudgedBy::Counter || charge.is_part {
                continue;
            }
            let (limit, hits) = (&charge.counter.limit, charge.hits.charged());
            let mut counters = self.counters.lock();
            let Some(known) = self.known(&mut counters, &charge.counter) else { continue };
            match &mut tally.fit {
                Fit::Fits { remaining } => {
                    let charged = if verdict.denied { 0 } else { hits };
                    if !known.learn(*remaining, charged, limit, at, seen) {
                        self.strand(known.end(seen));
                    }
                    *remaining = remaining.saturating_add(known.credit(limit.requests_per_unit));
                }
                Fit::Over => known.lacks(hits, limit, at, seen),
                Fit::Commit(_) => {}
            }
        }
    }

    /// The hits in hand that a call on this counter may spend.
    pub(super) fn credit(&self, counter: &Counter) -> u64 {
        let mut counters = self.counters.lock();
        let known = self.known(&mut counters, counter);
        known.map_or(0, |known| known.credit(counter.limit.requests_per_unit))
    }

    /// Ends the credit of counters that are changed otherwise than by calls: it goes back.
    pub(super) fn end<'a>(
        &self,
        directory: &Directory,
        counters: impl Iterator<Item = &'a Counter>,
    ) {
        for counter in counters {
            let mut watched = self.counters.lock();
            let known = self.known(&mut watched, counter);
            let ended = known.map_or_else(Vec::new, |known| known.end(Instant::now()));
            drop(watched);
            ended.into_iter().for_each(|grant| self.give_back(directory, counter, grant));
        }
    }

    /// Gives all credit back.
    pub(super) fn stop(&self) {
        self.stops.cancel();
    }

    /// Asks for a lease, and follows what is granted until it has ended.
    async fn lease(self: Arc<Self>, directory: Arc<Directory>, question: Question) {
        let Question { counter, want, asked, .. } = &question;
        let charge = [Charge::new(counter.clone(), Hits::Charge(*want))];
        let answer = route::charge(&directory, &charge, asked.at + ANSWERED_WITHIN).await;
        // A server that was started a moment ago may have lost what other replicas still have in hand.
        let since = known_since(&directory, counter);
        let is_known = since.is_some_and(|since| since + LEASE_LIFE <= asked.at);
        if let Some(refused) = self.answered(&question, answer, is_known) {
            self.give_back(&directory, counter, refused);
        }
        loop {
            match self.look(&question) {
                GrantState::Gone => return,
                GrantState::InUse(until) => select! {
                    () = time::sleep_until(until) => {}
                    () = self.stops.cancelled() => {}
                },
                GrantState::Ended(grant) => return self.give_back(&directory, counter, grant),
            }
        }
    }

    /// Takes the answer to a question. Returns what was granted, and cannot be used.
    fn answered(
        &self,
        question: &Question,
        answer: Result<Verdict, StoreError>,
        is_known: bool,
    ) -> Option<Grant> {
        let (mut counters, now) = (self.counters.lock(), self.now());
        let known = self.known(&mut counters, &question.counter)?;
        let verdict = match answer {
            Ok(verdict) => verdict,
            Err(error) => {
                known.failed(now.at);
                // It may have been charged.
                let is_lost = matches!(error, StoreError::TimedOut);
                self.metrics.leased("stranded", if is_lost { question.want } else { 0 });
                return None;
            }
        };
        let tally = verdict.tallies.first().filter(|tally| tally.judged_by == JudgedBy::Counter);
        let (false, Some(Tally { fit: Fit::Fits { remaining }, .. }), Some(made)) =
            (verdict.denied, tally, verdict.at.first())
        else {
            known.failed(now.at);
            return None;
        };
        let hits = question.want;
        self.metrics.leased("granted", hits);
        let grant = Grant::new(question, *made);
        self.strand(known.of_other_windows(grant.window_end));
        if !known.learn(*remaining, hits, &question.counter.limit, *made, now.at) {
            self.strand(known.end(now.at));
        }
        if !is_known {
            known.failed(now.at);
            return Some(grant);
        }
        known.granted(grant, now).err()
    }

    fn look(&self, question: &Question) -> GrantState {
        let (mut counters, now) = (self.counters.lock(), self.now());
        let Some(known) = self.known(&mut counters, &question.counter) else {
            return GrantState::Gone;
        };
        self.metrics.leased("spent", known.take_spent());
        known.look(question.id, now, self.stops.is_cancelled())
    }

    /// Gives back what is left of a grant that cannot be spent any more, unless its window has ended.
    fn give_back(&self, directory: &Directory, counter: &Counter, grant: Grant) {
        // A server that has restarted since then may have lost the charge: the refund would take hits of other calls.
        let is_lost = known_since(directory, counter).is_none_or(|since| since > grant.asked.at);
        if is_lost || !grant.is_in_window(self.now()) {
            return self.strand(vec![grant]);
        }
        let Grant { id, left: held, made, window_end, .. } = grant;
        self.metrics.leased("returned", held);
        let deadline = made.plus_millis(GIVEN_BACK_WITHIN_MS).min(window_end);
        let commit = HoldAction::Commit { id, held, used: 0, made, deadline };
        let charge = Charge::new(counter.clone(), Hits::Commit);
        let charge = Charge { hold: Some(commit), ..charge };
        // Nobody waits for the answer. Work that is dropped before it was sent is kept, and sent at once.
        drop(directory.owe(NodeWork::Charges([charge].into())));
    }

    fn strand(&self, grants: Vec<Grant>) {
        let left = grants.iter().map(|grant| grant.left).sum();
        self.metrics.leased("stranded", left);
    }

    fn known<'table>(
        &self,
        counters: &'table mut HashTable<LeasedCounter>,
        counter: &Counter,
    ) -> Option<&'table mut LeasedCounter> {
        let hash = counter.hash_of_identity(&self.hasher);
        counters.find_mut(hash, |known| known.counter.same_counter(counter))
    }
}

/// Since when the present run of the server that has a counter is known.
fn known_since(directory: &Directory, counter: &Counter) -> Option<Instant> {
    directory.owner(HashSlot::of(counter)).ok()?.link.state.pool.known_since()
}

/// A counter of the table, to which it is added if it is new and there is room.
fn watched<'table>(
    counters: &'table mut HashTable<LeasedCounter>,
    hash: u64,
    counter: &Counter,
    now: Instant,
) -> Option<&'table mut LeasedCounter> {
    if counters.find(hash, |known| known.counter.same_counter(counter)).is_none() {
        if counter.id_bytes() > ID_BYTES_MAX {
            return None;
        }
        if counters.len() >= COUNTERS_MAX {
            counters.retain(|known| known.is_in_use(now));
            // A sweep comes only after a number of new counters that is proportional to its cost.
            if counters.len() > COUNTERS_MAX / 2 {
                counters.retain(|known| known.has_grants());
            }
        }
        let new = LeasedCounter::new(hash, counter.clone(), now);
        counters.insert_unique(hash, new, |known| known.hash);
    }
    counters.find_mut(hash, |known| known.counter.same_counter(counter))
}
