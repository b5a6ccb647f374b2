//! Takes without ids that have opened holds on several counters: a commit on one of them ends all.

use std::{collections::HashMap, sync::Arc};

use tollkeeper_engine::{
    hold_id::HoldId,
    key::Counter,
    ledger::{Charge, Fit, HoldAction, Verdict},
    time::Timestamp,
};

use super::capacity::Capacity;
use crate::sync::{Mutex, MutexGuard};

/// Of the most that counters may take, they take this part at most.
const TAKES_PART: usize = 8;

/// Such takes, by their ids.
#[derive(Debug)]
pub(super) struct OpenTakes {
    capacity: Arc<Capacity>,
    takes: Mutex<Takes>,
    ending: Mutex<()>,
}

#[derive(Debug, Default)]
struct Takes {
    by_id: HashMap<HoldId, OpenTake>,
    bytes: usize,
}

#[derive(Debug)]
struct OpenTake {
    deadline: Timestamp,
    counters: Vec<Counter>,
}

impl OpenTake {
    fn bytes(&self) -> usize {
        let counters =
            self.counters.iter().map(|counter| size_of::<Counter>() + counter.id_bytes());
        // A table may be filled to less than a half.
        2 * size_of::<(HoldId, Self)>() + counters.sum::<usize>()
    }
}

impl OpenTakes {
    /// None yet. What they take counts as taken by counters.
    pub(super) fn new(capacity: Arc<Capacity>) -> Self {
        Self { capacity, takes: Mutex::default(), ending: Mutex::default() }
    }

    /// Notes the take of a call that was admitted at `now`, if it has opened holds on several counters.
    pub(super) fn note(&self, charges: &[Charge], verdict: &Verdict, now: Timestamp) {
        let mut take = OpenTake { deadline: now, counters: Vec::new() };
        let mut taken = HoldId::default();
        for (charge, tally) in charges.iter().zip(&verdict.tallies) {
            if let Some(HoldAction::Open { id, lifetime_ms, .. }) = charge.hold
                && matches!(tally.fit, Fit::Fits { .. })
            {
                taken = id;
                take.deadline = take.deadline.max(now.plus_millis(lifetime_ms));
                take.counters.push(charge.counter.clone());
            }
        }
        if verdict.denied || take.counters.len() < 2 {
            return;
        }
        let mut takes = self.takes.lock();
        let (before, max) = (takes.bytes, self.capacity.max.bytes / TAKES_PART);
        takes.bytes += take.bytes();
        takes.by_id.insert(taken, take);
        if takes.bytes > max {
            takes.by_id.retain(|_, take| now < take.deadline);
            takes.bytes = takes.by_id.values().map(OpenTake::bytes).sum();
            // If many are live, all are forgotten: a commit of theirs ends its hold on one counter only.
            if takes.bytes > max / 2 {
                (takes.by_id, takes.bytes) = (HashMap::new(), 0);
            }
        }
        self.capacity.resize(before, takes.bytes);
    }

    /// A turn to end a take on all of its counters. Otherwise, two commits at a time could end the same one.
    pub(super) fn ending(&self) -> MutexGuard<'_, ()> {
        self.ending.lock()
    }

    pub(super) fn end(&self, id: HoldId) -> Vec<Counter> {
        let mut takes = self.takes.lock();
        let Some(take) = takes.by_id.remove(&id) else { return Vec::new() };
        takes.bytes -= take.bytes();
        self.capacity.resize(take.bytes(), 0);
        take.counters
    }
}
