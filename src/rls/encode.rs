//! From a decision to the wire's answer, complete for every descriptor, and from a store's failure
//! to a gRPC status.

use std::time::Duration;

use tonic::Status;

use prost_types::Struct;

use super::headers::{self, Headers};
use super::metadata;
use super::pb::{
    RateLimitResponse,
    rate_limit_response::{Code as WireCode, DescriptorStatus, RateLimit, rate_limit},
};
use crate::{
    engine::{
        decision::{Code, Decision, Outcome},
        rule::{Limit, Unit},
    },
    store::StoreError,
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

/// The most that a `google.protobuf.Duration` may hold: 10,000 years.
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;

/// Rounded up, and at least 1: Envoy drops fractions, and 0 would ask for a retry at once.
pub(crate) fn seconds(reset: Duration) -> i64 {
    let whole = reset.as_secs() + u64::from(reset.subsec_nanos() > 0);
    i64::try_from(whole.max(1)).unwrap_or(DURATION_SECONDS_MAX).min(DURATION_SECONDS_MAX)
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

/// The gRPC status for a call without an answer. Envoy treats all of them alike: by default it lets
/// the call pass, and with `failure_mode_deny` it does not.
///
/// | failure | status |
/// | --- | --- |
/// | the store is gone, slow, or does not hold still | UNAVAILABLE |
/// | a counter holds something else | UNAVAILABLE: for its rule there is no store |
pub fn failure(error: &StoreError) -> Status {
    let message = match error {
        // What Redis said may name hosts; that is for the log.
        StoreError::Unavailable(_) => "store unavailable".to_owned(),
        StoreError::TimedOut
        | StoreError::NoConnection
        | StoreError::ClockUnsteady
        | StoreError::Corrupt(_) => {
            format!("store unavailable: {error}")
        }
    };
    Status::unavailable(message)
}
