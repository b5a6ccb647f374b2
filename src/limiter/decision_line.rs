//! The debug line of a decision: what the call matched, what it was charged, and the verdict. A caller is a digest, as in
//! the lists of keys: lines of one caller can be found, and its values cannot be guessed.

use std::fmt::{self, Write as _};

use super::matched::{DecidedCode, domain_of_call, rule_of, verdict_on_call};
use crate::engine::{
    decision::{Decision, Matched, Outcome, Status},
    directive::DirectiveAction,
    key,
    request::{Descriptor, Hits, Request},
    rule_set::RuleSet,
};
use crate::telemetry::DECISIONS;

/// Logs a decision, if lines of this target are written at the level `debug`.
pub(super) fn log_decision(
    rules: &RuleSet,
    request: &Request,
    decision: &Decision,
    digest: impl Fn(u64) -> String,
) {
    if !tracing::enabled!(target: DECISIONS, tracing::Level::DEBUG) {
        return;
    }
    let mut descriptors = String::new();
    for (descriptor, status) in request.descriptors.iter().zip(&decision.statuses) {
        let separator = if descriptors.is_empty() { "" } else { "; " };
        let caller = digest(id_of(rules, &request.domain, descriptor, status));
        let line = DescriptorLine { descriptor, status, caller };
        // Writing to a string does not fail.
        let _ = write!(descriptors, "{separator}{line}");
    }
    tracing::debug!(
        target: DECISIONS,
        domain = &*domain_of_call(decision),
        verdict = verdict_on_call(decision),
        descriptors,
        "decided"
    );
}

/// `RULE HITS VERDICT (LIMIT, …) caller DIGEST`.
struct DescriptorLine<'call> {
    descriptor: &'call Descriptor,
    status: &'call Status,
    caller: String,
}

impl fmt::Display for DescriptorLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptor, status, caller } = self;
        write!(f, "{} ", rule_of(&status.matched))?;
        match descriptor.hits {
            Hits::Charge(hits) => write!(f, "charge {hits}")?,
            Hits::Check | Hits::Commit => f.write_str("check")?,
            Hits::Refund(hits) => write!(f, "refund {hits}")?,
        }
        write!(f, ": {}", DecidedCode::of(status).name())?;
        match status.outcome.of_limit() {
            Some((limit, remaining, reset)) => {
                write!(f, ", {remaining} left of {limit}, resets in {reset:?}")?;
            }
            None if status.outcome == Outcome::Unlimited => f.write_str(", unlimited")?,
            None => f.write_str(", no limit")?,
        }
        if let (Outcome::Within { limit, .. }, Some((tried, _))) =
            (&status.outcome, &status.over_shadow)
            && tried != limit
        {
            write!(f, ", over its shadow of {tried}")?;
        }
        if status.outcome.is_by_failure_mode() {
            f.write_str(", by on_store_failure")?;
        }
        if let Some(directive) = &status.directive {
            let is_exempt = directive.action == DirectiveAction::Allow;
            write!(f, ", {}override {directive}", if is_exempt { "exempt by " } else { "" })?;
        }
        write!(f, ", caller {caller}")
    }
}

/// The id of the counters of a descriptor, also of one that has none.
fn id_of(rules: &RuleSet, domain: &str, descriptor: &Descriptor, status: &Status) -> u64 {
    let counted_by = match &status.matched {
        Matched::Rule(_, rule) => &rule.counted_by[..],
        _ => &[],
    };
    key::id_of(&key::business_id_of(domain, &rules.path(domain, &descriptor.entries), counted_by))
}
