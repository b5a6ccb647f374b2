//! From a decision to the wire's answer, complete for every descriptor.

use std::time::Duration;

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

/// The answer for a decision, with these headers, and with metadata that begins so.
pub fn response(decision: &Decision, headers: &Headers, echo: Option<Struct>) -> RateLimitResponse {
    RateLimitResponse {
        response_headers_to_add: headers::write(decision, headers),
        dynamic_metadata: echo.map(|echo| metadata::complete(echo, decision)),
        overall_code: code(decision.code).into(),
        statuses: decision.statuses.iter().map(|status| descriptor(&status.outcome)).collect(),
        ..RateLimitResponse::default()
    }
}

fn descriptor(outcome: &Outcome) -> DescriptorStatus {
    let code = code(outcome.code()).into();
    let limited = |limit: &Limit, remaining: u32, reset: Duration| DescriptorStatus {
        code,
        current_limit: Some(current_limit(limit)),
        limit_remaining: remaining,
        duration_until_reset: Some(prost_types::Duration { seconds: seconds(reset), nanos: 0 }),
        quota: None,
    };
    match outcome {
        Outcome::NoLimit => DescriptorStatus { code, ..DescriptorStatus::default() },
        Outcome::Unlimited => {
            DescriptorStatus { code, limit_remaining: u32::MAX, ..DescriptorStatus::default() }
        }
        Outcome::Within { limit, remaining, reset } => limited(limit, *remaining, *reset),
        Outcome::Shadowed { limit, reset } | Outcome::Over { limit, reset } => {
            limited(limit, 0, *reset)
        }
    }
}

fn code(code: Code) -> WireCode {
    match code {
        Code::Ok => WireCode::Ok,
        Code::OverLimit => WireCode::OverLimit,
    }
}

fn current_limit(limit: &Limit) -> RateLimit {
    let unit = match limit.unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    };
    RateLimit {
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
        requests_per_unit: limit.requests_per_unit,
        unit: unit.into(),
        unit_multiplier: (limit.unit_multiplier > 1).then_some(limit.unit_multiplier),
    }
}
