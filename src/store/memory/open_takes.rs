//! Takes without ids that have opened holds on several counters: a commit on one of them ends all.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::engine::{
    hold_id::HoldId,
    key::Counter,
    ledger::{Charge, Fit, HoldAction, Verdict},
    time::Timestamp,
};

/// Number of takes from which those whose time has passed are looked for.
const SWEPT_FROM: usize = 1024;

/// Such takes, by their ids.
#[derive(Debug, Default)]
pub(super) struct OpenTakes(Mutex<Takes>);

#[derive(Debug, Default)]
struct Takes {
    by_id: HashMap<HoldId, OpenTake>,
    /// The number of takes from which the next sweep is worthwhile.
    sweep_at: usize,
}

#[derive(Debug)]
struct OpenTake {
    deadline: Timestamp,
    counters: Vec<Counter>,
}

impl OpenTakes {
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
        let mut takes = self.0.lock();
        if takes.by_id.len() >= takes.sweep_at.max(SWEPT_FROM) {
            takes.by_id.retain(|_, take| now < take.deadline);
            takes.sweep_at = 2 * takes.by_id.len();
        }
        takes.by_id.insert(taken, take);
    }

    /// The counters of a take that has ended on one of them.
    pub(super) fn end(&self, id: HoldId) -> Vec<Counter> {
        let take = self.0.lock().by_id.remove(&id);
        take.map_or_else(Vec::new, |take| take.counters)
    }
}
