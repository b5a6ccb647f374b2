//! Turns decisions into the answers of `tollkeeper.v1`.

use std::time::Duration;

use crate::{
    engine::{
        decision::{Code as DecisionCode, Committed, Decision, Matched, Outcome, Status},
        ledger::CommitOutcome,
        rule::{Limit, Unit},
    },
    limiter::LimitUsage,
    rls::{
        pb::v1::{self, committed_charge, limit::Unit as WireUnit, verdict::Code},
        refusal::Refusal,
    },
    store::{CounterReading, StoreError},
};

/// The verdict on a call.
pub(super) fn verdict(decision: Decision) -> v1::Verdict {
    v1::Verdict {
        code: code(decision.code).into(),
        statuses: decision.statuses.iter().enumerate().map(status).collect(),
        hold: decision.token.unwrap_or_default(),
        ..v1::Verdict::default()
    }
}

fn status((index, Status { matched, outcome, .. }): (usize, &Status)) -> v1::Status {
    let (limit, remaining, reset) = match outcome {
        Outcome::NoLimit | Outcome::Unlimited => (None, 0, None),
        Outcome::Within { limit, remaining, reset } => (Some(limit), *remaining, Some(*reset)),
        Outcome::Shadowed { limit, reset } | Outcome::Over { limit, reset } => {
            (Some(limit), 0, Some(*reset))
        }
    };
    v1::Status {
        code: code(outcome.code()).into(),
        descriptor_index: number(index),
        rule: rule(matched),
        current_limit: limit.map(|limit| current_limit(limit)),
        limit_remaining: remaining,
        duration_until_reset: reset.map(duration),
        used: None,
        held: None,
    }
}

/// The counters of the limits of a call.
pub(super) fn usage(usage: Vec<LimitUsage>) -> Result<v1::Verdict, Refusal> {
    let mut statuses = Vec::with_capacity(usage.len());
    for LimitUsage { descriptor, matched, limit, reading } in usage {
        let state = match reading {
            CounterReading::State(state) => state,
            CounterReading::Corrupt => return Err(StoreError::Corrupt(Vec::new()).into()),
            CounterReading::NoAnswer(cause) => return Err(StoreError::Unavailable(cause).into()),
        };
        let fits = state.remaining > 0;
        statuses.push(v1::Status {
            code: code(if fits { DecisionCode::Ok } else { DecisionCode::OverLimit }).into(),
            descriptor_index: number(descriptor),
            rule: rule(&matched),
            current_limit: Some(current_limit(&limit)),
            limit_remaining: state.remaining,
            duration_until_reset: Some(duration(state.reset)),
            used: Some(state.used),
            held: Some(state.held),
        });
    }
    Ok(v1::Verdict { code: Code::Ok.into(), statuses, ..v1::Verdict::default() })
}

/// What has become of a commit.
pub(super) fn commit_result(commits: &[Committed]) -> Result<v1::CommitResult, Refusal> {
    let charges: Vec<_> = commits.iter().filter_map(committed_charge).collect();
    if charges.is_empty() {
        return Err(Refusal::Invalid(
            "hold: not made for this domain by this service, or not signed with its key".to_owned(),
        ));
    }
    Ok(v1::CommitResult { charges, error: None })
}

/// A hold by token says what it held.
fn committed_charge(commit: &Committed) -> Option<v1::CommittedCharge> {
    let outcome = match commit.outcome {
        None => committed_charge::Outcome::Unknown,
        Some(CommitOutcome::Applied) => committed_charge::Outcome::Applied,
        Some(CommitOutcome::Repeated) => committed_charge::Outcome::Repeated,
        Some(CommitOutcome::Late) => committed_charge::Outcome::Late,
    };
    let ((held, _), used) = (commit.held?, commit.used.unwrap_or_default());
    Some(v1::CommittedCharge { outcome: outcome.into(), held, used })
}

fn code(code: DecisionCode) -> Code {
    match code {
        DecisionCode::Ok => Code::Ok,
        DecisionCode::OverLimit => Code::OverLimit,
    }
}

fn rule(matched: &Matched) -> String {
    match matched {
        Matched::Rule(_, rule) => (*rule.path).to_owned(),
        Matched::Override(_) => "override".to_owned(),
        Matched::NoLimit(_) | Matched::NoRule(_) | Matched::NoDomain => String::new(),
    }
}

fn current_limit(limit: &Limit) -> v1::Limit {
    let unit = match limit.unit {
        _ if limit.counts_calls() => WireUnit::Unknown,
        Unit::Second => WireUnit::Second,
        Unit::Minute => WireUnit::Minute,
        Unit::Hour => WireUnit::Hour,
        Unit::Day => WireUnit::Day,
        Unit::Week => WireUnit::Week,
        Unit::Month => WireUnit::Month,
        Unit::Year => WireUnit::Year,
    };
    v1::Limit {
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
        requests_per_unit: limit.requests_per_unit,
        unit: unit.into(),
        unit_multiplier: limit.unit_multiplier,
    }
}

fn duration(time: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(time).unwrap_or_default()
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
