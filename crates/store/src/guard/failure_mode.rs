//! Calls with counters of `local` limits that are corrupt, or that no server answers for: memory judges their
//! charges, and the store decides once more with memory's verdict. The other failure modes are part of the
//! store's own verdict.

use std::sync::Arc;

use tokio::time::Instant;
use tollkeeper_engine::{
    ledger::{Charge, Fit, Tally, Verdict},
    request::Hits,
    rule::{FailureMode, Limit, WhenDenied},
    time::Timestamp,
};

use super::Guard;
use crate::{StoreError, fallback::Fallback};

/// Memory's verdict on charges. If it is dropped before the store has decided the call, for instance because
/// the budget has passed, what it charged is given back.
struct LocalVerdict<'call> {
    fallback: &'call Fallback,
    charges: Vec<Charge>,
    made: Timestamp,
    verdict: Verdict,
    is_settled: bool,
}

impl<'call> LocalVerdict<'call> {
    fn new(fallback: &'call Fallback, mut charges: Vec<Charge>) -> Self {
        let made = fallback.now();
        let verdict = fallback.local(&charges, made);
        cap(&mut charges, verdict.part);
        Self { fallback, charges, made, verdict, is_settled: false }
    }

    /// Keeps what was charged, of a part also what the store does not admit. In a call that is `denied` it keeps only hits
    /// that count when denied.
    fn settle(&mut self, denied: bool) {
        self.is_settled = true;
        if denied && !self.verdict.denied {
            let charged = self.charges.iter().filter(|charge| !counts_if_denied(charge));
            self.fallback.give_back(charged, self.made);
        }
    }
}

impl Drop for LocalVerdict<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            let denied = self.verdict.denied;
            let charged = self.charges.iter().filter(|charge| !denied || counts_if_denied(charge));
            self.fallback.give_back(charged, self.made);
        }
    }
}

/// Charges this number of hits of each part.
fn cap(charges: &mut [Charge], part: Option<u64>) {
    for charge in charges.iter_mut().filter(|charge| charge.is_part) {
        charge.hits = part.map_or(charge.hits, Hits::Charge);
    }
}

fn counts_if_denied(charge: &Charge) -> bool {
    charge.when_denied() == WhenDenied::Counted
}

impl Guard {
    /// Makes the charges of a call in which those at the indices `local` are judged in memory, since their counters are corrupt
    /// or gave no answer, which was this error.
    pub(super) async fn charge_with_local(
        &self,
        charges: &[Charge],
        local: &[usize],
        error: &StoreError,
        until: Instant,
    ) -> Result<Verdict, StoreError> {
        // The store is queried once more for a counter that is corrupt.
        let (absent, refunded) = match error {
            StoreError::Unreachable { charges, refunded, .. } => (&charges[..], &refunded[..]),
            _ => (&[][..], &[][..]),
        };
        let corrupt = local.iter().filter_map(|index| charges.get(*index)).cloned().collect();
        let mut in_memory = LocalVerdict::new(&self.fallback, corrupt);

        let mut resolved = charges.to_vec();
        cap(&mut resolved, in_memory.verdict.part);
        for (index, tally) in local.iter().zip(&in_memory.verdict.tallies) {
            let on_store_failure = match tally.fit {
                Fit::Fits { .. } | Fit::Commit(_) => FailureMode::Allow,
                Fit::Over => FailureMode::Deny,
            };
            if let Some(charge) = resolved.get_mut(*index) {
                let limit = Limit { on_store_failure, ..(*charge.counter.limit).clone() };
                charge.counter = charge.counter.with_limit(Arc::new(limit));
            }
        }
        for index in refunded {
            if let Some(charge) = resolved.get_mut(*index) {
                charge.hits = Hits::Refund(0);
            }
        }
        let mut verdict = self.store.charge_without(&resolved, absent, until).await?;

        for (index, tally) in local.iter().zip(&in_memory.verdict.tallies) {
            if let Some(resolved) = verdict.tallies.get_mut(*index) {
                *resolved = Tally { judged_by: resolved.judged_by, ..*tally };
            }
        }
        in_memory.settle(verdict.denied);
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use tollkeeper_engine::{key::Counter, rule::Unit};

    const NOW: Timestamp = Timestamp::from_secs(1_795_215_600);

    fn charge(hits: Hits, when_denied: WhenDenied) -> Charge {
        let limit = Limit { when_denied, ..Limit::new(10, Unit::Year, 1).unwrap() };
        Charge::new(Counter::new("shop", &[], Arc::new(limit)), hits)
    }

    fn remaining(fallback: &Fallback) -> Fit {
        let Verdict { tallies, .. } = fallback.local(&[charge(Hits::Check, WhenDenied::Free)], NOW);
        let [Tally { fit, .. }] = tallies[..] else { panic!("one tally: {tallies:?}") };
        fit
    }

    #[test]
    fn hits_charged_in_memory_stand_only_if_the_store_decides_the_call() {
        for (when_denied, hits, decided, left) in [
            (WhenDenied::Free, 3, Some(false), 7),
            (WhenDenied::Free, 3, Some(true), 10),
            (WhenDenied::Free, 3, None, 10),
            (WhenDenied::Free, 11, None, 10),
            (WhenDenied::Counted, 3, Some(true), 7),
            (WhenDenied::Counted, 3, None, 10),
            (WhenDenied::Counted, 11, None, 10),
        ] {
            let fallback = Fallback::new(MemoryStore::new(|| NOW), 1);
            let charges = vec![charge(Hits::Charge(hits), when_denied)];
            let mut in_memory = LocalVerdict::new(&fallback, charges);
            if let Some(denied) = decided {
                in_memory.settle(denied);
            }
            drop(in_memory);
            let expected = Fit::Fits { remaining: left };
            assert_eq!(remaining(&fallback), expected, "{when_denied:?}, {hits}: {decided:?}");
        }
    }
}
