//! Hits that callers lease, to spend them in their own process.

use super::{Limiter, Undecided, holds};
use crate::engine::{decision::Decision, ledger::CommitOutcome, plan::Plan, request::HitsMeaning};

impl Limiter {
    /// Refuses a lease of what cannot be leased. Nothing is given back to counters in memory that an earlier process had.
    pub(super) fn check_lent(
        &self,
        plan: &mut Plan,
        meaning: HitsMeaning,
    ) -> Result<(), Undecided> {
        if matches!(meaning, HitsMeaning::Lease | HitsMeaning::Assigned)
            && let Some(rule) = plan.not_leased()
        {
            return Err(Undecided::NotLeased { rule });
        }
        if meaning == HitsMeaning::Lease && !holds::can_name(plan.takes_by_token()) {
            return Err(Undecided::LeaseWithoutToken);
        }
        for charge in &mut plan.charges {
            charge.lose_lease(|made| self.store.has_lost(made.until(self.overrides.now())));
        }
        Ok(())
    }

    pub(super) fn report_lent(&self, decision: &Decision) {
        let taken = decision.taken.iter().flat_map(|taken| &taken.charges);
        let lent = taken.filter(|charge| charge.counter.limit.is_lent()).map(|charge| charge.hits);
        self.store.lent("lent", lent.sum());
        let commits = decision.commits.iter().filter(|commit| commit.limit.is_lent());
        let applied = commits.filter(|commit| commit.outcome == Some(CommitOutcome::Applied));
        let given_back =
            applied.filter_map(|commit| Some(commit.held?.saturating_sub(commit.used?)));
        self.store.lent("given_back", given_back.sum());
    }
}
