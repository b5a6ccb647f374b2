//! Calls with corrupt counters of `local` limits: memory judges their charges, and the store is asked
//! once more with the verdict of memory. The other failure modes are part of the store's own verdict.

use std::sync::Arc;

use super::Guard;
use crate::{
    engine::{
        ledger::{Charge, Judgement, Verdict},
        rule::{Limit, OnStoreFailure},
    },
    store::StoreError,
};

impl Guard {
    /// Makes the charges of a call in which those at the indices `local` are judged in memory.
    pub(super) async fn charge_with_local(
        &self,
        charges: &[Charge],
        local: &[usize],
    ) -> Result<Judgement, StoreError> {
        let corrupt: Vec<Charge> =
            local.iter().filter_map(|index| charges.get(*index)).cloned().collect();
        let judged_locally = self.fallback.local(&corrupt);

        let mut resolved = charges.to_vec();
        for (index, tally) in local.iter().zip(&judged_locally.tallies) {
            let on_store_failure = match tally.verdict {
                Verdict::Fits { .. } => OnStoreFailure::Allow,
                Verdict::Over => OnStoreFailure::Deny,
            };
            if let Some(charge) = resolved.get_mut(*index) {
                let limit = Limit { on_store_failure, ..(*charge.counter.limit).clone() };
                charge.counter = charge.counter.with_limit(Arc::new(limit));
            }
        }
        let mut answer = self.store.charge(&resolved).await;

        match &mut answer {
            Ok(judgement) => {
                for (index, tally) in local.iter().zip(&judged_locally.tallies) {
                    if let Some(resolved) = judgement.tallies.get_mut(*index) {
                        *resolved = *tally;
                    }
                }
                if judgement.denied && !judged_locally.denied {
                    self.fallback.undo(&corrupt);
                }
            }
            Err(_) if !judged_locally.denied => self.fallback.undo(&corrupt),
            Err(_) => {}
        }
        answer
    }
}
