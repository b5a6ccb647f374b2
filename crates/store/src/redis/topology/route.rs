//! The way of one call to the node that has its counters, or to several.

use std::sync::Arc;

use tokio::time::Instant;
use tollkeeper_engine::{
    ledger::{Charge, Verdict, fitting_by_checks, part_asked},
    request::Hits,
};

use super::{
    directory::Directory,
    map::NodeMap,
    redirect::{decide_alone, outlive},
    reservation::{Part, Reservation, Target, parts},
};
use crate::{
    StoreError,
    redis::{
        node::{
            RedisNode,
            batch::Runs,
            batcher::SentAs,
            decided::{ATTEMPTS_MAX, NotDecided},
            owed::Owed,
        },
        script::work::NodeWork,
        wire::hash_slot::HashSlot,
    },
};

/// Attempts to charge a part over several nodes, while others take what was found to fit.
const PART_ATTEMPTS_MAX: usize = 4;

/// Makes all charges of one call, or none; there must be at least one. The caller waits `until` then.
pub(crate) async fn charge(
    directory: &Arc<Directory>,
    charges: &[Charge],
    until: Instant,
) -> Result<Verdict, StoreError> {
    if !directory.options.expected.runs_scripts {
        let work = NodeWork::Charges(charges.into());
        let Some(slot) = work.slot() else { return Ok(Verdict::default()) };
        return Ok(Box::pin(decide_alone(directory, slot, work)).await?.delivered());
    }
    directory.searched().await;
    for _ in 0..ATTEMPTS_MAX {
        let map = directory.map();
        let node = node_of(&map, charges);
        if node.is_none() && directory.is_cluster() {
            let parts = parts(charges, 0..charges.len(), |slot| by_node(&map, slot));
            return reserve(directory, charges, parts, until).await;
        }
        let owed = directory.owe(NodeWork::Charges(charges.into()));
        let Some(node) = node else { return Err(directory.no_node()) };
        match node.batcher.decide(owed, until, SentAs::Call).await {
            Ok(decided) => return Ok(decided.delivered()),
            // It is sent on at once.
            Err(NotDecided::Elsewhere(_, owed)) => {
                owed.settle();
                // Else the node has left, and another has taken its place.
                if directory.is_cluster() {
                    break;
                }
            }
            Err(not_decided) => return Err(not_decided.into_store_error(|| directory.no_node())),
        }
    }
    Box::pin(charge_by_slot(directory, charges, until)).await
}

/// Like [`charge`], without the counters of the charges at the indices `absent`: their
/// `on_store_failure` applies.
pub(crate) async fn charge_without(
    directory: &Arc<Directory>,
    charges: &[Charge],
    absent: &[usize],
    until: Instant,
) -> Result<Verdict, StoreError> {
    let map = directory.map();
    let present = (0..charges.len()).filter(|index| !absent.contains(index));
    let parts = parts(charges, present, |slot| by_node(&map, slot));
    reserve(directory, charges, parts, until).await
}

/// Makes the charges of these parts, or none. What was reserved is given back though this future is dropped.
///
/// If as many hits are to be charged as fit, checks find how many, and these are reserved all or nothing; again, if others
/// have taken them meanwhile.
async fn reserve(
    directory: &Arc<Directory>,
    charges: &[Charge],
    parts: Vec<Part>,
    until: Instant,
) -> Result<Verdict, StoreError> {
    let reserve = async |parts: &[Part], hits: Option<Hits>| {
        let with_hits = |charge: &Charge| match (hits, charge.is_part) {
            // A hold is committed with the charges.
            (Some(Hits::Check), false) => Charge::new(charge.counter.clone(), Hits::Check),
            (Some(hits), true) => Charge { hits, ..charge.clone() },
            _ => charge.clone(),
        };
        let (directory, charges) = (Arc::clone(directory), charges.iter().map(with_hits).collect());
        let reservation = Reservation { directory: Arc::clone(&directory), charges, until };
        let charging = reservation.charge(parts.to_vec());
        let answer = Box::pin(outlive(&directory, until, charging)).await;
        answer.map(|(verdict, owed)| {
            owed.into_iter().for_each(Owed::settle);
            verdict
        })
    };
    let Some(most) = part_asked(charges) else { return reserve(&parts, None).await };
    let mut attempts = 1;
    loop {
        let checked = reserve(&parts, Some(Hits::Check)).await?;
        let hits = fitting_by_checks(most, charges, &checked.tallies);
        let verdict = reserve(&parts, Some(Hits::Charge(hits))).await?;
        match verdict.denied {
            true if hits > 1 && attempts < PART_ATTEMPTS_MAX => attempts += 1,
            true => return Ok(verdict),
            false => return Ok(Verdict { part: Some(hits), ..verdict }),
        }
    }
}

/// Makes the charges of each hash slot alone, wherever it is now.
async fn charge_by_slot(
    directory: &Arc<Directory>,
    charges: &[Charge],
    until: Instant,
) -> Result<Verdict, StoreError> {
    let parts = parts(charges, 0..charges.len(), Target::Slot);
    if let [Part { target: Target::Slot(slot), .. }] = parts[..] {
        let decided = decide_alone(directory, slot, NodeWork::Charges(charges.into())).await?;
        return Ok(decided.delivered());
    }
    reserve(directory, charges, parts, until).await
}

/// The node that decides these charges in one step, if there is one.
fn node_of<'map>(map: &'map NodeMap, charges: &[Charge]) -> Option<&'map Arc<RedisNode>> {
    let node = map.owner_of_all(charges.iter().map(|charge| &charge.counter))?;
    let [first, others @ ..] = charges else { return None };
    if others.is_empty() || node.batcher.runs() != Runs::PerSlot {
        return Some(node);
    }
    let slot = HashSlot::of(&first.counter);
    others.iter().all(|other| HashSlot::of(&other.counter) == slot).then_some(node)
}

/// A node takes several hash slots at once if it takes node-wide runs.
fn by_node(map: &NodeMap, slot: HashSlot) -> Target {
    match map.owner(slot) {
        Some(node) if node.batcher.runs() == Runs::NodeWide => Target::Node(Arc::clone(node)),
        Some(node) => Target::SlotOf(Arc::clone(node), slot),
        None => Target::Slot(slot),
    }
}
