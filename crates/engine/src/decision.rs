//! The answer to one call.

use std::{sync::Arc, time::Duration};

use crate::{
    directive::Directive,
    ledger::{CommitOutcome, JudgedBy, TakenHold},
    request::Entry,
    rule::{Limit, Rule, TierHeader},
    time::Timestamp,
};

/// The answer to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the call may pass.
    pub code: Code,
    /// One for each descriptor, in the request's order.
    pub statuses: Vec<Status>,
    /// The hits of a part that were charged to each descriptor, if the call has one, is admitted, and meets a limit.
    pub part: Option<u64>,
    /// What was charged for work under way, with a token.
    pub taken: Option<TakenHold>,
    /// The hits that were charged for work under way, with an id in the call.
    pub taken_by_id: Vec<(Arc<Limit>, u64)>,
    /// The store's time of the first charge, if it gave an answer.
    pub at: Option<Timestamp>,
    /// Its token, for the answer.
    pub token: Option<String>,
    /// What has become of the commits.
    pub commits: Vec<Committed>,
    /// The groups of quotas with room, by their entries; `None` if the call has no quota in a group.
    pub passed_groups: Option<Vec<Vec<Entry>>>,
    /// The headers that the tiers of its limits add to the request; none if it is denied.
    pub request_headers: Vec<TierHeader>,
}

/// One counter's part of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The limit.
    pub limit: Arc<Limit>,
    /// What has become of it; `None` if the store gave no answer, and the commit may be kept.
    pub outcome: Option<CommitOutcome>,
    /// The hits that the take charged or held, if they are known.
    pub held: Option<u64>,
    /// The deadline of the take, if the commit says so: it is one by token.
    pub deadline: Option<Timestamp>,
    /// The true number, if it is known.
    pub used: Option<u64>,
}

impl Committed {
    /// What has become of it, in one word.
    pub fn name(&self) -> &'static str {
        match self.outcome {
            None => "unsent",
            Some(CommitOutcome::Repeated) => "repeated",
            Some(CommitOutcome::Late) => "late",
            Some(CommitOutcome::Applied) if self.used == Some(0) => "unused",
            // A call in flight has a place, whatever it uses.
            Some(CommitOutcome::Applied) if self.limit.counts_calls() => "committed",
            Some(CommitOutcome::Applied) if self.overrun().is_some() => "overrun",
            Some(CommitOutcome::Applied) => "committed",
        }
    }

    /// What was held and what was used, if more was used.
    pub fn overrun(&self) -> Option<(u64, u64)> {
        self.held.zip(self.used).filter(|(held, used)| used > held)
    }
}

/// Whether a call or a descriptor may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// It may pass.
    Ok,
    /// It is over a limit.
    OverLimit,
}

/// The answer for one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What it matched.
    pub matched: Matched,
    /// How it was judged.
    pub outcome: Outcome,
    /// How each of several limits judged it, in their order, if the plan lists them.
    pub by_limit: Vec<Outcome>,
    /// Whether it is a quota in a group that has no room.
    pub is_of_full_group: bool,
    /// The limit that it is over, with the time until its reset, if that limit is only tried: it is a shadow, or the number of
    /// [`Limit::shadow`]. `None` if another limit denies the descriptor.
    pub over_shadow: Option<(Arc<Limit>, Duration)>,
    /// What an operator has set for the descriptor, if that has changed what applies.
    pub directive: Option<Arc<Directive>>,
}

impl Status {
    /// A status that no counter has judged.
    pub const fn settled(
        matched: Matched,
        outcome: Outcome,
        directive: Option<Arc<Directive>>,
    ) -> Self {
        Self {
            matched,
            outcome,
            by_limit: Vec::new(),
            is_of_full_group: false,
            over_shadow: None,
            directive,
        }
    }
}

/// What a descriptor matched: the labels of its decision, all from the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// A rule of this domain.
    Rule(Arc<str>, Arc<Rule>),
    /// The request's own limit, in this domain.
    Override(Arc<str>),
    /// A descriptor of this domain that has no limit.
    NoLimit(Arc<str>),
    /// No rule of this domain.
    NoRule(Arc<str>),
    /// Nothing: its domain is not configured.
    NoDomain,
}

impl Matched {
    /// The rule that its limits are of, as logs and metrics name it: its path, or `override` for a limit of the request.
    pub fn rule_label(&self) -> &str {
        match self {
            Self::Rule(_, rule) => &rule.path,
            _ => "override",
        }
    }
}

/// How one descriptor was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// No limit applies.
    NoLimit,
    /// Its rule is `unlimited`.
    Unlimited,
    /// Within the limit, or over one of a rule in shadow mode, with 0 remaining hits.
    Within {
        /// The limit; of several, the one with the fewest remaining hits.
        limit: Arc<Limit>,
        /// Number of further hits that would pass.
        remaining: u64,
        /// See [`Tally::reset`](crate::ledger::Tally::reset).
        reset: Duration,
    },
    /// Over the limit.
    Over {
        /// The limit; of several, the one with the longest reset.
        limit: Arc<Limit>,
        /// See [`Tally::reset`](crate::ledger::Tally::reset).
        reset: Duration,
        /// What has judged it: [`JudgedBy::Counter`], or `on_store_failure`.
        judged_by: JudgedBy,
    },
}

impl Outcome {
    /// Whether `on_store_failure` has denied it, since its counter gave no answer.
    pub const fn is_by_failure_mode(&self) -> bool {
        matches!(self, Self::Over { judged_by: JudgedBy::Absent | JudgedBy::Corrupt, .. })
    }

    /// The limit that decided, the remaining hits, and the time until its reset; `None` without a limit.
    pub const fn of_limit(&self) -> Option<(&Arc<Limit>, u64, Duration)> {
        match self {
            Self::NoLimit | Self::Unlimited => None,
            Self::Within { limit, remaining, reset } => Some((limit, *remaining, *reset)),
            Self::Over { limit, reset, .. } => Some((limit, 0, *reset)),
        }
    }

    /// Whether the descriptor may pass.
    pub fn code(&self) -> Code {
        match self {
            Self::Over { .. } => Code::OverLimit,
            Self::NoLimit | Self::Unlimited | Self::Within { .. } => Code::Ok,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Algorithm, Policy, Unit};

    fn limit() -> Arc<Limit> {
        Arc::new(Limit::new(5, Unit::Minute, 1).unwrap())
    }

    #[test]
    fn a_commit_is_named_by_what_has_become_of_it_and_by_what_was_used() {
        let calls = Algorithm::InFlight { remember: None };
        let calls = Arc::new(Limit { algorithm: calls, ..Limit::clone(&limit()) });
        let (applied, limit) = (Some(CommitOutcome::Applied), limit());
        for (limit, outcome, held, used, name, overrun) in [
            (&limit, None, Some(4), Some(9), "unsent", Some((4, 9))),
            (&limit, Some(CommitOutcome::Repeated), Some(4), Some(3), "repeated", None),
            (&limit, Some(CommitOutcome::Late), Some(4), Some(3), "late", None),
            (&limit, applied, Some(4), Some(0), "unused", None),
            (&limit, applied, Some(4), Some(4), "committed", None),
            (&limit, applied, Some(4), Some(5), "overrun", Some((4, 5))),
            (&limit, applied, None, Some(5), "committed", None),
            (&limit, applied, Some(4), None, "committed", None),
            (&calls, applied, Some(1), Some(5), "committed", Some((1, 5))),
        ] {
            let limit = Arc::clone(limit);
            let committed = Committed { limit, outcome, held, deadline: None, used };
            assert_eq!((committed.name(), committed.overrun()), (name, overrun), "{committed:?}");
        }
    }

    #[test]
    fn an_outcome_has_a_code_a_limit_and_perhaps_no_counter() {
        let reset = Duration::from_secs(7);
        let over = |judged_by| Outcome::Over { limit: limit(), reset, judged_by };
        let within = Outcome::Within { limit: limit(), remaining: 3, reset };
        for (outcome, code, of_limit, is_by_failure_mode) in [
            (Outcome::NoLimit, Code::Ok, None, false),
            (Outcome::Unlimited, Code::Ok, None, false),
            (within, Code::Ok, Some((&limit(), 3, reset)), false),
            (over(JudgedBy::Counter), Code::OverLimit, Some((&limit(), 0, reset)), false),
            (over(JudgedBy::Absent), Code::OverLimit, Some((&limit(), 0, reset)), true),
            (over(JudgedBy::Corrupt), Code::OverLimit, Some((&limit(), 0, reset)), true),
        ] {
            assert_eq!((outcome.code(), outcome.of_limit()), (code, of_limit), "{outcome:?}");
            assert_eq!(outcome.is_by_failure_mode(), is_by_failure_mode, "{outcome:?}");
        }
    }

    #[test]
    fn limits_have_the_label_of_their_rule_or_of_the_request() {
        let rule = Arc::new(Rule::new("user", String::new(), Policy::Unlimited));
        assert_eq!(Matched::Rule("shop".into(), rule).rule_label(), "user");
        assert_eq!(Matched::Override("shop".into()).rule_label(), "override");
    }
}
