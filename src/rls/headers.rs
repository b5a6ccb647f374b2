//! Headers of the answer, which Envoy adds to the response, whether the call is allowed or denied.
//!
//! - the three classic headers of envoyproxy/ratelimit, under configurable names;
//! - `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11;
//! - with either of them, `Retry-After` if the call is denied;
//! - `x-ratelimit-rule` if the call is denied: by which rule, and the seconds until its reset.
//!
//! And the body of a denial. They hold nothing that comes from a request.

use serde_json::{Value, json};

use super::{pb::envoy::config::core::v3::HeaderValue, reset::seconds};
use crate::engine::{
    decision::{Code, Decision, Matched, Status},
    key,
    rule::{DeniedBody, Limit, Mode},
};

#[derive(Debug, Clone, Default)]
pub struct Headers {
    /// The names of the three classic headers, in this order: limit, remaining, reset.
    pub classic: Option<[String; 3]>,
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
    limit: &'decision Limit,
    remaining: u64,
    /// In seconds.
    reset: i64,
    is_over: bool,
}

/// The headers for a decision, none if no descriptor has a limit, and the body.
pub(super) fn write(decision: &Decision, headers: &Headers) -> (Vec<HeaderValue>, Vec<u8>) {
    let (mut written, mut body) = (Vec::new(), Vec::new());
    let has_limits = headers.classic.is_some() || headers.draft;
    let is_denied = decision.code == Code::OverLimit;
    if !has_limits && !is_denied {
        return (written, body);
    }
    let statuses: Vec<LimitedStatus<'_>> =
        decision.statuses.iter().filter_map(limited_status).collect();
    let Some(strictest) = strictest(&statuses) else { return (written, body) };
    if let Some([limit, remaining, reset]) = &headers.classic {
        written.push(header(limit, strictest.limit.requests_per_unit.to_string()));
        written.push(header(remaining, strictest.remaining.to_string()));
        written.push(header(reset, strictest.reset.to_string()));
    }
    if headers.draft {
        written.push(header("RateLimit-Policy", list(&statuses, policy_item)));
        written.push(header("RateLimit", list(&statuses, usage_item)));
    }
    if is_denied && has_limits {
        let resets = statuses.iter().filter(|status| status.is_over).map(|status| status.reset);
        written.push(header("Retry-After", resets.max().unwrap_or(1).to_string()));
    }
    if is_denied && headers.rule {
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

/// The media type and the content of the body of a denial.
fn denied(status: &LimitedStatus<'_>, body: DeniedBody) -> Option<(&'static str, Value)> {
    let (name, reset) = (status.name, status.reset);
    let limit = status.limit.requests_per_unit;
    Some(match body {
        DeniedBody::None => return None,
        DeniedBody::Problem if limit == 0 || status.limit.ban_ms.is_some() => {
            let what = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
            let problem =
                json!({ "type": what, "title": "Calls such as this one are not admitted" });
            ("application/problem+json", problem)
        }
        DeniedBody::Problem => {
            let what = "https://iana.org/assignments/http-problem-types#quota-exceeded";
            let title = "The quota is exceeded";
            let problem = json!({ "type": what, "title": title, "violated-policies": [name] });
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

fn limited_status(status: &Status) -> Option<LimitedStatus<'_>> {
    let (limit, remaining, reset) = status.outcome.of_limit()?;
    let is_over = status.outcome.code() == Code::OverLimit;
    let name = match (&limit.name, &status.matched) {
        (Some(name), _) => name,
        (None, Matched::Rule(_, rule)) => &rule.path,
        (None, _) => "override",
    };
    Some(LimitedStatus { name, limit, remaining, reset: seconds(reset), is_over })
}

fn policy_item(status: &LimitedStatus<'_>) -> String {
    let limit = status.limit;
    let (name, quota) = (quoted(status.name), integer(limit.requests_per_unit));
    if limit.counts_calls() {
        return format!("{name};q={quota};qu=\"concurrent-requests\"");
    }
    // Without a unit, a quota is of requests. What is held until it is used is tokens or money.
    let unit = if limit.hold.is_some() { ";qu=\"hits\"" } else { "" };
    format!("{name};q={quota}{unit};w={}", limit.window.seconds())
}

fn usage_item(status: &LimitedStatus<'_>) -> String {
    format!("{};r={};t={}", quoted(status.name), integer(status.remaining), status.reset)
}

/// An Integer of RFC 9651 has at most 15 digits: a field with a longer one is ignored.
fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

/// A list with one item per name: the names connect the draft's two headers.
fn list(statuses: &[LimitedStatus<'_>], item: impl Fn(&LimitedStatus<'_>) -> String) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut items = Vec::new();
    for status in statuses {
        if !names.contains(&status.name) {
            names.push(status.name);
            items.push(item(status));
        }
    }
    items.join(", ")
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
