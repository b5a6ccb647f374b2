//! The status page at `/` of the admin address, one file without outside parts, and `/status`, the JSON that it reads.
//!
//! The page holds no data, so it is served to all. `/status` is for those who may use the admin address, and for the page.

mod numbers;

use std::sync::LazyLock;

use axum::{
    http::{HeaderName, header},
    response::{Html, IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use self::numbers::{RuleDecisions, StatusNumbers};
use super::{
    report::Reports,
    rules::{limits_text, rules_state},
};
use crate::{
    VERSION, edge::health::Phase, engine::rule_set::RuleSet, rules::Rules, top_keys::TopReport,
    yaml::first_lines,
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

/// The data of the page.
pub(super) fn json(reports: &Reports, phase: Phase, top: Option<TopReport>) -> Value {
    let numbers = StatusNumbers::of(&reports.telemetry.families());
    json!({
        "tollkeeper_version": VERSION,
        "phase": phase_name(phase),
        "rules": rules_json(&reports.rules, &numbers),
        "numbers": numbers,
        "top": top,
    })
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Ready => "ready",
        Phase::WithoutStore => "without_store",
        Phase::WithoutRules => "without_rules",
        Phase::Draining => "draining",
    }
}

fn rules_json(rules: &Rules, numbers: &StatusNumbers) -> Value {
    let in_force = rules.current();
    let listed = ListedRule::all(&in_force.rules, numbers);
    let others = [
        ("count", json!(listed.len())),
        ("listed", listed.iter().take(LISTED_RULES_MAX).map(ListedRule::json).collect()),
    ];
    let problems = first_lines(&rules.problems());
    rules_state(problems, &in_force).into_iter().chain(others).collect()
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
    fn all(rules: &RuleSet, numbers: &StatusNumbers) -> Vec<Self> {
        let mut listed = Vec::new();
        let mut others = numbers.by_rule.clone();
        for domain in rules.domains() {
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
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(content.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

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
