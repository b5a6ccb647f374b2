//! The answer where the store gives none: as each limit's `on_store_failure` says.

use std::sync::Arc;

use super::{StoreError, memory::MemoryStore};
use crate::engine::{
    ledger::{self, Charge, Judgement, Tally},
    request::Hits,
    rule::{Algorithm, Limit, Mode, OnStoreFailure, WhenDenied},
};

/// Answers in place of a store.
#[derive(Debug)]
pub struct Fallback {
    /// Counts what `local` limits admit. Its counters live to the end of their own windows, so a store
    /// that comes and goes grants at most one share in each window.
    local: MemoryStore,
    replicas: u32,
}

impl Fallback {
    /// A fallback for one of `replicas` replicas, which counts `local` limits in this store.
    pub fn new(local: MemoryStore, replicas: u32) -> Self {
        Self { local, replicas }
    }

    /// Answers a whole call: the strictest of its limits wins, `deny` before `error` before `local`.
    ///
    /// A refund denies nothing, but that it is lost is an error, unless its limit says otherwise.
    ///
    /// # Errors
    /// `error`, where a limit says so and none denies.
    pub fn answer(&self, charges: &[Charge], error: StoreError) -> Result<Judgement, StoreError> {
        let denies = |it: &Charge| ledger::denies_without_counter(&it.counter.limit, it.hits);
        let tally = |it: &Charge| Tally::without_counter(&it.counter.limit, it.hits);
        if charges.iter().any(denies) {
            let tallies = charges.iter().map(tally).collect();
            return Ok(Judgement { denied: true, tallies, ..Judgement::default() });
        }
        let modes = charges.iter().map(|it| it.counter.limit.failure_mode());
        if modes.clone().any(|mode| matches!(mode, OnStoreFailure::Error | OnStoreFailure::Deny)) {
            return Err(error);
        }
        let is_local = |it: &&Charge| it.counter.limit.failure_mode() == OnStoreFailure::Local;
        let local: Vec<Charge> = charges.iter().filter(is_local).cloned().collect();
        let Judgement { denied, tallies: local, .. } = self.local(&local);
        let mut local = local.into_iter();
        let tally = |it: &Charge| if is_local(&it) { local.next() } else { Some(tally(it)) };
        let tallies = charges.iter().filter_map(tally).collect();
        Ok(Judgement { denied, tallies, ..Judgement::default() })
    }

    /// Judges these charges in memory, by this replica's share of their limits.
    pub(super) fn local(&self, charges: &[Charge]) -> Judgement {
        let charges: Vec<Charge> = charges.iter().map(|it| self.shared(it)).collect();
        self.local.charge(&charges)
    }

    /// Gives back what [`local`](Self::local) admitted, for a call that was not admitted in the end.
    pub(super) fn undo(&self, charges: &[Charge]) {
        let refund = |it: &Charge| match it.hits {
            Hits::Charge(hits) if it.counter.limit.when_denied == WhenDenied::Free => {
                Some(Charge { hits: Hits::Refund(hits), ..self.shared(it) })
            }
            _ => None,
        };
        let refunds: Vec<Charge> = charges.iter().filter_map(refund).collect();
        self.local.charge(&refunds);
    }

    fn shared(&self, charge: &Charge) -> Charge {
        let limit = &*charge.counter.limit;
        // A limit of 0 admits none, shared or not.
        let share = |hits: u32| hits.div_ceil(self.replicas);
        let limit = Limit {
            requests_per_unit: share(limit.requests_per_unit),
            algorithm: match &limit.algorithm {
                Algorithm::TokenBucket { burst } => Algorithm::TokenBucket { burst: share(*burst) },
                other => other.clone(),
            },
            // A quota counts as enforced here.
            mode: Mode::Enforced,
            ..limit.clone()
        };
        Charge { counter: charge.counter.with_limit(Arc::new(limit)), ..charge.clone() }
    }
}
