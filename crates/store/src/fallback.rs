//! The answer if the store gives none: by the `on_store_failure` of each limit.

use std::sync::Arc;

use tollkeeper_engine::{
    ledger::{Charge, GiveBack, JudgedBy, Tally, Verdict},
    request::Hits,
    rule::{Algorithm, FailureMode, Limit, Mode},
    time::Timestamp,
};

use super::{StoreError, memory::MemoryStore};

/// Answers calls that the store does not answer.
#[derive(Debug)]
pub struct Fallback {
    /// Counts for `local` limits. Its counters live until the end of their own windows, so a store that fails
    /// again and again grants at most one share per window.
    local: MemoryStore,
    replicas: u32,
}

impl Fallback {
    /// A fallback for one of `replicas` replicas, which counts for `local` limits in this store.
    pub fn new(local: MemoryStore, replicas: u32) -> Self {
        Self { local, replicas }
    }

    /// Answers a whole call by the strictest of its limits: `deny` before `error` before `local`.
    ///
    /// A refund denies nothing, but its loss is an error, unless its limit is `local` or `allow`. A commit is kept for later, and is an
    /// error only where the call does nothing else.
    ///
    /// # Errors
    /// `error`, if a limit is `error` and none denies.
    pub fn answer(&self, charges: &[Charge], error: StoreError) -> Result<Verdict, StoreError> {
        let absent = |charge| Tally::by_failure_mode(charge, JudgedBy::Absent);
        if charges.iter().any(Charge::denies_by_failure_mode) {
            let tallies = charges.iter().map(absent).collect();
            return Ok(Verdict { denied: true, tallies, ..Verdict::default() });
        }
        let mut local = Vec::new();
        for charge in charges {
            match charge.counter.limit.failure_mode() {
                FailureMode::Error | FailureMode::Deny if charge.needs_answer(charges) => {
                    return Err(error);
                }
                FailureMode::Local => local.push(charge.clone()),
                FailureMode::Error | FailureMode::Deny | FailureMode::Allow => {}
            }
        }
        let Verdict { denied, tallies: local_tallies, part, .. } = self.local(&local, self.now());
        let in_memory = |tally| Tally { judged_by: JudgedBy::Absent, ..tally };
        let mut local_tallies = local_tallies.into_iter().map(in_memory);
        let mut tallies = Vec::with_capacity(charges.len());
        for charge in charges {
            if charge.counter.limit.failure_mode() == FailureMode::Local {
                tallies.extend(local_tallies.next());
            } else {
                tallies.push(absent(charge));
            }
        }
        Ok(Verdict { denied, tallies, part, ..Verdict::default() })
    }

    /// Judges these charges in memory at `now`, by this replica's share of their limits.
    pub(super) fn local(&self, charges: &[Charge], now: Timestamp) -> Verdict {
        let shares: Vec<Charge> = charges.iter().map(|charge| self.share(charge)).collect();
        self.local.charge_at(&shares, now)
    }

    /// The time by which memory counts.
    pub(super) fn now(&self) -> Timestamp {
        self.local.now()
    }

    /// Gives back hits that [`local`](Self::local) charged at `made`.
    pub(super) fn give_back<'a>(&self, charges: impl Iterator<Item = &'a Charge>, made: Timestamp) {
        for charge in charges {
            if let Hits::Charge(hits) = charge.hits {
                let Charge { counter, caller, hold, .. } = self.share(charge);
                let give_back = GiveBack { counter, hits, made, caller, hold };
                self.local.give_back_at(&give_back, self.now());
            }
        }
    }

    /// The charge, on this replica's share of its limit.
    fn share(&self, charge: &Charge) -> Charge {
        let limit = &*charge.counter.limit;
        let limit = Limit {
            // The share of a limit of 0 is 0.
            requests_per_unit: limit.requests_per_unit.div_ceil(self.replicas.into()),
            algorithm: match &limit.algorithm {
                Algorithm::TokenBucket { burst } => {
                    Algorithm::TokenBucket { burst: burst.div_ceil(self.replicas.into()) }
                }
                other => other.clone(),
            },
            opens_from: limit.opens_from.map(|from| from.div_ceil(self.replicas.into())),
            // A quota counts as enforced here.
            mode: Mode::Enforced,
            ..limit.clone()
        };
        Charge { counter: charge.counter.with_limit(Arc::new(limit)), ..charge.clone() }
    }
}
