//! What was answered on a counter in a window: to a call, by a replica, or by all of them; and what follows from it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        decision::Matched,
        directive::Directive,
        ledger::{Asked, Charge, Fit, JudgedBy, Verdict},
        request::Hits,
        rule::{Lease, Limit},
    },
    text::named::named,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answered {
    pub(super) limit: u64,
    /// The hits of calls that the limit let pass.
    pub(super) hits: u64,
    /// The part of these hits that `on_store_failure` let pass.
    pub(super) by_failure_mode: u64,
    /// The fewest hits that the counter denied.
    pub(super) least_denied: Option<u64>,
    pub(super) doubt: Doubt,
}

/// What keeps a sum from being compared, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Doubt {
    None,
    /// Other hits may have been answered. If these exceed the limit, it is exceeded.
    Incomplete,
    /// Calls had no answer of the counter, and may have been charged.
    Outage,
    /// The counter was changed otherwise than by calls that it let pass, or its limit was.
    Changed,
}

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Finding {
        Exact = "exact",
        Over = "over",
        DeniedEarly = "denied_early",
        Stranded = "stranded",
        Skipped = "skipped",
    }
}

impl Answered {
    pub(super) const fn changed(limit: &Limit) -> Self {
        let (limit, doubt) = (limit.requests_per_unit, Doubt::Changed);
        Self { limit, hits: 0, by_failure_mode: 0, least_denied: None, doubt }
    }

    /// What the charge of this index of a call was answered; `None` if that says nothing, or its rule is never audited.
    pub(super) fn new(
        (matched, directive, charge): (&Matched, Option<&Arc<Directive>>, &Charge),
        index: usize,
        asked: &Asked<'_>,
        verdict: Option<&Verdict>,
    ) -> Option<Self> {
        let limit = &*charge.counter.limit;
        let is_same =
            |own: &&Arc<Limit>| own.window == limit.window && own.algorithm == limit.algorithm;
        let own = match matched {
            Matched::Rule(_, rule) => rule.limits().iter().find(is_same),
            _ => None,
        };
        if own.is_some_and(|own| !own.has_free_hits()) {
            return None;
        }
        let changed = Self::changed(limit);
        if own.is_none()
            || directive.is_some()
            || !limit.has_free_hits()
            || charge.hold.is_some()
            || charge.is_part
            || !matches!(charge.hits, Hits::Charge(_) | Hits::Check)
        {
            return Some(changed);
        }
        let denied = verdict.is_some_and(|verdict| verdict.denied);
        let tally = verdict.and_then(|verdict| verdict.tallies.get(index));
        let by_counter = tally.is_some_and(|tally| tally.judged_by == JudgedBy::Counter);
        let answered = match tally.map(|tally| tally.fit) {
            Some(Fit::Fits { .. }) if !denied => {
                let hits = charge.hits.charged();
                Self { hits, by_failure_mode: if by_counter { 0 } else { hits }, ..changed }
            }
            Some(Fit::Over) if by_counter && denied => {
                // Others may have leased what would have fitted.
                let is_leased = limit.lease == Lease::Auto;
                let denied = (!is_leased).then(|| asked.of(charge));
                Self { least_denied: denied, ..changed }
            }
            _ => changed,
        };
        let doubt = if by_counter { Doubt::None } else { Doubt::Outage };
        let says_nothing = by_counter && answered == changed;
        (!says_nothing).then_some(Self { doubt, ..answered })
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.doubt(if self.limit == other.limit { other.doubt } else { Doubt::Changed });
        self.hits = self.hits.saturating_add(other.hits);
        self.by_failure_mode = self.by_failure_mode.saturating_add(other.by_failure_mode);
        let denied = [self.least_denied, other.least_denied];
        self.least_denied = denied.into_iter().flatten().min();
    }

    pub(super) fn doubt(&mut self, doubt: Doubt) {
        self.doubt = self.doubt.max(doubt);
    }

    /// The same without the hits, which count in another window.
    pub(super) const fn without_hits(self) -> Self {
        Self { hits: 0, by_failure_mode: 0, ..self }
    }

    /// Why the limit is exceeded, if it is.
    pub(super) const fn cause(&self) -> &'static str {
        let is_by_failure_mode = self.hits.saturating_sub(self.by_failure_mode) <= self.limit;
        if self.hits > self.limit && is_by_failure_mode { "outage" } else { "unknown" }
    }

    /// What the sum of all replicas shows, if the counter had this many hits at the end.
    pub(super) fn finding(&self, used: Option<u64>) -> Finding {
        let would_fit = |hits| self.hits.saturating_add(hits) <= self.limit;
        match self.doubt {
            Doubt::Changed => Finding::Skipped,
            _ if self.hits > self.limit => Finding::Over,
            Doubt::Incomplete | Doubt::Outage => Finding::Skipped,
            Doubt::None if self.least_denied.is_some_and(would_fit) => Finding::DeniedEarly,
            Doubt::None if used > Some(self.hits) => Finding::Stranded,
            Doubt::None => Finding::Exact,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Answered =
        Answered { limit: 10, hits: 0, by_failure_mode: 0, least_denied: None, doubt: Doubt::None };

    #[track_caller]
    fn check(sums: &[Answered], used: Option<u64>, expected: Finding) {
        let mut all = NOTHING;
        sums.iter().for_each(|sum| all.add(sum));
        assert_eq!(all.finding(used), expected, "{all:?}");
    }

    fn sum(hits: u64, least_denied: Option<u64>) -> Answered {
        Answered { hits, least_denied, ..NOTHING }
    }

    #[test]
    fn two_replicas_together_are_over_denied_early_or_exact() {
        check(&[sum(5, None), sum(5, Some(1))], Some(10), Finding::Exact);
        check(&[sum(5, None), sum(6, Some(1))], Some(10), Finding::Over);
        check(&[sum(5, Some(2)), sum(4, Some(1))], Some(9), Finding::DeniedEarly);
        check(&[sum(5, Some(9)), sum(4, Some(2))], Some(9), Finding::Exact);
        check(&[sum(5, None), sum(4, None)], Some(10), Finding::Stranded);
        check(&[sum(5, None), sum(4, None)], Some(8), Finding::Exact);
        check(&[sum(5, None), sum(4, None)], None, Finding::Exact);
    }

    #[test]
    fn a_doubt_leaves_only_an_excess_and_a_changed_limit_not_even_that() {
        let of = |doubt, hits| Answered { doubt, ..sum(hits, Some(1)) };
        for doubt in [Doubt::Incomplete, Doubt::Outage] {
            check(&[of(doubt, 3), sum(4, None)], Some(10), Finding::Skipped);
            check(&[of(doubt, 7), sum(4, None)], Some(10), Finding::Over);
        }
        check(&[of(Doubt::Changed, 7), sum(4, None)], Some(10), Finding::Skipped);
        check(&[Answered { limit: 5, ..sum(6, None) }, sum(9, None)], None, Finding::Skipped);
    }

    #[test]
    fn an_outage_is_the_cause_of_an_excess_that_its_hits_explain() {
        for (hits, by_failure_mode, expected) in
            [(11, 1, "outage"), (12, 1, "unknown"), (10, 1, "unknown"), (11, 0, "unknown")]
        {
            assert_eq!(Answered { by_failure_mode, ..sum(hits, None) }.cause(), expected);
        }
    }

    #[test]
    fn a_replica_reads_what_another_one_has_written() {
        for sum in [sum(3, None), Answered { doubt: Doubt::Outage, ..sum(u64::MAX, Some(0)) }] {
            let text = serde_json::to_string(&sum).unwrap();
            assert_eq!(serde_json::from_str::<Answered>(&text).unwrap(), sum);
        }
    }
}
