//! Calls whose counters are on several nodes. Each node's part is reserved as a call of its own, all at once. If
//! the call is denied, what the other parts charged is given back.
//!
//! In between, others may be denied too early. A reservation outlives its caller, and listens for the answers to parts
//! that come too late for it, so that what they charged is given back. If the service ends before it has given back, or
//! if the answer to a part is lost, hits count until their windows end. Never is more admitted than a limit allows.

use std::{mem, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::time::{self, Instant};
use tollkeeper_engine::{
    ledger::{
        Charge, Few, Fit, GiveBack, HoldAction, JudgedBy, PartsVerdict, Tally, Verdict, given_back,
        indices_judged_by, judge_parts, past_corrupt_counter, reservation,
    },
    request::Hits,
    time::Timestamp,
};

use super::{directory::Directory, redirect::decide_alone};
use crate::{
    StoreError,
    redis::{
        node::{
            RedisNode,
            batcher::SentAs,
            decided::{CallAnswer, Decided, NotDecided},
            owed::Owed,
        },
        script::work::NodeWork,
        wire::hash_slot::HashSlot,
    },
};

/// Eighths of the caller's time in which all parts must be answered; the rest is for giving back.
const RESERVED_WITHIN: u32 = 6;

/// Eighths of the caller's time after which a call does not wait for its give-backs.
const GIVEN_BACK_WITHIN: u32 = 7;

/// How long a give-back may wait to be sent. After that it is kept until its server answers.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(1);

/// The index of the part of a charge that is in none.
const NO_PART: usize = usize::MAX;

/// The charges of a call that go together.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) target: Target,
    /// The indices of the charges in their call.
    pub(crate) charges: Vec<usize>,
}

/// Where a part goes.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// Into the batches of a node, with all hash slots that it has.
    Node(Arc<RedisNode>),
    /// Into the batches of a node, with one hash slot.
    SlotOf(Arc<RedisNode>, HashSlot),
    /// By itself to the node that has the hash slot.
    Slot(HashSlot),
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Node(one), Self::Node(other)) => Arc::ptr_eq(one, other),
            (Self::SlotOf(_, one), Self::SlotOf(_, other))
            | (Self::Slot(one), Self::Slot(other)) => one == other,
            _ => false,
        }
    }
}

/// The fate of a part: its verdict, and when it was made.
type PartAnswer = Result<(Verdict, Timestamp), StoreError>;

/// The charges at these indices, by where they go.
pub(crate) fn parts(
    charges: &[Charge],
    indices: impl Iterator<Item = usize>,
    target: impl Fn(HashSlot) -> Target,
) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (index, charge) in indices.filter_map(|index| Some((index, charges.get(index)?))) {
        let target = target(HashSlot::of(&charge.counter));
        match parts.iter_mut().find(|part| part.target == target) {
            Some(part) => part.charges.push(index),
            None => parts.push(Part { target, charges: vec![index] }),
        }
    }
    parts
}

#[derive(Clone)]
pub(crate) struct Reservation {
    pub(crate) directory: Arc<Directory>,
    pub(crate) charges: Arc<[Charge]>,
    /// When its caller gives up.
    pub(crate) until: Instant,
}

impl Reservation {
    /// Makes all charges of the call in these parts, or none. The work of an admitted call is to be settled when its
    /// caller has the verdict.
    pub(crate) async fn charge(self, parts: Vec<Part>) -> Result<(Verdict, Vec<Owed>), StoreError> {
        let began = Instant::now();
        let eighth = self.until.saturating_duration_since(began) / 8;
        let mut asked: FuturesUnordered<_> =
            parts.into_iter().map(|part| self.clone().reserve(part)).collect();
        let mut known = KnownParts::new(&self.charges);
        let reserve = async {
            while let Some(answered) = asked.next().await {
                known.add(answered);
            }
        };
        drop(time::timeout_at(began + RESERVED_WITHIN * eighth, reserve).await);
        let judged_parts = judge_parts(&self.charges, &known.tallies, &known.parts);
        let verdict = judged_parts.verdict;
        let owed = known.owed(verdict);
        let given_back = self.give_back(&known, &judged_parts.gives_back);
        let given_back = time::timeout_at(began + GIVEN_BACK_WITHIN * eighth, given_back).await;
        let given_back = given_back.unwrap_or_else(|_| vec![None; self.charges.len()]);
        let answer = match verdict {
            _ if known.none_answered() => Err(known.cause()),
            PartsVerdict::Admitted | PartsVerdict::Denied => {
                let verdict = Verdict {
                    denied: verdict == PartsVerdict::Denied,
                    tallies: known.settled(&self.charges, &judged_parts.gives_back, &given_back),
                    at: known.times(),
                    ..Verdict::default()
                };
                Ok((verdict, owed))
            }
            PartsVerdict::Failed | PartsVerdict::Again => {
                Err(known.failure(verdict, &self.charges))
            }
        };
        if !asked.is_empty() {
            let tracker = self.directory.outliving.clone();
            drop(tracker.spawn(async move {
                while let Some(late) = asked.next().await {
                    self.give_back_late(&mut known, late, verdict).await;
                }
            }));
        }
        answer
    }

    /// Reserves a part; one that is not where it was sent is reserved by hash slots, wherever they are now.
    async fn reserve(self, part: Part) -> Vec<(Part, Result<Decided, StoreError>)> {
        let failed = |why: NotDecided| why.into_store_error(|| self.directory.no_node());
        match self.reserve_at(&part).await {
            Err(NotDecided::Elsewhere(_, owed)) => {
                owed.settle();
                let by_slot = parts(&self.charges, part.charges.into_iter(), Target::Slot);
                join_all(by_slot.into_iter().map(async |part| {
                    let answer = self.reserve_at(&part).await;
                    (part, answer.map_err(failed))
                }))
                .await
            }
            answer => vec![(part, answer.map_err(failed))],
        }
    }

    async fn reserve_at(&self, part: &Part) -> CallAnswer {
        let charges = part.charges.iter().filter_map(|index| self.charges.get(*index));
        let charges: Arc<[Charge]> = charges.map(reservation).collect();
        let work = NodeWork::Charges(Arc::clone(&charges));
        let answer = self.decide(&part.target, work, self.until).await;
        let Err(NotDecided::Failed(StoreError::Corrupt(_))) = answer else { return answer };
        // The verdict on the whole call decides what a corrupt counter means.
        let charges = charges.iter().map(past_corrupt_counter).collect();
        self.decide(&part.target, NodeWork::Charges(charges), self.until).await
    }

    /// Gives back what the parts have charged for these charges. Returns what is left of their counters.
    async fn give_back(&self, known: &KnownParts, gives_back: &[bool]) -> Vec<Option<Tally>> {
        let all = self.charges.iter().zip(&known.parts).zip(gives_back);
        join_all(all.map(async |((charge, part), gives_back)| {
            let (part, Ok((_, made))) = known.answers.get(*part)? else { return None };
            if !gives_back {
                return None;
            }
            let Charge { counter, hits, caller, hold, .. } = charge.clone();
            let hits = hits.charged();
            let give_back = GiveBack { counter, hits, made: *made, caller, hold };
            let answer = self.return_hits(&part.target, Arc::new(give_back)).await;
            answer.ok()?.delivered().tallies.pop()
        }))
        .await
    }

    async fn return_hits(&self, target: &Target, give_back: Arc<GiveBack>) -> CallAnswer {
        let until = Instant::now() + GIVE_BACK_WITHIN;
        match self.decide(target, NodeWork::GiveBack(Arc::clone(&give_back)), until).await {
            Err(NotDecided::Elsewhere(_, owed)) => {
                owed.settle();
                let slot = Target::Slot(HashSlot::of(&give_back.counter));
                self.decide(&slot, NodeWork::GiveBack(give_back), until).await
            }
            answer => answer,
        }
    }

    /// Gives back what was charged by a part that was answered after the call.
    async fn give_back_late(
        &self,
        known: &mut KnownParts,
        late: Vec<(Part, Result<Decided, StoreError>)>,
        verdict: PartsVerdict,
    ) {
        let before = known.answers.len();
        known.add(late);
        drop(known.owed(verdict));
        let mut gives_back = given_back(&self.charges, &known.tallies, &known.parts, verdict);
        for (gives_back, part) in gives_back.iter_mut().zip(&known.parts) {
            *gives_back &= *part >= before;
        }
        self.give_back(known, &gives_back).await;
    }

    async fn decide(&self, target: &Target, work: NodeWork, until: Instant) -> CallAnswer {
        match target {
            Target::Node(node) | Target::SlotOf(node, _) => {
                node.batcher.decide(self.directory.owe(work), until, SentAs::Part).await
            }
            Target::Slot(slot) => {
                let answer = Box::pin(decide_alone(&self.directory, *slot, work)).await;
                answer.map_err(NotDecided::Failed)
            }
        }
    }
}

struct KnownParts {
    tallies: Vec<Tally>,
    /// The index of each charge's part among the answers; [`NO_PART`] without an answer.
    parts: Vec<usize>,
    answers: Vec<(Part, PartAnswer)>,
    /// The work of the parts that were decided.
    owed: Vec<Owed>,
}

impl KnownParts {
    fn new(charges: &[Charge]) -> Self {
        let unknown = |charge| Tally::by_failure_mode(charge, JudgedBy::Absent);
        Self {
            tallies: charges.iter().map(unknown).collect(),
            parts: vec![NO_PART; charges.len()],
            answers: Vec::new(),
            owed: Vec::new(),
        }
    }

    fn add(&mut self, answers: Vec<(Part, Result<Decided, StoreError>)>) {
        for (part, answer) in answers {
            let answer = answer.map(|Decided { verdict, at, owed, .. }| {
                self.owed.push(owed);
                (verdict, at)
            });
            for (position, index) in part.charges.iter().enumerate() {
                let tally = answer.as_ref().ok().and_then(|(one, _)| one.tallies.get(position));
                if let (Some(known), Some(tally)) = (self.tallies.get_mut(*index), tally) {
                    *known = *tally;
                }
                if let Some(of_part) = self.parts.get_mut(*index) {
                    *of_part = self.answers.len();
                }
            }
            self.answers.push((part, answer));
        }
    }

    /// The work that the verdict's caller owes nobody once it has the verdict: none is left unless the call is admitted,
    /// since then it is given back here.
    fn owed(&mut self, verdict: PartsVerdict) -> Vec<Owed> {
        let mut owed = mem::take(&mut self.owed);
        if verdict != PartsVerdict::Admitted {
            owed.drain(..).for_each(Owed::settle);
        }
        owed
    }

    fn judged_by(&self, judged_by: JudgedBy) -> Vec<usize> {
        indices_judged_by(judged_by, &self.tallies)
    }

    /// The time of each charge, by the clock of its part; of one without an answer, by that of another.
    fn times(&self) -> Few<Timestamp> {
        let time = |part: &usize| Some(self.answers.get(*part)?.1.as_ref().ok()?.1);
        let known = self.parts.iter().find_map(time);
        self.parts.iter().filter_map(|part| time(part).or(known)).collect()
    }

    /// Whether no part is decided: then the call is like one on a single node that fails.
    fn none_answered(&self) -> bool {
        self.answers.iter().all(|(_, answer)| answer.is_err())
    }

    fn cause(&self) -> StoreError {
        let failure = self.answers.iter().find_map(|(_, answer)| answer.as_ref().err());
        failure.cloned().unwrap_or(StoreError::TimedOut)
    }

    fn failure(&self, verdict: PartsVerdict, charges: &[Charge]) -> StoreError {
        let absent = self.judged_by(JudgedBy::Absent);
        if absent.is_empty() && verdict == PartsVerdict::Failed {
            return StoreError::Corrupt(self.judged_by(JudgedBy::Corrupt));
        }
        let cause = match absent.is_empty() {
            true => StoreError::Corrupt(Vec::new()),
            false => self.cause(),
        };
        let known = self.judged_by(JudgedBy::Counter);
        let unknown = (0..charges.len()).filter(|index| !known.contains(index)).collect();
        let is_refund =
            |index: &usize| charges.get(*index).is_some_and(|charge| charge.hits.asks_nothing());
        StoreError::Unreachable {
            charges: unknown,
            refunded: known.into_iter().filter(is_refund).collect(),
            cause: cause.to_string(),
        }
    }

    /// The tallies of the call. Where a counter is given something back, every charge on it reports the new count,
    /// except for checks that open nothing, which see the state before the call.
    fn settled(
        &self,
        charges: &[Charge],
        gives_back: &[bool],
        given_back: &[Option<Tally>],
    ) -> Vec<Tally> {
        let mut tallies = Vec::with_capacity(charges.len());
        for ((charge, tally), opens) in charges.iter().zip(&self.tallies).zip(gives_back) {
            tallies.push(match tally.fit {
                // Its part was charged with another failure mode.
                _ if tally.judged_by != JudgedBy::Counter => {
                    Tally::by_failure_mode(charge, tally.judged_by)
                }
                Fit::Fits { remaining } if charge.hits != Hits::Check || *opens => {
                    let (mut reserved, mut last) = (0_u64, None);
                    for ((other, is_back), left) in charges.iter().zip(gives_back).zip(given_back) {
                        if *is_back && other.counter.same_counter(&charge.counter) {
                            let estimate = match other.hold {
                                Some(HoldAction::Open { estimate, .. }) => estimate,
                                _ => 0,
                            };
                            reserved = reserved.saturating_add(other.hits.charged() + estimate);
                            let left = left.and_then(|left| Some((left.used(other)?, left.reset)));
                            last = [last, left].into_iter().flatten().min();
                        }
                    }
                    let (used, reset) = last.unwrap_or((0, tally.reset));
                    // A tally shows no hits beyond its limit, and one of a give-back no rise of it.
                    let most = charge.counter.limit.capacity().saturating_sub(used);
                    let remaining = remaining.saturating_add(reserved).min(most);
                    Tally { fit: Fit::Fits { remaining }, reset, ..*tally }
                }
                _ => *tally,
            });
        }
        tallies
    }
}
