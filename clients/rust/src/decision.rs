//! What the service has answered, or what was decided without an answer.

use std::sync::{Arc, OnceLock};
use std::{cmp::Reverse, fmt, ops::Deref, ptr, time::Duration};

use crate::Unit;
use crate::v1::{self, verdict::Code};

const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// The most of protobuf: 10,000 years. An instant of the standard library panics if much more is added to it.
const DURATION_MAX: Duration = Duration::from_secs(315_576_000_000);

/// The error of a call to which the service gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceError {
    /// A gRPC code such as `DEADLINE_EXCEEDED`.
    pub code: &'static str,
    /// The reason, for people.
    pub message: String,
}

/// The codes of gRPC, by their numbers.
const CODES: &str = "ok CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS \
    PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL \
    UNAVAILABLE DATA_LOSS UNAUTHENTICATED";

impl ServiceError {
    pub(crate) fn new(code: tonic::Code, message: impl Into<String>) -> Self {
        let code = CODES.split(' ').nth(code as usize).unwrap_or("UNKNOWN");
        Self { code, message: message.into() }
    }

    pub(crate) fn decode(status: tonic_types::Status) -> Self {
        let code = tonic::Code::from(status.code);
        // gRPC has no error for 0 or an unknown code: it counts as UNKNOWN.
        if code == tonic::Code::Ok || code as i32 != status.code {
            let text = format!("code {}: {}", status.code, status.message);
            return Self::new(tonic::Code::Unknown, text);
        }
        Self::new(code, status.message)
    }

    /// Whether the service has refused the call for its size or its form. Otherwise an end user who chooses the number of items
    /// or a value could pass any limit.
    pub(crate) fn is_refusal(&self) -> bool {
        ["OUT_OF_RANGE", "INVALID_ARGUMENT"].contains(&self.code)
    }

    /// The failure of a call whose answer does not fit its request.
    pub(crate) fn not_ours() -> Self {
        let text = "the answer has another number of items than the request";
        Self::new(tonic::Code::Unknown, text)
    }
}

/// The gRPC code with this name, or `UNKNOWN` if no code has it.
pub(crate) fn code_of(name: &str) -> tonic::Code {
    let number = CODES.split(' ').position(|code| code == name);
    tonic::Code::from(number.and_then(|it| i32::try_from(it).ok()).unwrap_or(2))
}

impl fmt::Display for ServiceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for ServiceError {}

/// Whether a call may pass. Limit, remaining hits, reset and [`Self::rule`] are from one status: of a denied call, the last one
/// that is over its limit, otherwise the one with the fewest remaining hits.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the call may pass.
    pub allowed: bool,
    /// Why the call failed; or `OUT_OF_RANGE` or `INVALID_ARGUMENT`: the service has refused the call, so it is denied.
    pub error: Option<ServiceError>,
    /// The most hits in one window; absent if no limit applies. 0 admits nothing.
    pub limit: Option<u64>,
    /// Number of hits that would still pass; 0 without a limit.
    pub remaining: u64,
    /// The time until the window ends; without a fixed window, until the hits fit or no hit counts any more.
    pub reset: Duration,
    /// When a denied call may be made again, at least 1 s; absent if it is allowed, or if the service gave no answer.
    pub retry_after: Option<Duration>,
    /// One for each descriptor, in their order; of a read, one for each limit of each descriptor.
    pub statuses: Statuses,
    /// Number of hits that [`Call::part`](crate::Call::part) has charged.
    pub hits: u64,
    /// Names what is held, for [`Client::commit`](crate::Client::commit); empty if nothing is.
    pub hold: String,
}

/// A slice of [`Status`].
#[derive(Clone, Default)]
pub struct Statuses {
    answered: Arc<[Status]>,
    /// The index of the one that the decision shows.
    shown: usize,
    /// The time since then, and the hits that were charged and not used.
    age: Duration,
    credit: u64,
    /// What they are by these: few callers look at them.
    now: OnceLock<Box<[Status]>>,
}

impl Deref for Statuses {
    type Target = [Status];

    fn deref(&self) -> &[Status] {
        if self.age.is_zero() && self.credit == 0 {
            return &self.answered;
        }
        let at_present = |status: &Status| {
            let credit = if status.limit.is_some() { self.credit } else { 0 };
            let remaining = status.remaining.saturating_add(credit);
            Status { remaining, reset: status.reset.saturating_sub(self.age), ..status.clone() }
        };
        self.now.get_or_init(|| self.answered.iter().map(at_present).collect())
    }
}

impl<'a> IntoIterator for &'a Statuses {
    type Item = &'a Status;
    type IntoIter = std::slice::Iter<'a, Status>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Statuses {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

/// The state of one descriptor after the call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// Whether the descriptor is within its limit.
    pub allowed: bool,
    /// The index of the descriptor in the call.
    pub descriptor: u32,
    /// The path of the rule.
    pub rule: String,
    /// Absent if no limit applies.
    pub limit: Option<Limit>,
    /// Number of hits that would still pass.
    pub remaining: u64,
    /// The time until the window ends.
    pub reset: Duration,
    /// Number of hits that count; only of a read.
    pub used: Option<u64>,
    /// Number of hits that open holds without a name hold; only of a read.
    pub held: Option<u64>,
}

/// A limit, as its rule has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// The name of the limit, if it has one.
    pub name: String,
    /// The most hits in one window.
    pub hits: u64,
    /// The number of units in a window.
    pub units: u32,
    /// The unit; absent for a limit of what is in flight.
    pub unit: Option<Unit>,
}

impl Decision {
    /// Whether the service gave no answer, so that [`Options::on_failure`](crate::Options::on_failure) has decided.
    pub fn failed(&self) -> bool {
        self.error.as_ref().is_some_and(|error| !error.is_refusal())
    }

    /// The path of the rule, such as `plan=free|user`; empty if no rule matched.
    pub fn rule(&self) -> &str {
        let Statuses { answered, shown, .. } = &self.statuses;
        answered.get(*shown).map_or("", |status| &status.rule)
    }

    /// For a response over HTTP: the RateLimit headers if a limit applies, and Retry-After if the service denied the
    /// call. Times are in seconds.
    pub fn headers(&self) -> Vec<(&'static str, u64)> {
        let mut headers = Vec::new();
        if let Some(limit) = self.limit {
            headers.push(("RateLimit-Limit", limit));
            headers.push(("RateLimit-Remaining", self.remaining));
            headers.push(("RateLimit-Reset", seconds(self.reset)));
        }
        headers.extend(self.retry_after.map(|time| ("Retry-After", seconds(time))));
        headers
    }

    /// The service's decision about a call with this number of descriptors, or why it has none.
    pub(crate) fn decode(verdict: v1::Verdict, descriptors: usize) -> Result<Self, ServiceError> {
        let allowed = verdict.code() == Code::Ok;
        if let Some(error) = verdict.error {
            return Err(ServiceError::decode(error));
        }
        if !allowed && verdict.code != Code::OverLimit as i32 {
            return Err(ServiceError::new(tonic::Code::Unknown, "the verdict is unknown"));
        }
        let is_of_call = |it: &v1::Status| (it.descriptor_index as usize) < descriptors;
        if !verdict.statuses.iter().all(is_of_call) {
            let text = "a status is of no descriptor of the call";
            return Err(ServiceError::new(tonic::Code::Unknown, text));
        }
        let statuses: Vec<Status> = verdict.statuses.into_iter().map(Status::decode).collect();
        let limited = || statuses.iter().filter(|status| status.limit.is_some());
        let over = || limited().filter(|status| !allowed && !status.allowed);
        // Of several equal ones, `max_by_key` returns the last.
        let fewest = || limited().rev().max_by_key(|status| Reverse(status.remaining));
        let shown = over().next_back().or_else(fewest).or(statuses.first());
        let is_shown = |it: &Status| shown.is_some_and(|shown| ptr::eq(it, shown));
        let index = statuses.iter().position(is_shown).unwrap_or_default();
        let retry_after = over().map(|status| status.reset).max().unwrap_or_default();
        Ok(Self {
            allowed,
            error: None,
            limit: shown.and_then(|status| status.limit.as_ref()).map(|limit| limit.hits),
            remaining: shown.map_or(0, |status| status.remaining),
            reset: shown.map_or(Duration::ZERO, |status| status.reset),
            retry_after: (!allowed).then(|| retry_after.max(RETRY_AFTER_MIN)),
            hits: verdict.hits,
            hold: verdict.hold,
            statuses: Statuses { shown: index, answered: statuses.into(), ..Statuses::default() },
        })
    }

    /// What it is some time later, if nothing else changes but that these hits have room again. Nothing is held.
    #[inline(always)]
    pub(crate) fn later(&self, time: Duration, credit: u64) -> Self {
        let Statuses { answered, shown, age, credit: before, .. } = &self.statuses;
        let (age, all) = (age.saturating_add(time), before.saturating_add(credit));
        let (answered, shown) = (Arc::clone(answered), *shown);
        Self {
            error: None,
            remaining: self.limit.map_or(0, |_| self.remaining.saturating_add(credit)),
            reset: self.reset.saturating_sub(time),
            retry_after: self.retry_after.map(|it| it.saturating_sub(time).max(RETRY_AFTER_MIN)),
            statuses: Statuses { answered, shown, age, credit: all, now: OnceLock::new() },
            hold: String::new(),
            ..*self
        }
    }
}

impl Status {
    fn decode(status: v1::Status) -> Self {
        Self {
            allowed: status.code() != Code::OverLimit,
            descriptor: status.descriptor_index,
            rule: status.rule,
            limit: status.current_limit.map(|limit| Limit {
                unit: Unit::decode(limit.unit),
                name: limit.name,
                hits: limit.requests_per_unit,
                units: limit.unit_multiplier,
            }),
            remaining: status.limit_remaining,
            reset: duration(status.duration_until_reset),
            used: status.used,
            held: status.held,
        }
    }
}

/// The nearest one that is possible. The conversion of prost overflows at the least number.
pub(crate) fn duration(time: Option<prost_types::Duration>) -> Duration {
    let prost_types::Duration { seconds, nanos } = time.unwrap_or_default();
    let Ok(seconds) = u64::try_from(seconds) else { return Duration::ZERO };
    let (time, part) =
        (Duration::from_secs(seconds), Duration::from_nanos(nanos.unsigned_abs().into()));
    let time = if nanos < 0 { time.saturating_sub(part) } else { time.saturating_add(part) };
    time.min(DURATION_MAX)
}

/// Rounded up, since a call that comes too early is denied.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_an_unknown_code_is_shown_with_its_number() {
        for code in [0, 17, 99, -5] {
            let error = tonic_types::Status { code, message: "what".to_owned(), details: vec![] };
            let verdict = v1::Verdict { error: Some(error), ..v1::Verdict::default() };
            let text = Decision::decode(verdict, 1).unwrap_err().to_string();
            assert_eq!(text, format!("UNKNOWN: code {code}: what"));
        }
    }

    fn decided(status: v1::Status) -> Result<Decision, ServiceError> {
        let current_limit = Some(v1::Limit { unit: 99, ..v1::Limit::default() });
        let status = v1::Status { code: 2, current_limit, ..status };
        Decision::decode(
            v1::Verdict { code: 2, statuses: vec![status], ..v1::Verdict::default() },
            1,
        )
    }

    #[test]
    fn a_duration_that_no_window_has_is_shown_as_the_nearest() {
        let (most, least) = ((i64::MAX, i32::MAX), (i64::MIN, i32::MIN));
        for ((seconds, nanos), reset) in
            [(most, DURATION_MAX), (least, Duration::ZERO), ((0, -5), Duration::ZERO)]
        {
            let duration_until_reset = Some(prost_types::Duration { seconds, nanos });
            let decision = decided(v1::Status { duration_until_reset, ..v1::Status::default() });
            let Decision { reset: found, retry_after, .. } = decision.unwrap();
            assert_eq!((found, retry_after), (reset, Some(reset.max(RETRY_AFTER_MIN))));
        }
    }

    #[test]
    fn a_status_of_no_descriptor_is_no_decision() {
        let decision = decided(v1::Status { descriptor_index: 1, ..v1::Status::default() });
        let text = decision.unwrap_err().to_string();
        assert_eq!(text, "UNKNOWN: a status is of no descriptor of the call");
    }
}
