//! Turns decisions into the answers of `tollkeeper.v1`.

use std::{sync::Arc, time::Duration};

use super::ANSWER_BYTES;
use crate::{
    engine::{
        decision::{Code as DecisionCode, Committed, Decision, Matched, Status},
        ledger::CommitOutcome,
        rule::{LEASE_LIFE, Limit},
    },
    fields::{nested, number, text, write_bytes, write_number},
    limiter::LimitUsage,
    rls::{
        encode::unit,
        pb::v1::{self, committed_charge, verdict::Code},
        refusal::Refusal,
    },
};

/// The verdict on a call, and the hits of a part, as a message. It is written field by field, since a batch has many, and the
/// generated type would need a copy of each name.
pub(super) fn verdict(decision: &Decision, hits: u64) -> Vec<u8> {
    let mut verdict = Vec::with_capacity(ANSWER_BYTES);
    number(1, code(decision.code), &mut verdict);
    for (index, Status { matched, outcome, .. }) in decision.statuses.iter().enumerate() {
        nested(2, &mut verdict, |status| {
            number(1, code(outcome.code()), status);
            write_status(index, matched, outcome.of_limit(), status);
        });
    }
    text(3, decision.token.as_deref().unwrap_or_default(), &mut verdict);
    number(5, hits, &mut verdict);
    let is_unknown = |status: &Status| matches!(status.matched, Matched::NoDomain);
    number(7, decision.statuses.iter().any(is_unknown).into(), &mut verdict);
    verdict
}

/// Adds how long the hits of a lease may be spent.
pub(super) fn spend_within(decision: &Decision, verdict: &mut Vec<u8>) {
    let charges = decision.taken.iter().flat_map(|taken| &taken.charges);
    let lives = charges.map(|charge| charge.counter.limit.lease_life(charge.made));
    duration(6, lives.min().unwrap_or(LEASE_LIFE), verdict);
}

fn duration(field: u8, time: Duration, to: &mut Vec<u8>) {
    nested(field, to, |to| {
        number(1, time.as_secs(), to);
        number(2, time.subsec_nanos().into(), to);
    });
}

fn write_status(
    descriptor: usize,
    matched: &Matched,
    of_limit: Option<(&Arc<Limit>, u64, Duration)>,
    status: &mut Vec<u8>,
) {
    number(2, u64::try_from(descriptor).unwrap_or(u64::MAX), status);
    text(3, rule(matched), status);
    if let Some((limit, remaining, reset)) = of_limit {
        nested(4, status, |written| {
            text(1, limit.name.as_deref().unwrap_or_default(), written);
            number(2, limit.requests_per_unit, written);
            number(3, unit(limit) as u64, written);
            number(4, limit.unit_multiplier.into(), written);
        });
        number(5, remaining, status);
        duration(6, reset, status);
    }
}

/// The counters of the limits of a call.
pub(super) fn usage(usage: Vec<LimitUsage>) -> Vec<u8> {
    let mut verdict = Vec::new();
    number(1, code(DecisionCode::Ok), &mut verdict);
    for LimitUsage { descriptor, matched, limit, state } in usage {
        nested(2, &mut verdict, |status| {
            let fits = state.remaining > 0;
            number(1, code(if fits { DecisionCode::Ok } else { DecisionCode::OverLimit }), status);
            let of_limit = Some((&limit, state.remaining, state.reset));
            write_status(descriptor, &matched, of_limit, status);
            // They are there even if they are 0.
            write_number(7, state.used, status);
            write_number(8, state.held, status);
        });
    }
    verdict
}

pub(super) fn commit_result(commits: &[Committed]) -> Result<v1::CommitResult, Refusal> {
    let charges: Vec<_> = commits.iter().filter_map(committed_charge).collect();
    if charges.is_empty() {
        return Err(Refusal::Invalid(
            "hold: not made for this domain by this service, or not signed with its key".to_owned(),
        ));
    }
    Ok(v1::CommitResult { charges, error: None })
}

pub(super) fn renew_result(commit: &[u8], verdict: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(commit.len() + verdict.len() + ANSWER_BYTES);
    write_bytes(1, commit, &mut result);
    write_bytes(2, verdict, &mut result);
    result
}

/// A hold by token says what it held.
fn committed_charge(commit: &Committed) -> Option<v1::CommittedCharge> {
    let outcome = match commit.outcome {
        None => committed_charge::Outcome::Unknown,
        Some(CommitOutcome::Applied) => committed_charge::Outcome::Applied,
        Some(CommitOutcome::Repeated) => committed_charge::Outcome::Repeated,
        Some(CommitOutcome::Late) => committed_charge::Outcome::Late,
    };
    let (held, used) = (commit.held?, commit.used.unwrap_or_default());
    commit.deadline?;
    Some(v1::CommittedCharge { outcome: outcome.into(), held, used })
}

fn code(code: DecisionCode) -> u64 {
    let code = match code {
        DecisionCode::Ok => Code::Ok,
        DecisionCode::OverLimit => Code::OverLimit,
    };
    code as u64
}

fn rule(matched: &Matched) -> &str {
    match matched {
        Matched::Rule(_, rule) => &rule.path,
        Matched::Override(_) => "override",
        Matched::NoLimit(_) | Matched::NoRule(_) | Matched::NoDomain => "",
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::{
        engine::{
            decision::Outcome,
            ledger::JudgedBy,
            rule::{Policy, Rule, Unit},
        },
        rls::pb::v1::limit::Unit as WireUnit,
    };

    #[test]
    fn a_verdict_is_read_as_it_was_written_also_with_long_names() {
        for (path, name) in [("user", ""), (&*"x".repeat(127), "n"), (&*"x".repeat(20_000), "n")] {
            let limit = Limit { name: Some(name.into()), ..Limit::new(9, Unit::Hour, 2).unwrap() };
            let (limit, reset) = (Arc::new(limit), Duration::new(7_200, 5));
            let rule = Arc::new(Rule::new(path, "f:1".into(), Policy::Unlimited));
            let matched = Matched::Rule("shop".into(), rule);
            let outcomes = [
                Outcome::Within { limit: Arc::clone(&limit), remaining: 300, reset },
                Outcome::NoLimit,
                Outcome::Over { limit, reset, judged_by: JudgedBy::Counter },
            ];
            let status = |outcome| Status::settled(matched.clone(), outcome, None);
            let decision = Decision {
                code: DecisionCode::OverLimit,
                part: None,
                statuses: outcomes.map(status).into(),
                taken: None,
                taken_by_id: Vec::new(),
                at: None,
                token: Some("t".repeat(200)),
                commits: Vec::new(),
                passed_groups: None,
                request_headers: Vec::new(),
            };
            let read = v1::Verdict::decode(&*verdict(&decision, 42)).unwrap();
            let limit = v1::Limit {
                name: name.to_owned(),
                requests_per_unit: 9,
                unit: WireUnit::Hour.into(),
                unit_multiplier: 2,
            };
            let expected = |code: Code, index, remaining, has_limit: bool| v1::Status {
                code: code.into(),
                descriptor_index: index,
                rule: path.to_owned(),
                current_limit: has_limit.then(|| limit.clone()),
                limit_remaining: remaining,
                duration_until_reset: has_limit
                    .then_some(prost_types::Duration { seconds: 7_200, nanos: 5 }),
                used: None,
                held: None,
            };
            let statuses = vec![
                expected(Code::Ok, 0, 300, true),
                expected(Code::Ok, 1, 0, false),
                expected(Code::OverLimit, 2, 0, true),
            ];
            let code = Code::OverLimit.into();
            let expected = v1::Verdict {
                code,
                statuses,
                hold: "t".repeat(200),
                hits: 42,
                ..Default::default()
            };
            assert_eq!(read, expected);
        }
    }
}
