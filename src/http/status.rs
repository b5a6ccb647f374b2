//! The status page at `/` of the admin address, one file without outside parts, and `/status`, the JSON that it reads.
//!
//! The page holds no data, so it is served to all. `/status` is for those who may use the admin address, and for the page.

use std::{
    fmt::Write as _,
    sync::LazyLock,
    time::{Instant, SystemTime},
};

use axum::{
    Json,
    extract::State,
    http::{HeaderName, header},
    response::{Html, IntoResponse, Response},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Http, limits_text};
use crate::{
    VERSION,
    health::Phase,
    rules::Rules,
    telemetry::{RuleDecisions, StatusNumbers},
};

/// The page.
const PAGE: &str = include_str!("status.html");

/// The rules with the most decisions that are listed: an answer stays small, however many rules there are.
const LISTED_RULES_MAX: usize = 200;

/// Only the style and the script of the page itself apply, and the script can only ask its own origin.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source_hash("style"),
        source_hash("script"),
    )
});

/// Serves the page.
pub(super) async fn page() -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_SECURITY_POLICY, &POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Html(PAGE)).into_response()
}

/// Serves the data of the page.
pub(super) async fn status(State(http): State<Http>) -> Response {
    http.report(|| {
        let no_store = [(header::CACHE_CONTROL, "no-store")];
        (no_store, Json(status_json(&http))).into_response()
    })
}

fn status_json(http: &Http) -> Value {
    let numbers = http.telemetry.numbers();
    json!({
        "tollkeeper_version": VERSION,
        "phase": phase_name(http.health.phase()),
        "rules": rules_json(&http.rules, &numbers),
        "numbers": numbers,
        "top": http.limiter.top_keys().report(Instant::now()),
    })
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Ready => "ready",
        Phase::WithoutStore => "without_store",
        Phase::Draining => "draining",
    }
}

fn rules_json(rules: &Rules, numbers: &StatusNumbers) -> Value {
    let in_force = rules.current();
    let since = in_force.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let listed = ListedRule::all(rules, numbers);
    json!({
        "version": in_force.version.to_string(),
        "loaded_at": since.as_secs(),
        "problems": rules.problems().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "count": listed.len(),
        "listed": listed.iter().take(LISTED_RULES_MAX).map(ListedRule::json).collect::<Vec<_>>(),
    })
}

/// A rule in force, or another label of decisions.
struct ListedRule {
    domain: String,
    rule: String,
    limit: String,
    written_at: String,
    decisions: RuleDecisions,
}

impl ListedRule {
    /// All of them, those with the most decisions first.
    fn all(rules: &Rules, numbers: &StatusNumbers) -> Vec<Self> {
        let mut listed = Vec::new();
        let mut others = numbers.by_rule.clone();
        for domain in rules.current().rules.domains() {
            for rule in domain.rules() {
                let (domain, path) = (domain.name.to_string(), rule.path.to_string());
                listed.push(Self {
                    decisions: others.remove(&(domain.clone(), path.clone())).unwrap_or_default(),
                    domain,
                    rule: path,
                    limit: limits_text(rule),
                    written_at: rule.location.clone(),
                });
            }
        }
        for ((domain, rule), decisions) in others {
            let (limit, written_at) = Default::default();
            listed.push(Self { domain, rule, limit, written_at, decisions });
        }
        listed.sort_by(|one, other| {
            let by_name = (&one.domain, &one.rule).cmp(&(&other.domain, &other.rule));
            other.decisions.sum().cmp(&one.decisions.sum()).then(by_name)
        });
        listed
    }

    fn json(&self) -> Value {
        let Self { domain, rule, limit, written_at, decisions } = self;
        json!({
            "domain": domain,
            "rule": rule,
            "limit": limit,
            "written_at": written_at,
            "decisions": decisions,
        })
    }
}

/// The content of an element of the page as a source in its policy: `'sha256-…'`.
fn source_hash(element: &str) -> String {
    let (start, end) = (format!("<{element}>"), format!("</{element}>"));
    let content = PAGE.split_once(&start).and_then(|(_, rest)| rest.split_once(&end));
    let content = content.map_or("", |(content, _)| content);
    format!("'sha256-{}'", base64(&Sha256::digest(content.as_bytes())))
}

/// <https://datatracker.ietf.org/doc/html/rfc4648#section-4>
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0_usize, |bits, index| {
            bits << 8 | usize::from(group.get(index).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            let index = bits >> (18 - 6 * digit) & 63;
            let known = DIGITS.get(index).filter(|_| digit <= group.len());
            // Writing to a string does not fail.
            let _ = write!(text, "{}", known.map_or('=', |digit| char::from(*digit)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_in_its_rfc() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn the_page_has_one_style_one_script_and_no_other_place_for_code() {
        for element in ["<style", "<script"] {
            assert_eq!(PAGE.matches(element).count(), 1, "{element}");
        }
        for place in
            [" style=", "onclick", "onload", "onerror", "innerHTML", "HTML(", "eval(", "src="]
        {
            assert!(!PAGE.contains(place), "{place}");
        }
        let addresses = PAGE.matches("http://").count() + PAGE.matches("https://").count();
        assert_eq!(addresses, 1, "the name of SVG");
    }
}
