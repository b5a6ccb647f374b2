//! A call that meets corrupt counters of `local` limits: memory judges those, and the store is asked
//! once more with memory's verdict. The other failure modes are part of the store's own verdict.

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
        let at_fault: Vec<Charge> =
            local.iter().filter_map(|index| charges.get(*index)).cloned().collect();
        let judged = self.fallback.local(&at_fault);

        let mut resolved = charges.to_vec();
        for (index, tally) in local.iter().zip(&judged.tallies) {
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
                for (index, tally) in local.iter().zip(&judged.tallies) {
                    if let Some(known) = judgement.tallies.get_mut(*index) {
                        *known = *tally;
                    }
                }
                if judgement.denied && !judged.denied {
                    self.fallback.undo(&at_fault);
                }
            }
            Err(_) if !judged.denied => self.fallback.undo(&at_fault),
            Err(_) => {}
        }
        answer
    }
}
