//! What the span of a call records of its decision: names from the configuration only.

use opentelemetry::{Array, KeyValue, StringValue, Value};

use super::matched::{DecidedCode, domain_of_call, rule_of, verdict_on_call};
use crate::engine::{decision::Decision, rule::FailureMode};

/// The decision, and the domain and rules that made it.
pub(super) fn decided(decision: &Decision) -> [KeyValue; 4] {
    let statuses = &decision.statuses;
    let rules = statuses.iter().map(|status| rule_of(&status.matched).into());
    let verdicts = statuses.iter().map(|status| DecidedCode::of(status).name().into());
    [
        KeyValue::new("ratelimit.domain", domain_of_call(decision)),
        KeyValue::new("ratelimit.rules", names(rules)),
        KeyValue::new("ratelimit.verdicts", names(verdicts)),
        KeyValue::new("ratelimit.verdict", verdict_on_call(decision)),
    ]
}

pub(super) fn directives(decision: &Decision) -> Option<KeyValue> {
    let statuses = decision.statuses.iter();
    let directives = statuses.filter_map(|status| status.directive.as_ref());
    let names: Vec<StringValue> = directives.map(|one| one.to_string().into()).collect();
    (!names.is_empty()).then(|| KeyValue::new("ratelimit.overrides", Value::Array(names.into())))
}

/// What the call has done with holds: whether it took one, and what has become of its commits.
pub(super) fn holds(decision: &Decision) -> impl Iterator<Item = KeyValue> {
    let taken = decision.taken.as_ref().map(|_| KeyValue::new("ratelimit.hold.taken", true));
    let outcomes = decision.commits.iter().map(|commit| commit.name().into());
    let commits = KeyValue::new("ratelimit.commits", names(outcomes));
    taken.into_iter().chain((!decision.commits.is_empty()).then_some(commits))
}

/// The rules whose `on_store_failure` decided, since the store gave no answer.
pub(super) fn fell_back(rules: Vec<(String, FailureMode)>) -> [KeyValue; 2] {
    let (rules, modes): (Vec<_>, Vec<_>) = rules.into_iter().unzip();
    let modes = modes.into_iter().map(|mode| mode.name().into());
    [
        KeyValue::new("ratelimit.fallback.rules", names(rules.into_iter().map(StringValue::from))),
        KeyValue::new("ratelimit.fallback.modes", names(modes)),
    ]
}

fn names(names: impl Iterator<Item = StringValue>) -> Value {
    Value::Array(Array::String(names.collect()))
}
