//! Calls whose counters are on several nodes. Each node's part is reserved as a call of its own, all at once. If
//! the call is denied, what the other parts charged is given back.
//!
//! In between, others may be denied too early. If the service ends before it has given back, or if the answer to
//! a part is lost, hits count until their windows end. Never is more admitted than a limit allows.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{self, Instant};

use super::{
    batcher::NotDecided, hash_slot::HashSlot, link::Decided, node::RedisNode, topology::Topology,
    work::NodeWork,
};
use crate::{
    engine::{
        ledger::{
            Charge, GiveBack, Judgement, PartTally, PartsOutcome, Tally, Verdict, judge_parts,
            past_corrupt_counter, reservation,
        },
        request::Hits,
    },
    store::StoreError,
};

/// Eighths of the budget in which all parts must be answered; the rest is for giving back.
const RESERVED_WITHIN: u32 = 6;

/// Eighths of the budget after which a call does not wait for its give-backs.
const GIVEN_BACK_WITHIN: u32 = 7;

/// The index of the part of a charge that is in none.
const NO_PART: usize = usize::MAX;

/// The charges of a call that are asked for together.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) target: Target,
    /// The indices of the charges in their call.
    pub(super) charges: Vec<usize>,
}

/// Where a part goes.
#[derive(Debug, Clone)]
pub(super) enum Target {
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

/// What becomes of a part.
type PartAnswer = Result<Decided<Judgement>, StoreError>;

/// The charges at these indices, by where they go.
pub(super) fn parts(
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

/// One call over several nodes.
pub(super) struct Reservation<'call> {
    pub(super) topology: &'call Arc<Topology>,
    pub(super) charges: &'call [Charge],
}

impl Reservation<'_> {
    /// Makes all charges of the call in these parts, or none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn charge(self, parts: Vec<Part>) -> Result<Judgement, StoreError> {
        let (began, eighth) = (Instant::now(), self.topology.options.timeout / 8);
        let reserve_until = began + RESERVED_WITHIN * eighth;
        let reserved = join_all(parts.into_iter().map(|part| self.reserve(part, reserve_until)));
        let (parts, answers): (Vec<_>, Vec<_>) = reserved.await.into_iter().flatten().unzip();
        if let Some(failure) = all_failed(&answers) {
            return Err(failure);
        }
        let known = KnownParts::new(self.charges, &parts, &answers);
        let verdict = judge_parts(self.charges, &known.tallies, &known.parts);
        let give_back_until = began + GIVEN_BACK_WITHIN * eighth;
        let give_backs = verdict.gives_back.iter().enumerate().map(|(index, gives_back)| {
            let part = *known.parts.get(index)?;
            let (target, answer) = (&parts.get(part)?.target, answers.get(part)?);
            Some(self.give_back(self.charges.get(index)?, target, answer).filter(|_| *gives_back))
        });
        let given_back = join_all(give_backs.map(async |give_back| {
            let answer = time::timeout_at(give_back_until, give_back.flatten()?).await;
            answer.ok()?.ok()?.answer.tallies.pop()
        }));
        let given_back: Vec<Option<Tally>> = given_back.await;
        match verdict.outcome {
            PartsOutcome::Admitted | PartsOutcome::Denied => Ok(Judgement {
                denied: verdict.outcome == PartsOutcome::Denied,
                tallies: known.settled(self.charges, &verdict.gives_back, &given_back),
                corrupt: known.corrupt(),
            }),
            PartsOutcome::Failed | PartsOutcome::Again => {
                Err(known.failure(verdict.outcome, self.charges, answers))
            }
        }
    }

    /// Reserves a part; one that is not where it was sent is reserved by hash slots, wherever they are now.
    async fn reserve(&self, part: Part, until: Instant) -> Vec<(Part, PartAnswer)> {
        match self.reserve_at(&part, until).await {
            Err(NotDecided::Elsewhere) => {
                let by_slot = parts(self.charges, part.charges.into_iter(), Target::Slot);
                join_all(by_slot.into_iter().map(async |part| {
                    let answer = self.reserve_at(&part, until).await;
                    (part, answer.map_err(|not_decided| self.failed(not_decided)))
                }))
                .await
            }
            answer => vec![(part, answer.map_err(|not_decided| self.failed(not_decided)))],
        }
    }

    fn failed(&self, not_decided: NotDecided) -> StoreError {
        match not_decided {
            NotDecided::Failed(error) => error,
            NotDecided::Elsewhere => self.topology.no_node(),
        }
    }

    async fn reserve_at(
        &self,
        part: &Part,
        until: Instant,
    ) -> Result<Decided<Judgement>, NotDecided> {
        let charges = part.charges.iter().filter_map(|index| self.charges.get(*index));
        let charges: Arc<[Charge]> = charges.map(reservation).collect();
        let reserve = async {
            let answer = self.ask(&part.target, NodeWork::Charges(Arc::clone(&charges))).await;
            let Err(NotDecided::Failed(StoreError::Corrupt(_))) = answer else { return answer };
            // What a corrupt counter means is for the whole call to say.
            let charges = charges.iter().map(past_corrupt_counter).collect();
            self.ask(&part.target, NodeWork::Charges(charges)).await
        };
        let timed_out = Err(NotDecided::Failed(StoreError::TimedOut));
        time::timeout_at(until, reserve).await.unwrap_or(timed_out)
    }

    /// Gives back the hits of a charge, which were reserved at `target`; `None` if there are none.
    fn give_back<'a>(
        &'a self,
        charge: &Charge,
        target: &'a Target,
        reserved: &PartAnswer,
    ) -> Option<impl Future<Output = Result<Decided<Judgement>, NotDecided>> + 'a> {
        let (Hits::Charge(hits), Ok(reserved)) = (charge.hits, reserved) else { return None };
        let Charge { counter, caller, .. } = charge.clone();
        let give_back = Arc::new(GiveBack { counter, hits, made: reserved.at, caller });
        Some(async move {
            match self.ask(target, NodeWork::GiveBack(Arc::clone(&give_back))).await {
                Err(NotDecided::Elsewhere) => {
                    let slot = HashSlot::of(&give_back.counter);
                    self.ask(&Target::Slot(slot), NodeWork::GiveBack(give_back)).await
                }
                answer => answer,
            }
        })
    }

    async fn ask(&self, target: &Target, work: NodeWork) -> Result<Decided<Judgement>, NotDecided> {
        match target {
            Target::Node(node) | Target::SlotOf(node, _) => node.batcher.ask(work).await,
            Target::Slot(slot) => {
                let answer = Box::pin(self.topology.ask_alone(*slot, &work)).await;
                answer.map_err(NotDecided::Failed)
            }
        }
    }
}

/// The first failure, if no part is decided: then the call is like one on a single node that fails.
fn all_failed(answers: &[PartAnswer]) -> Option<StoreError> {
    let mut failures = answers.iter().map(|answer| answer.as_ref().err());
    let first = failures.next()??;
    failures.all(|failure| failure.is_some()).then(|| first.clone())
}

/// What the parts' answers say of each charge.
struct KnownParts {
    tallies: Vec<PartTally>,
    /// The index of each charge's part.
    parts: Vec<usize>,
}

impl KnownParts {
    fn new(charges: &[Charge], parts: &[Part], answers: &[PartAnswer]) -> Self {
        let mut known = Self {
            tallies: vec![PartTally::Unknown; charges.len()],
            parts: vec![NO_PART; charges.len()],
        };
        for (number, (part, answer)) in parts.iter().zip(answers).enumerate() {
            for (position, index) in part.charges.iter().enumerate() {
                if let (Some(tally), Some(of_part)) =
                    (known.tallies.get_mut(*index), known.parts.get_mut(*index))
                {
                    (*tally, *of_part) = (part_tally(answer, position), number);
                }
            }
        }
        known
    }

    /// The charges whose counters are corrupt.
    fn corrupt(&self) -> Vec<usize> {
        let tallies = self.tallies.iter().enumerate();
        let corrupt = tallies.filter(|(_, tally)| **tally == PartTally::Corrupt);
        corrupt.map(|(index, _)| index).collect()
    }

    /// Why the call is not decided.
    fn failure(
        &self,
        outcome: PartsOutcome,
        charges: &[Charge],
        answers: Vec<PartAnswer>,
    ) -> StoreError {
        let cause = answers.into_iter().find_map(Result::err);
        if cause.is_none() && outcome == PartsOutcome::Failed {
            return StoreError::Corrupt(self.corrupt());
        }
        let is_known =
            |index: &usize| matches!(self.tallies.get(*index), Some(PartTally::Known(_)));
        let (known, without_counter): (Vec<_>, Vec<_>) = (0..charges.len()).partition(is_known);
        let is_refund =
            |index: &usize| charges.get(*index).is_some_and(|charge| charge.hits.is_refund());
        StoreError::Unreachable {
            charges: without_counter,
            refunded: known.into_iter().filter(is_refund).collect(),
            cause: cause.unwrap_or(StoreError::Corrupt(Vec::new())).to_string(),
        }
    }

    /// The tallies of the call. Where hits of a counter are given back, all charges on it are told so, except for
    /// looks, which see the state before the call.
    fn settled(
        &self,
        charges: &[Charge],
        gives_back: &[bool],
        given_back: &[Option<Tally>],
    ) -> Vec<Tally> {
        let mut tallies = Vec::with_capacity(charges.len());
        for (charge, tally) in charges.iter().zip(&self.tallies) {
            let of_counter = || {
                let all = charges.iter().zip(gives_back).zip(given_back);
                all.filter(|((other, gives_back), _)| {
                    **gives_back && other.counter.same_counter(&charge.counter)
                })
            };
            tallies.push(match tally {
                PartTally::Known(Tally { verdict: Verdict::Fits { remaining }, reset })
                    if charge.hits != Hits::Look =>
                {
                    let hits = of_counter()
                        .map(|((other, _), _)| match other.hits {
                            Hits::Charge(hits) => hits,
                            Hits::Look | Hits::Refund(_) => 0,
                        })
                        .sum();
                    let resets = of_counter().filter_map(|(_, left)| Some(left.as_ref()?.reset));
                    let remaining =
                        with_hits_back(*remaining, hits, charge.counter.limit.capacity());
                    Tally {
                        verdict: Verdict::Fits { remaining },
                        reset: resets.min().unwrap_or(*reset),
                    }
                }
                PartTally::Known(tally) => *tally,
                PartTally::Corrupt | PartTally::Unknown => Tally::without_counter(charge),
            });
        }
        tallies
    }
}

fn part_tally(answer: &PartAnswer, position: usize) -> PartTally {
    match answer {
        Ok(decided) if decided.answer.corrupt.contains(&position) => PartTally::Corrupt,
        Ok(decided) => {
            let tally = decided.answer.tallies.get(position).copied();
            tally.map_or(PartTally::Unknown, PartTally::Known)
        }
        Err(_) => PartTally::Unknown,
    }
}

fn with_hits_back(remaining: u32, hits: u64, capacity: u32) -> u32 {
    let remaining = u64::from(remaining).saturating_add(hits).min(u64::from(capacity));
    u32::try_from(remaining).unwrap_or(u32::MAX)
}
