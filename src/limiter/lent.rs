//! Hits that callers lease, to spend them in their own process.

use super::{Limiter, Undecided};
use crate::engine::{
    decision::Decision,
    ledger::{CommitOutcome, HoldAction},
    plan::Plan,
    request::HitsMeaning,
};

impl Limiter {
    /// Refuses a lease of what cannot be leased. Nothing is given back to a counter that may have been lost since the lease:
    /// these would be hits of others.
    pub(super) fn check_lent(
        &self,
        plan: &mut Plan,
        meaning: HitsMeaning,
    ) -> Result<(), Undecided> {
        if meaning == HitsMeaning::Lease
            && let Some(rule) = plan.not_leased()
        {
            return Err(Undecided::NotLeased { rule });
        }
        for charge in &mut plan.charges {
            if let Some(HoldAction::Commit { held, used, made, .. }) = &mut charge.hold
                && charge.counter.limit.is_lent()
                && *used < *held
                && !self.store.has_kept(&charge.counter, made.until(self.overrides.now()))
            {
                *used = *held;
            }
        }
        Ok(())
    }

    pub(super) fn report_lent(&self, decision: &Decision) {
        let taken = decision.taken.iter().flat_map(|taken| &taken.charges);
        let lent = taken.filter(|charge| charge.counter.limit.is_lent()).map(|charge| charge.hits);
        self.store.lent("lent", lent.sum());
        let commits = decision.commits.iter().filter(|commit| commit.limit.is_lent());
        let applied = commits.filter(|commit| commit.outcome == Some(CommitOutcome::Applied));
        let given_back = applied.filter_map(|commit| {
            let (held, _) = commit.held?;
            Some(held.saturating_sub(commit.used?))
        });
        self.store.lent("given_back", given_back.sum());
    }
}
