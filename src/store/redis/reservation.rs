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
            reservation,
        },
        request::Hits,
    },
    store::StoreError,
};

/// Eighths of the budget in which all parts must be answered; the rest is for giving back.
const RESERVED_WITHIN: u32 = 6;

/// Eighths of the budget after which a call does not wait for its give-backs.
const GIVEN_BACK_WITHIN: u32 = 7;

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
type PartAnswer = Result<Decided<Judgement>, NotDecided>;

/// One call over several nodes.
pub(super) struct Reservation<'call> {
    pub(super) topology: &'call Topology,
    pub(super) charges: &'call [Charge],
    pub(super) parts: Vec<Part>,
}

impl Reservation<'_> {
    /// Makes all charges of the call, or none.
    ///
    /// # Errors
    /// [`NotDecided::Elsewhere`] if a counter is not where its part was sent; then nothing stays charged.
    pub(super) async fn charge(self) -> Result<Judgement, NotDecided> {
        let (began, eighth) = (Instant::now(), self.topology.options.timeout / 8);
        let reserve_until = began + RESERVED_WITHIN * eighth;
        let answers =
            join_all(self.parts.iter().map(|part| self.reserve(part, reserve_until))).await;
        if let Some(failure) = all_failed(&answers) {
            return Err(failure);
        }
        let known = KnownParts::new(self.charges, &self.parts, &answers);
        let verdict = judge_parts(self.charges, &known.tallies, &known.parts);
        let give_back_until = began + GIVEN_BACK_WITHIN * eighth;
        let give_backs = verdict.gives_back.iter().enumerate().map(|(index, gives_back)| {
            let give_back = gives_back.then(|| self.give_back(index, &known, &answers)).flatten();
            async move {
                let answer = time::timeout_at(give_back_until, give_back?).await;
                answer.ok()?.ok()?.answer.tallies.pop()
            }
        });
        let given_back: Vec<Option<Tally>> = join_all(give_backs).await;
        match verdict.outcome {
            PartsOutcome::Admitted | PartsOutcome::Denied => Ok(Judgement {
                denied: verdict.outcome == PartsOutcome::Denied,
                tallies: known.settled(self.charges, &verdict.gives_back, &given_back),
                corrupt: known.corrupt(),
            }),
            PartsOutcome::Failed | PartsOutcome::Again => Err(self.not_decided(&known, answers)),
        }
    }

    async fn reserve(&self, part: &Part, until: Instant) -> PartAnswer {
        let charges = part.charges.iter().filter_map(|index| self.charges.get(*index));
        let work = NodeWork::Charges(charges.map(reservation).collect());
        let timed_out = Err(NotDecided::Failed(StoreError::TimedOut));
        time::timeout_at(until, self.ask(&part.target, work)).await.unwrap_or(timed_out)
    }

    /// Gives back the hits of a charge; `None` if there are none.
    fn give_back(
        &self,
        index: usize,
        known: &KnownParts,
        answers: &[PartAnswer],
    ) -> Option<impl Future<Output = PartAnswer>> {
        let (charge, part) = (self.charges.get(index)?, *known.parts.get(index)?);
        let (Hits::Charge(hits), Some(Ok(reserved))) = (charge.hits, answers.get(part)) else {
            return None;
        };
        let Charge { counter, caller, .. } = charge.clone();
        let give_back = Arc::new(GiveBack { counter, hits, made: reserved.at, caller });
        let target = &self.parts.get(part)?.target;
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

    async fn ask(&self, target: &Target, work: NodeWork) -> PartAnswer {
        match target {
            Target::Node(node) | Target::SlotOf(node, _) => node.batcher.ask(work).await,
            Target::Slot(slot) => {
                let answer = Box::pin(self.topology.ask_alone(*slot, &work)).await;
                answer.map_err(NotDecided::Failed)
            }
        }
    }

    /// Why the call is not decided, from the answers of the parts that are not.
    fn not_decided(&self, known: &KnownParts, answers: Vec<PartAnswer>) -> NotDecided {
        let mut cause = StoreError::TimedOut;
        for (part, answer) in self.parts.iter().zip(answers) {
            match answer {
                Ok(_) => {}
                Err(NotDecided::Elsewhere) => return NotDecided::Elsewhere,
                Err(NotDecided::Failed(StoreError::Corrupt(corrupt))) => {
                    let of_call = corrupt.iter().filter_map(|index| part.charges.get(*index));
                    return NotDecided::Failed(StoreError::Corrupt(of_call.copied().collect()));
                }
                Err(NotDecided::Failed(error)) => cause = error,
            }
        }
        let tallies = known.tallies.iter().enumerate();
        let unknown = tallies.filter(|(_, tally)| **tally == PartTally::Unknown);
        let charges = unknown.map(|(index, _)| index).collect();
        NotDecided::Failed(StoreError::Unreachable { charges, cause: cause.to_string() })
    }
}

/// The first failure, if no part is decided: then the call is like one on a single node that fails.
fn all_failed(answers: &[PartAnswer]) -> Option<NotDecided> {
    let mut failures = answers.iter().map(|answer| answer.as_ref().err());
    let first = failures.next()??;
    let is_failure = |failure: &NotDecided| matches!(failure, NotDecided::Failed(error) if !matches!(error, StoreError::Corrupt(_)));
    (is_failure(first) && failures.all(|failure| failure.is_some_and(is_failure)))
        .then(|| first.clone())
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
            parts: vec![0; charges.len()],
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

    /// The tallies of the call. Where hits were given back they are what the give-backs left, or would have left
    /// if they are not answered yet.
    fn settled(
        &self,
        charges: &[Charge],
        gives_back: &[bool],
        given_back: &[Option<Tally>],
    ) -> Vec<Tally> {
        let mut tallies = Vec::with_capacity(charges.len());
        for ((charge, tally), gave_back) in charges.iter().zip(&self.tallies).zip(gives_back) {
            let PartTally::Known(tally) = tally else {
                tallies.push(Tally::without_counter(charge));
                continue;
            };
            if !gave_back {
                tallies.push(*tally);
                continue;
            }
            let of_counter = || {
                let all = charges.iter().zip(gives_back).zip(given_back);
                all.filter(|((other, gives_back), _)| {
                    **gives_back && other.counter.same_counter(&charge.counter)
                })
            };
            let left = of_counter().filter_map(|(_, left)| *left).max_by_key(remaining);
            tallies.push(left.unwrap_or_else(|| {
                let hits = of_counter().map(|((other, _), _)| match other.hits {
                    Hits::Charge(hits) => hits,
                    Hits::Look | Hits::Refund(_) => 0,
                });
                with_hits_back(tally, hits.sum(), charge.counter.limit.capacity())
            }));
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
        Err(NotDecided::Elsewhere | NotDecided::Failed(StoreError::Corrupt(_))) => {
            PartTally::Undecided
        }
        Err(NotDecided::Failed(_)) => PartTally::Unknown,
    }
}

fn remaining(tally: &Tally) -> u32 {
    match tally.verdict {
        Verdict::Fits { remaining } => remaining,
        Verdict::Over => 0,
    }
}

/// The tally as it is once these hits are given back, except for its reset.
fn with_hits_back(tally: &Tally, hits: u64, capacity: u32) -> Tally {
    let remaining = u64::from(remaining(tally)).saturating_add(hits).min(u64::from(capacity));
    let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
    Tally { verdict: Verdict::Fits { remaining }, ..*tally }
}
