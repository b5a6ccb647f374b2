//! Headers of the answer, which Envoy adds to the response, whether the call is allowed or denied.
//!
//! - the three classic headers of envoyproxy/ratelimit, under configurable names;
//! - `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11;
//! - with either of them, `Retry-After` if the call is denied;
//! - `x-ratelimit-rule` if the call is denied: by which rule, and the seconds until its reset.
//!
//! Headers of the request, for the service behind Envoy: the three classic ones, under names of their own.
//!
//! And the body of a denial. They hold nothing that comes from a request.

use std::slice;

use serde_json::{Value, json};

use super::{pb::envoy::config::core::v3::HeaderValue, reset::seconds};
use crate::engine::{
    decision::{Code, Decision, Matched, Outcome, Status},
    key,
    rule::{DeniedBody, Limit, Mode},
};

/// The most limits that the draft's headers list, and bytes of their names: the fields are of at most 4 KiB.
const POLICIES_MAX: usize = 16;
const NAMES_BYTES_MAX: usize = 2048;

#[derive(Debug, Clone, Default)]
pub struct Headers {
    /// The names of the three classic headers, in this order: limit, remaining, reset.
    pub classic: Option<[String; 3]>,
    /// The names of the same three in the request, if it passes.
    pub in_request: Option<[String; 3]>,
    /// Whether the answer carries the draft's two headers.
    pub draft: bool,
    /// Whether a denial carries `x-ratelimit-rule`.
    pub rule: bool,
    /// The body of a denial by a limit that names none.
    pub denied_body: DeniedBody,
}

struct LimitedStatus<'decision> {
    /// The name of the limit, or else the path of its rule.
    name: &'decision str,
    /// Whether other limits have the same name, those of the same rule.
    is_of_several: bool,
    limit: &'decision Limit,
    remaining: u64,
    /// In seconds.
    reset: i64,
    is_over: bool,
    /// Whether it is over since its counter gave no answer.
    by_failure_mode: bool,
}

/// The headers for a decision, none if no descriptor has a limit, and the body.
pub(super) fn write(decision: &Decision, headers: &Headers) -> (Vec<HeaderValue>, Vec<u8>) {
    let (mut written, mut body) = (Vec::new(), Vec::new());
    let has_limits = headers.classic.is_some() || headers.draft;
    let is_denied = decision.code == Code::OverLimit;
    if !has_limits && !is_denied {
        return (written, body);
    }
    let statuses: Vec<_> = limited_statuses(decision).collect();
    let Some(strictest) = strictest(&statuses) else { return (written, body) };
    if let Some(names) = &headers.classic {
        written.extend(classic(names, strictest));
    }
    if headers.draft {
        let policies = policies(decision);
        let list = |item: fn(&Policy<'_>) -> String| {
            policies.iter().map(item).collect::<Vec<_>>().join(", ")
        };
        written.push(header("RateLimit-Policy", list(policy_item)));
        written.push(header("RateLimit", list(usage_item)));
    }
    if is_denied && has_limits {
        let resets = statuses.iter().filter(|status| status.is_over).map(|status| status.reset);
        written.push(header("Retry-After", resets.max().unwrap_or(1).to_string()));
    }
    if is_denied && headers.rule && strictest.is_over && !strictest.by_failure_mode {
        let rule = format!("{};t={}", quoted(strictest.name), strictest.reset);
        written.push(header("x-ratelimit-rule", rule));
    }
    let preset = strictest.limit.denied_body.unwrap_or(headers.denied_body);
    if let (true, Some((media_type, content))) = (is_denied, denied(strictest, preset)) {
        written.push(header("content-type", media_type.to_owned()));
        body = content.to_string().into_bytes();
    }
    (written, body)
}

/// The headers that the request gets, if it passes: none without a limit.
pub(super) fn of_request(decision: &Decision, headers: &Headers) -> Vec<HeaderValue> {
    let Some(names) = headers.in_request.as_ref().filter(|_| decision.code == Code::Ok) else {
        return Vec::new();
    };
    let statuses: Vec<_> = limited_statuses(decision).collect();
    strictest(&statuses).map(|status| classic(names, status).into()).unwrap_or_default()
}

fn classic(
    [limit, remaining, reset]: &[String; 3],
    status: &LimitedStatus<'_>,
) -> [HeaderValue; 3] {
    [
        header(limit, status.limit.requests_per_unit.to_string()),
        header(remaining, status.remaining.to_string()),
        header(reset, status.reset.to_string()),
    ]
}

/// The media type and the content of the body of a denial.
fn denied(status: &LimitedStatus<'_>, body: DeniedBody) -> Option<(&'static str, Value)> {
    let (name, reset) = (status.name, status.reset);
    let limit = status.limit.requests_per_unit;
    Some(match body {
        DeniedBody::None => return None,
        // A limit of 0 never admits, whether its counter can be read or not.
        DeniedBody::Problem if status.by_failure_mode && limit > 0 => {
            let what = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
            let title = "The limit cannot be judged now";
            ("application/problem+json", json!({ "type": what, "title": title }))
        }
        DeniedBody::Problem if limit == 0 || status.limit.ban_ms.is_some() => {
            let what = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
            let problem =
                json!({ "type": what, "title": "Calls such as this one are not admitted" });
            ("application/problem+json", problem)
        }
        DeniedBody::Problem => {
            let what = "https://iana.org/assignments/http-problem-types#quota-exceeded";
            let title = "The quota is exceeded";
            let names = [status.policy_name()];
            let problem = json!({ "type": what, "title": title, "violated-policies": names });
            ("application/problem+json", problem)
        }
        DeniedBody::OpenAi => {
            let message = match limit {
                0 => format!("Calls such as this one are not admitted: {name}"),
                _ => {
                    format!("Rate limit reached: {name}, {}. Try again in {reset} s", status.limit)
                }
            };
            let code = "rate_limit_exceeded";
            let error = json!({ "message": message, "type": code, "param": null, "code": code });
            ("application/json", json!({ "error": error }))
        }
    })
}

pub(super) fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, ..HeaderValue::default() }
}

/// The status that the classic headers show: the last enforced one that is over its limit, or else the first
/// with the fewest remaining hits.
fn strictest<'list, 'decision>(
    statuses: &'list [LimitedStatus<'decision>],
) -> Option<&'list LimitedStatus<'decision>> {
    statuses
        .iter()
        .rfind(|status| status.is_over && status.limit.mode != Mode::Quota)
        .or_else(|| statuses.iter().min_by_key(|status| status.remaining))
}

fn limited_statuses(decision: &Decision) -> impl Iterator<Item = LimitedStatus<'_>> {
    decision.statuses.iter().filter_map(|status| limited_status(status, &status.outcome))
}

fn limited_status<'decision>(
    status: &'decision Status,
    outcome: &'decision Outcome,
) -> Option<LimitedStatus<'decision>> {
    let (limit, remaining, reset) = outcome.of_limit()?;
    let is_over = outcome.code() == Code::OverLimit;
    let (name, is_of_several) = match (&limit.name, &status.matched) {
        (Some(name), _) => (&**name, false),
        (None, Matched::Rule(_, rule)) => (&*rule.path, rule.limits().len() > 1),
        (None, _) => ("override", false),
    };
    let (reset, by_failure_mode) = (seconds(reset), outcome.is_by_failure_mode());
    Some(LimitedStatus { name, is_of_several, limit, remaining, reset, is_over, by_failure_mode })
}

impl LimitedStatus<'_> {
    /// A name that no other limit has, whichever of a rule's limits is the tightest now.
    fn policy_name(&self) -> String {
        match self.is_of_several {
            true => format!("{}: {}", self.name, self.limit),
            false => self.name.to_owned(),
        }
    }
}

/// A limit in the draft's two headers, and its name, quoted, which connects them.
type Policy<'decision> = (String, LimitedStatus<'decision>);

/// The limits that a call met: of those with one name the tightest, and of more than the headers may list those with the
/// fewest remaining hits.
fn policies(decision: &Decision) -> Vec<Policy<'_>> {
    let mut policies: Vec<Policy<'_>> = Vec::new();
    for status in &decision.statuses {
        let outcomes = match &status.by_limit[..] {
            [] => slice::from_ref(&status.outcome),
            several => several,
        };
        for limit in outcomes.iter().filter_map(|outcome| limited_status(status, outcome)) {
            let name = quoted(&limit.policy_name());
            match policies.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) if known.remaining <= limit.remaining => {}
                Some((_, known)) => *known = limit,
                None => policies.push((name, limit)),
            }
        }
    }
    let are_too_many = |policies: &[Policy<'_>]| {
        let bytes = policies.iter().map(|(name, _)| name.len()).sum::<usize>();
        policies.len() > POLICIES_MAX || bytes > NAMES_BYTES_MAX
    };
    if are_too_many(&policies) {
        policies.sort_by_key(|(_, limit)| limit.remaining);
        while policies.len() > 1 && are_too_many(&policies) {
            policies.pop();
        }
    }
    policies
}

fn policy_item((name, status): &Policy<'_>) -> String {
    let (limit, quota) = (status.limit, integer(status.limit.requests_per_unit));
    if limit.counts_calls() {
        return format!("{name};q={quota};qu=\"concurrent-requests\"");
    }
    // Without a unit, a quota is of requests. What is held until it is used is tokens or money.
    let unit = if limit.hold.is_some() { ";qu=\"hits\"" } else { "" };
    format!("{name};q={quota}{unit};w={}", limit.window.seconds())
}

fn usage_item((name, status): &Policy<'_>) -> String {
    format!("{name};r={};t={}", integer(status.remaining), status.reset)
}

/// An Integer of RFC 9651 has at most 15 digits: a field with a longer one is ignored.
fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

/// A String of RFC 9651: printable ASCII, with quotes and backslashes escaped. Other bytes of a name are
/// written as `%XX`, as in keys.
fn quoted(name: &str) -> String {
    let printable = if name.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
        name.to_owned()
    } else {
        key::caller(name.as_bytes()).into_string()
    };
    format!("\"{}\"", printable.replace('\\', "\\\\").replace('"', "\\\""))
}
