//! The outside ledger: what the model server itself knows of each stream. It sees no counter and no hold.

use std::collections::HashSet;

use super::course::Plan;

use crate::support::prelude::*;

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its usage was sent.
    Used,
    /// The answer says that no work was done.
    Unused,
    /// It was cut off after this number of tokens, before its usage was sent: the estimate stands.
    Cut(u64),
}

/// What came of a budget.
#[derive(Debug, Default, Clone)]
pub struct Report {
    pub admitted: u64,
    /// The largest sum, at an admission, of what was used and of the estimates of open streams.
    pub peak: u64,
    /// Number of admissions at which that sum was larger than the limit.
    pub over: u64,
    /// The most streams at a time.
    pub open_max: usize,
    /// What the streams have used.
    pub used: u64,
    /// What a counter must show at the end if every commit arrives: usage, or the estimate where it stands.
    pub counted: u64,
    /// What it shows if no commit arrives.
    pub held: u64,
    /// Sum of usage above the estimates.
    pub overrun: u64,
}

#[derive(Default)]
struct Budget {
    open: HashMap<u64, Plan>,
    /// Streams whose client left before the model server saw them.
    left: HashSet<u64>,
    report: Report,
}

/// The streams of one budget.
///
/// A stream enters it after its hold was taken, and its estimate becomes its usage before its end is sent. So at any time
/// this ledger shows no more than the counter did at the last admission, if no stream uses more than its estimate.
pub struct Ledger {
    limit: u64,
    budget: Mutex<Budget>,
}

impl Ledger {
    pub fn new(limit: u64) -> Self {
        Self { limit, budget: Mutex::default() }
    }

    /// A stream has begun.
    pub fn admit(&self, plan: Plan) {
        let mut budget = self.budget.lock().unwrap();
        let budget = &mut *budget;
        budget.report.admitted += 1;
        budget.report.held += plan.estimate;
        if budget.left.remove(&plan.number) {
            budget.report.counted += plan.estimate;
            return;
        }
        assert!(budget.open.insert(plan.number, plan).is_none(), "{plan:?} came twice");
        let open: u64 = budget.open.values().map(|plan| plan.estimate).sum();
        let (sum, streams) = (budget.report.used + open, budget.open.len());
        let report = &mut budget.report;
        report.peak = report.peak.max(sum);
        report.over += u64::from(sum > self.limit);
        report.open_max = report.open_max.max(streams);
    }

    /// A stream ends; later calls for it have no effect.
    pub fn end(&self, number: u64, ending: Ending) {
        let mut budget = self.budget.lock().unwrap();
        let Some(plan) = budget.open.remove(&number) else { return };
        let (used, counted) = match ending {
            Ending::Used => (plan.used, plan.used),
            Ending::Unused => (0, 0),
            Ending::Cut(used) => (used, plan.estimate),
        };
        let report = &mut budget.report;
        report.used += used;
        report.counted += counted;
        report.overrun += used.saturating_sub(plan.estimate);
    }

    /// Number of streams now.
    pub fn open(&self) -> usize {
        self.budget.lock().unwrap().open.len()
    }

    /// The client of a stream leaves: from now on, no work is done for it.
    pub fn leave(&self, plan: &Plan, used: u64) {
        {
            let mut budget = self.budget.lock().unwrap();
            if !budget.open.contains_key(&plan.number) {
                budget.left.insert(plan.number);
                return;
            }
        }
        self.end(plan.number, Ending::Cut(used));
    }

    pub fn report(&self) -> Report {
        self.budget.lock().unwrap().report.clone()
    }

    /// How far the peak is above the limit.
    pub fn excess(&self) -> u64 {
        self.report().peak.saturating_sub(self.limit)
    }
}
