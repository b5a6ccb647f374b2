//! Headers of the answer, which Envoy passes on to the client, with a denial and without.
//!
//! - the three classic ones, as envoyproxy/ratelimit sends them, under configurable names;
//! - `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10;
//! - with either, `Retry-After` where the call is denied.
//!
//! Nothing in them comes from a request.

use super::{encode::seconds, pb::envoy::config::core::v3::HeaderValue};
use crate::engine::{
    decision::{Code, Decision, Matched, Outcome, Status},
    key,
    rule::{Limit, Mode},
};

/// Which headers an answer carries.
#[derive(Debug, Clone, Default)]
pub struct Headers {
    /// The names of the classic three, in this order: limit, remaining, reset.
    pub classic: Option<[String; 3]>,
    /// Whether it carries those of the draft.
    pub draft: bool,
}

/// One status that a limit stands behind.
struct Limited<'decision> {
    name: String,
    limit: &'decision Limit,
    remaining: u32,
    reset: i64,
    over: bool,
}

/// The headers of this decision; none, where no limit stands behind it.
pub(super) fn write(decision: &Decision, headers: &Headers) -> Vec<HeaderValue> {
    if headers.classic.is_none() && !headers.draft {
        return Vec::new();
    }
    let statuses: Vec<Limited<'_>> = decision.statuses.iter().filter_map(limited).collect();
    let Some(lead) = lead(&statuses) else { return Vec::new() };
    let mut written = Vec::new();
    let mut push = |key: &str, value: String| {
        written.push(HeaderValue { key: key.to_owned(), value, ..HeaderValue::default() });
    };
    if let Some([limit, remaining, reset]) = &headers.classic {
        push(limit, lead.limit.requests_per_unit.to_string());
        push(remaining, lead.remaining.to_string());
        push(reset, lead.reset.to_string());
    }
    if headers.draft {
        let policy = |it: &Limited<'_>| {
            let (quota, window) = (it.limit.requests_per_unit, it.limit.window.seconds());
            format!("{};q={quota};w={window}", it.name)
        };
        let left = |it: &Limited<'_>| format!("{};r={};t={}", it.name, it.remaining, it.reset);
        push("RateLimit-Policy", list(&statuses, policy));
        push("RateLimit", list(&statuses, left));
    }
    if decision.code == Code::OverLimit {
        let resets = statuses.iter().filter(|it| it.over).map(|it| it.reset);
        push("Retry-After", resets.max().unwrap_or(1).to_string());
    }
    written
}

/// What the classic headers tell of: the last enforced limit that is over, else the one with the least
/// left, and of equals the first.
fn lead<'list, 'decision>(
    statuses: &'list [Limited<'decision>],
) -> Option<&'list Limited<'decision>> {
    let denies = |it: &&Limited<'_>| it.over && it.limit.mode != Mode::Quota;
    statuses.iter().rfind(denies).or_else(|| statuses.iter().min_by_key(|it| it.remaining))
}

fn limited(status: &Status) -> Option<Limited<'_>> {
    let (limit, remaining, reset) = match &status.outcome {
        Outcome::NoLimit | Outcome::Unlimited => return None,
        Outcome::Within { limit, remaining, reset } => (limit, *remaining, reset),
        Outcome::Shadowed { limit, reset } | Outcome::Over { limit, reset } => (limit, 0, reset),
    };
    let over = status.outcome.code() == Code::OverLimit;
    let name = string(match (&limit.name, &status.matched) {
        (Some(name), _) => name,
        (None, Matched::Rule(_, rule)) => &rule.path,
        (None, _) => "override",
    });
    Some(Limited { name, limit, remaining, reset: seconds(*reset), over })
}

/// One item for each name: the names link the two lists.
fn list(statuses: &[Limited<'_>], item: impl Fn(&Limited<'_>) -> String) -> String {
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

/// A String of RFC 9651: visible ASCII, with quotes and backslashes escaped. What else a name holds is
/// written `%XX`, as in keys.
fn string(name: &str) -> String {
    let visible = match name.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
        true => name.to_owned(),
        false => key::caller(name.as_bytes()).into_string(),
    };
    format!("\"{}\"", visible.replace('\\', "\\\\").replace('"', "\\\""))
}
