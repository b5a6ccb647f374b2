//! Headers of the answer, which Envoy adds to the response, whether the call is allowed or denied.
//!
//! - the three classic headers of envoyproxy/ratelimit, under configurable names;
//! - `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10;
//! - with either of them, `Retry-After` if the call is denied.
//!
//! They hold nothing that comes from a request.

use super::{pb::envoy::config::core::v3::HeaderValue, reset::seconds};
use crate::engine::{
    decision::{Code, Decision, Matched, Outcome, Status},
    key,
    rule::{Limit, Mode},
};

/// Which headers an answer carries.
#[derive(Debug, Clone, Default)]
pub struct Headers {
    /// The names of the three classic headers, in this order: limit, remaining, reset.
    pub classic: Option<[String; 3]>,
    /// Whether the answer carries the draft's two headers.
    pub draft: bool,
}

/// The status of a descriptor that has a limit.
struct LimitedStatus<'decision> {
    name: String,
    limit: &'decision Limit,
    remaining: u64,
    /// In seconds.
    reset: i64,
    is_over: bool,
}

/// The headers for a decision, or none if no descriptor has a limit.
pub(super) fn write(decision: &Decision, headers: &Headers) -> Vec<HeaderValue> {
    if headers.classic.is_none() && !headers.draft {
        return Vec::new();
    }
    let statuses: Vec<LimitedStatus<'_>> =
        decision.statuses.iter().filter_map(limited_status).collect();
    let Some(strictest) = strictest(&statuses) else { return Vec::new() };
    let mut written = Vec::new();
    if let Some([limit, remaining, reset]) = &headers.classic {
        written.push(header(limit, strictest.limit.requests_per_unit.to_string()));
        written.push(header(remaining, strictest.remaining.to_string()));
        written.push(header(reset, strictest.reset.to_string()));
    }
    if headers.draft {
        written.push(header("RateLimit-Policy", list(&statuses, policy_item)));
        written.push(header("RateLimit", list(&statuses, usage_item)));
    }
    if decision.code == Code::OverLimit {
        let resets = statuses.iter().filter(|status| status.is_over).map(|status| status.reset);
        written.push(header("Retry-After", resets.max().unwrap_or(1).to_string()));
    }
    written
}

fn header(name: &str, value: String) -> HeaderValue {
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
    let (limit, remaining, reset) = match &status.outcome {
        Outcome::NoLimit | Outcome::Unlimited => return None,
        Outcome::Within { limit, remaining, reset } => (limit, *remaining, reset),
        Outcome::Shadowed { limit, reset } | Outcome::Over { limit, reset } => (limit, 0, reset),
    };
    let is_over = status.outcome.code() == Code::OverLimit;
    let name = quoted(match (&limit.name, &status.matched) {
        (Some(name), _) => name,
        (None, Matched::Rule(_, rule)) => &rule.path,
        (None, _) => "override",
    });
    Some(LimitedStatus { name, limit, remaining, reset: seconds(*reset), is_over })
}

fn policy_item(status: &LimitedStatus<'_>) -> String {
    let (quota, window) = (status.limit.requests_per_unit, status.limit.window.seconds());
    if status.limit.counts_calls() {
        return format!("{};q={quota};qu=\"concurrent-requests\"", status.name);
    }
    format!("{};q={quota};w={window}", status.name)
}

fn usage_item(status: &LimitedStatus<'_>) -> String {
    format!("{};r={};t={}", status.name, status.remaining, status.reset)
}

/// A list with one item per name: the names connect the draft's two headers.
fn list(statuses: &[LimitedStatus<'_>], item: impl Fn(&LimitedStatus<'_>) -> String) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut items = Vec::new();
    for status in statuses {
        if !names.contains(&status.name.as_str()) {
            names.push(&status.name);
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
