//! From the tallies of a plan's charges to a decision.

use std::sync::Arc;

use super::{Plan, is_by_token, item::Item};
use crate::{
    decision::{Code, Committed, Decision, Outcome, Status},
    ledger::{
        self, Charge, CommitOutcome, Fit, HeldCharge, HoldAction, JudgedBy, TakenHold, Tally,
        Verdict,
    },
    request::Hits,
    rule::{Limit, Mode, ModeOverride, TierHeader, headers_of},
};

impl Plan {
    /// The decision, from the store's verdict, which has one tally for each charge, in their order.
    pub fn settle(mut self, mut verdict: Verdict) -> Decision {
        // Nothing is charged for them.
        for skipped in self.skipped(&verdict) {
            let tally = verdict.tallies.get_mut(skipped);
            tally.into_iter().for_each(|tally| tally.judged_by = JudgedBy::Absent);
        }
        let Verdict { tallies, denied, .. } = &verdict;
        debug_assert_eq!(tallies.len(), self.charges.len(), "a store answers every charge");
        let own = self.charges.len() - self.commits;
        // Most calls have none.
        let has_holds = self.charges.iter().any(Charge::has_hold);
        let (mut committed, mut taken_by_id) = (Vec::new(), Vec::new());
        if has_holds {
            let judged = self.charges.iter().zip(tallies);
            let commits = judged.clone().skip(own).chain(judged.take(own));
            committed.extend(commits.filter_map(|(charge, tally)| Committed::of(charge, tally)));
            taken_by_id = self.taken_by_id(&verdict);
        }
        let taken = if *denied || !has_holds { None } else { self.taken(&verdict) };
        let is_quota_without_limit =
            self.mode_override == ModeOverride::Quota && self.items.iter().any(Item::has_no_limit);
        let is_refused = self.is_refused();
        let at = verdict.at.first().copied();
        let full = self.full_groups(&verdict);
        let denies = self.mode_override != ModeOverride::Shadow;
        let passed_groups = (denies && !self.groups.is_empty()).then(|| {
            let groups = self.groups.iter().enumerate();
            let passed = groups.filter(|(group, _)| !full.contains(&(group + 1)));
            passed.map(|(_, group)| group.clone()).collect()
        });
        let is_denied = verdict.denied || is_refused;
        let request_headers = if is_denied { Vec::new() } else { self.tier_headers(&verdict) };
        self.charges.truncate(own);
        let mut judged = self.charges.into_iter().zip(verdict.tallies);
        let mut statuses = Vec::with_capacity(self.items.len());
        for item in self.items {
            match item {
                Item::Settled(status) => statuses.push(status),
                Item::Charged(matched, count, directive) => {
                    let is_exempt = directive.as_ref().is_some_and(|set| set.exempts());
                    let (mut is_of_full_group, mut over_shadow) = (false, None);
                    let outcomes = judged.by_ref().take(count).map(|(charge, tally)| {
                        is_of_full_group |= full.contains(&charge.quota_group);
                        let tried = tally.over_shadow(&charge, is_denied);
                        let tried = tried.map(|limit| (limit, tally.reset));
                        over_shadow = tried.or_else(|| over_shadow.take());
                        outcome(charge, tally)
                    });
                    let (mut by_limit, outcome) = match self.lists_limits && count > 1 {
                        true => {
                            let each: Vec<Outcome> = outcomes.collect();
                            let outcome = each.iter().cloned().reduce(tighter);
                            (each, outcome)
                        }
                        false => (Vec::new(), outcomes.reduce(tighter)),
                    };
                    let outcome = outcome
                        .map(|of_counter| if is_exempt { Outcome::Unlimited } else { of_counter });
                    if is_exempt {
                        by_limit.clear();
                    }
                    if is_exempt || matches!(outcome, Some(Outcome::Over { .. })) {
                        over_shadow = None;
                    }
                    let status = |outcome| Status {
                        matched,
                        outcome,
                        by_limit,
                        is_of_full_group,
                        over_shadow,
                        directive,
                    };
                    statuses.extend(outcome.map(status));
                }
            }
        }
        let is_over = is_refused || verdict.denied && !is_quota_without_limit;
        let code = if is_over { Code::OverLimit } else { Code::Ok };
        Decision {
            code,
            statuses,
            part: verdict.part,
            taken,
            taken_by_id,
            at,
            token: None,
            commits: committed,
            passed_groups,
            request_headers,
        }
    }

    /// The indices of the quotas in whose place another one of their group is charged.
    pub fn skipped(&self, verdict: &Verdict) -> Vec<usize> {
        if !self.charges.iter().any(|charge| charge.draws_first) {
            return Vec::new();
        }
        ledger::skipped(&self.charges, &verdict.tallies)
    }

    fn tier_headers(&self, verdict: &Verdict) -> Vec<TierHeader> {
        let judged = self.charges.iter().zip(&verdict.tallies);
        headers_of(judged.filter_map(|(charge, tally)| tally.tier(&charge.counter.limit)))
    }

    /// What the call has charged for work under way, with an id of its own.
    fn taken_by_id(&self, verdict: &Verdict) -> Vec<(Arc<Limit>, u64)> {
        let charges = self.charges.iter().zip(&verdict.tallies);
        let charges = charges.filter(|(_, tally)| tally.judged_by == JudgedBy::Counter);
        let taken =
            charges.filter_map(|(charge, tally)| match (charge.hold, charge.hits, tally.fit) {
                (Some(HoldAction::ById { .. }), Hits::Charge(hits), Fit::Fits { .. }) => {
                    Some((Arc::clone(&charge.counter.limit), hits))
                }
                _ => None,
            });
        if verdict.denied { Vec::new() } else { taken.collect() }
    }

    /// The numbers of the groups of which a quota is over, but for those in whose place another one is charged.
    fn full_groups(&self, Verdict { tallies, .. }: &Verdict) -> Vec<usize> {
        if self.groups.is_empty() {
            return Vec::new();
        }
        let charges = self.charges.iter().zip(tallies);
        let over = charges.filter(|(charge, tally)| {
            let is_passed = charge.draws_first && tally.judged_by == JudgedBy::Absent;
            let is_over = charge.quota_group > 0 && !charge.always_fits && tally.fit == Fit::Over;
            is_over && !is_passed
        });
        over.map(|(charge, _)| charge.quota_group).collect()
    }

    /// What the call has charged for work under way. The counters are moved out of its charges.
    fn taken(&mut self, verdict: &Verdict) -> Option<TakenHold> {
        let mut charges: Vec<HeldCharge> = Vec::new();
        for (index, (charge, tally)) in self.charges.iter_mut().zip(&verdict.tallies).enumerate() {
            if let Hits::Charge(hits) = charge.hits
                && is_by_token(charge)
                && matches!(tally.fit, Fit::Fits { .. })
                && tally.judged_by == JudgedBy::Counter
                && let Some(made) = verdict.at.get(index).or(verdict.at.first())
            {
                let hits = verdict.part.filter(|_| charge.is_part).unwrap_or(hits);
                let counter = &mut charge.counter;
                match charges.iter_mut().find(|known| known.counter.same_counter(counter)) {
                    // A commit ends a hold once on each counter.
                    Some(known) => known.hits = known.hits.saturating_add(hits).min(Hits::MAX),
                    None => charges.push(HeldCharge { counter: counter.take(), hits, made: *made }),
                }
            }
        }
        (!charges.is_empty()).then_some(TakenHold { id: self.hold_id, charges })
    }
}

impl Committed {
    /// What the charge commits, by its tally.
    pub fn of(charge: &Charge, tally: &Tally) -> Option<Self> {
        let ended = Some(tally.held).filter(|held| *held > 0);
        let (held, deadline, used) = match charge.hold? {
            HoldAction::Commit { held, used, deadline, .. } => {
                (Some(held), Some(deadline), Some(used))
            }
            HoldAction::ById { used, .. } => (ended, None, used),
            HoldAction::EndOldest { .. } => {
                let Hits::Charge(hits) = charge.hits else { return None };
                (ended, None, Some(hits))
            }
            HoldAction::Open { .. }
            | HoldAction::Beside { .. }
            | HoldAction::Occupy { .. }
            | HoldAction::Ban { .. } => return None,
        };
        let outcome = match (tally.fit, charge.hold?) {
            (Fit::Commit(outcome), _) => Some(outcome),
            (_, HoldAction::EndOldest { .. }) => Some(CommitOutcome::Applied),
            // A take.
            (_, HoldAction::ById { .. }) => return None,
            _ => None,
        };
        Some(Self { limit: Arc::clone(&charge.counter.limit), outcome, held, deadline, used })
    }
}

fn outcome(charge: Charge, Tally { fit, reset, judged_by, .. }: Tally) -> Outcome {
    let limit = charge.counter.limit;
    match fit {
        // A limit that is a shadow by the settings alone still has the status OVER_LIMIT.
        Fit::Over if limit.mode_written == Mode::Shadow => {
            Outcome::Within { limit, remaining: 0, reset }
        }
        Fit::Fits { remaining } => Outcome::Within { limit, remaining, reset },
        Fit::Over => Outcome::Over { limit, reset, judged_by },
        Fit::Commit(_) => Outcome::NoLimit,
    }
}

/// Which of two limits on a descriptor is reported: the one with fewer remaining hits, and of two that are over the
/// one with the longer reset.
fn tighter(one: Outcome, other: Outcome) -> Outcome {
    let other_is_tighter = match (&one, &other) {
        (Outcome::Over { reset: one, .. }, Outcome::Over { reset: other, .. }) => other > one,
        (Outcome::Within { remaining: one, .. }, Outcome::Within { remaining: other, .. }) => {
            other < one
        }
        (Outcome::Over { .. }, _) => false,
        (_, other) => matches!(other, Outcome::Over { .. }),
    };
    if other_is_tighter { other } else { one }
}
