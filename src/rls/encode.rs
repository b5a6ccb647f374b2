//! Turns a decision into the wire's answer, with a complete status for every descriptor.

use prost_types::Struct;

use super::headers::{self, Headers};
use super::metadata;
use super::pb::{
    RateLimitResponse,
    rate_limit_response::{Code as WireCode, DescriptorStatus, RateLimit, rate_limit},
};
use super::reset::seconds;
use crate::engine::{
    decision::{Code, Decision, Outcome},
    rule::{Limit, Unit},
};

/// The answer for a decision, with the chosen headers and body, and with dynamic metadata if there is an `echo` to
/// complete.
pub fn response(
    mut decision: Decision,
    headers: &Headers,
    echo: Option<Struct>,
) -> RateLimitResponse {
    let (response_headers_to_add, raw_body) = headers::write(&decision, headers);
    let mut request_headers_to_add = headers::of_request(&decision, headers);
    let tiers = decision.request_headers.iter();
    request_headers_to_add
        .extend(tiers.map(|(name, value)| headers::header(name, value.to_string())));
    RateLimitResponse {
        response_headers_to_add,
        request_headers_to_add,
        raw_body,
        dynamic_metadata: metadata::answer(echo, &mut decision),
        overall_code: code(decision.code).into(),
        statuses: decision
            .statuses
            .iter()
            .map(|status| descriptor_status(&status.outcome))
            .collect(),
        ..RateLimitResponse::default()
    }
}

fn descriptor_status(outcome: &Outcome) -> DescriptorStatus {
    let mut status =
        DescriptorStatus { code: code(outcome.code()).into(), ..DescriptorStatus::default() };
    if let Some((limit, remaining, reset)) = outcome.of_limit() {
        let reset = prost_types::Duration { seconds: seconds(reset), nanos: 0 };
        status.current_limit = Some(current_limit(limit));
        status.limit_remaining = saturated(remaining);
        status.duration_until_reset = Some(reset);
    } else if *outcome == Outcome::Unlimited {
        status.limit_remaining = u32::MAX;
    }
    status
}

/// A number as the protocol's fields of 32 bits show it; headers show the true one.
fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn code(code: Code) -> WireCode {
    match code {
        Code::Ok => WireCode::Ok,
        Code::OverLimit => WireCode::OverLimit,
    }
}

/// The unit of a limit. Its number is the same in `tollkeeper.v1`.
pub(super) const fn unit(limit: &Limit) -> rate_limit::Unit {
    match limit.unit {
        _ if limit.counts_calls() => rate_limit::Unit::Unknown,
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    }
}

fn current_limit(limit: &Limit) -> RateLimit {
    RateLimit {
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
        requests_per_unit: saturated(limit.requests_per_unit),
        unit: unit(limit).into(),
        unit_multiplier: (limit.unit_multiplier > 1).then_some(limit.unit_multiplier),
    }
}
