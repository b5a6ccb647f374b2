//! What a descriptor matched and how it was judged, in names from the configuration, for metrics, spans and log lines.

use std::sync::Arc;

use crate::{
    engine::decision::{Code, Decision, Matched, Status},
    text::named::named,
};

/// The name of everything that is not configured.
pub(super) const OTHER: &str = "other";

/// The name of a limit that is sent with the request, in place of a rule.
pub(super) const OVERRIDE: &str = "override";

/// The name where a domain has no limit for a descriptor, in place of a rule.
pub(super) const NONE: &str = "none";

named! {
    #[derive(Debug, Clone, Copy)]
    pub(super) enum DecidedCode {
        Ok = "ok",
        OverLimit = "over_limit",
        Shadow = "shadow",
    }
}

impl DecidedCode {
    pub(super) fn of(status: &Status) -> Self {
        match status.outcome.code() {
            Code::OverLimit => Self::OverLimit,
            Code::Ok if status.over_shadow.is_some() => Self::Shadow,
            Code::Ok => Self::Ok,
        }
    }
}

pub(super) fn domain_of_call(decision: &Decision) -> Arc<str> {
    decision.statuses.first().map_or_else(|| OTHER.into(), |status| domain_of(&status.matched))
}

pub(super) fn domain_of(matched: &Matched) -> Arc<str> {
    match matched {
        Matched::Rule(domain, _)
        | Matched::Override(domain)
        | Matched::NoLimit(domain)
        | Matched::NoRule(domain) => Arc::clone(domain),
        Matched::NoDomain => OTHER.into(),
    }
}

/// The rule as it is configured, also if its metrics show values of requests.
pub(super) fn rule_of(matched: &Matched) -> Arc<str> {
    match matched {
        Matched::Rule(_, rule) => Arc::clone(&rule.path),
        Matched::Override(_) => OVERRIDE.into(),
        Matched::NoLimit(_) => NONE.into(),
        Matched::NoRule(_) | Matched::NoDomain => OTHER.into(),
    }
}

pub(super) const fn verdict_on_call(decision: &Decision) -> &'static str {
    match decision.code {
        Code::Ok => DecidedCode::Ok.name(),
        Code::OverLimit => DecidedCode::OverLimit.name(),
    }
}
