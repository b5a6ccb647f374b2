//! What is answered where the store gives no answer: as each limit's `on_store_failure` says.

use std::{sync::Arc, time::Duration};

use super::{StoreError, memory::MemoryStore};
use crate::engine::{
    ledger::{Charge, Tally, Verdict},
    request::Hits,
    rule::{Algorithm, Limit, Mode, OnStoreFailure, WhenDenied},
};

/// The reset of an answer that no counter stands behind.
const RESET: Duration = Duration::from_secs(1);

/// Answers in place of a store.
#[derive(Debug)]
pub struct Fallback {
    /// Counts what `local` limits admit. Its counters live to the end of their own windows, so that a
    /// store that comes and goes grants one share in each window and no more.
    local: MemoryStore,
    replicas: u32,
}

impl Fallback {
    /// A fallback of one of so many replicas, that counts in `local`.
    pub fn new(local: MemoryStore, replicas: u32) -> Self {
        Self { local, replicas }
    }

    /// Answers a whole call, and says whether it is denied: the strictest of its limits wins, `deny` before `error` before `local`.
    ///
    /// A refund has no voice, but that it is lost is an error where the limit does not say otherwise.
    ///
    /// # Errors
    /// `error`, where a limit says so and none denies.
    pub fn answer(
        &self,
        charges: &[Charge],
        error: StoreError,
    ) -> Result<(Vec<Tally>, bool), StoreError> {
        if charges.iter().any(denies) {
            let tally = |it| if denies(it) { over() } else { passes(it) };
            return Ok((charges.iter().map(tally).collect(), true));
        }
        if charges.iter().any(|it| matches!(mode(it), OnStoreFailure::Error | OnStoreFailure::Deny))
        {
            return Err(error);
        }
        let is_local = |it: &&Charge| mode(it) == OnStoreFailure::Local;
        let local: Vec<Charge> = charges.iter().filter(is_local).cloned().collect();
        let judged = self.local(&local);
        let denied = judged.iter().any(|tally| tally.verdict == Verdict::Over);
        let mut judged = judged.into_iter();
        let tally = |it| if is_local(&it) { judged.next() } else { Some(passes(it)) };
        Ok((charges.iter().filter_map(tally).collect(), denied))
    }

    /// Makes these charges in memory, on this replica's share of their limits.
    pub(super) fn local(&self, charges: &[Charge]) -> Vec<Tally> {
        let charges: Vec<Charge> = charges.iter().map(|it| self.shared(it)).collect();
        self.local.charge(&charges)
    }

    /// Takes back what [`local`](Self::local) admitted, where the call was denied after all.
    pub(super) fn undo(&self, charges: &[Charge]) {
        let given = charges.iter().filter_map(|it| match it.hits {
            Hits::Take(hits) if it.counter.limit.when_denied == WhenDenied::Free => {
                Some(Charge { hits: Hits::GiveBack(hits), ..self.shared(it) })
            }
            _ => None,
        });
        self.local.charge(&given.collect::<Vec<_>>());
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
        Charge { counter: charge.counter.under(Arc::new(limit)), ..charge.clone() }
    }
}

/// What is answered for this charge where its counter gives no answer. A shadow has no voice.
pub(super) fn mode(charge: &Charge) -> OnStoreFailure {
    match charge.counter.limit.mode {
        Mode::Shadow => OnStoreFailure::Allow,
        Mode::Enforced | Mode::Quota => charge.counter.limit.on_store_failure,
    }
}

/// Whether it denies the call where its counter gives no answer.
pub(super) fn denies(charge: &Charge) -> bool {
    mode(charge) == OnStoreFailure::Deny && !charge.hits.is_give_back()
}

pub(super) fn over() -> Tally {
    Tally { verdict: Verdict::Over, reset: RESET }
}

/// Nothing is known to be used.
pub(super) fn passes(charge: &Charge) -> Tally {
    Tally { verdict: Verdict::Fits { remaining: charge.counter.limit.most() }, reset: RESET }
}
