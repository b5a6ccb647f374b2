//! What a descriptor matched and how it was judged, in names from the configuration, for spans and log lines.

use std::sync::Arc;

use crate::engine::decision::{Code, Decision, Matched, Outcome};

/// The name of everything that is not configured.
const OTHER: &str = "other";

/// The domain of a decision.
pub(super) fn domain_of(decision: &Decision) -> Arc<str> {
    match decision.statuses.first().map(|status| &status.matched) {
        Some(
            Matched::Rule(domain, _)
            | Matched::Override(domain)
            | Matched::NoLimit(domain)
            | Matched::NoRule(domain),
        ) => Arc::clone(domain),
        Some(Matched::NoDomain) | None => OTHER.into(),
    }
}

/// The rule as it is configured, also if its metrics show values of requests.
pub(super) fn rule_of(matched: &Matched) -> Arc<str> {
    match matched {
        Matched::Rule(_, rule) => Arc::clone(&rule.path),
        Matched::Override(_) => "override".into(),
        Matched::NoLimit(_) => "none".into(),
        Matched::NoRule(_) | Matched::NoDomain => OTHER.into(),
    }
}

/// The verdict on a descriptor.
pub(super) const fn verdict_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Over { .. } => "over_limit",
        Outcome::Shadowed { .. } => "shadow",
        Outcome::NoLimit | Outcome::Unlimited | Outcome::Within { .. } => "ok",
    }
}

/// The verdict on a call.
pub(super) const fn verdict_on_call(decision: &Decision) -> &'static str {
    match decision.code {
        Code::Ok => "ok",
        Code::OverLimit => "over_limit",
    }
}
