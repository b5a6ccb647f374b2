//! The debug line of a decision: what the call matched, what it was charged, and the verdict. A caller is a digest,
//! with a key that ends with the process: lines of one caller can be found, and its values cannot be guessed.

use std::{
    fmt::{self, Write as _},
    hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState},
    sync::OnceLock,
};

use super::matched::{DecidedCode, domain_of_call, rule_of, verdict_on_call};
use crate::engine::{
    decision::{Decision, Outcome, Status},
    directive::DirectiveAction,
    request::{Descriptor, Hits, Request},
};
use crate::telemetry::DECISIONS;

static KEY: OnceLock<RandomState> = OnceLock::new();

/// Logs a decision, if lines of this target are written at the level `debug`.
pub(super) fn log_decision(request: &Request, decision: &Decision) {
    if !tracing::enabled!(target: DECISIONS, tracing::Level::DEBUG) {
        return;
    }
    let mut descriptors = String::new();
    for (descriptor, status) in request.descriptors.iter().zip(&decision.statuses) {
        let separator = if descriptors.is_empty() { "" } else { "; " };
        let line = DescriptorLine { descriptor, status };
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
}

impl fmt::Display for DescriptorLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptor, status } = self;
        write!(f, "{} ", rule_of(&status.matched))?;
        match descriptor.hits {
            Hits::Charge(hits) => write!(f, "charge {hits}")?,
            Hits::Check | Hits::Commit => f.write_str("check")?,
            Hits::Refund(hits) => write!(f, "refund {hits}")?,
        }
        write!(f, ": {}", DecidedCode::of(&status.outcome).name())?;
        match status.outcome.of_limit() {
            Some((limit, remaining, reset)) => {
                write!(f, ", {remaining} left of {limit}, resets in {reset:?}")?;
            }
            None if status.outcome == Outcome::Unlimited => f.write_str(", unlimited")?,
            None => f.write_str(", no limit")?,
        }
        if let Some(directive) = &status.directive {
            let is_exempt = directive.action == DirectiveAction::Allow;
            write!(f, ", {}override {directive}", if is_exempt { "exempt by " } else { "" })?;
        }
        write!(f, ", caller {:016x}", digest(descriptor))
    }
}

fn digest(descriptor: &Descriptor) -> u64 {
    let mut hasher = KEY.get_or_init(RandomState::new).build_hasher();
    for entry in &descriptor.entries {
        (&entry.key, &entry.value).hash(&mut hasher);
    }
    hasher.finish()
}
