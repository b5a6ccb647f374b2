//! The status page at `/` of the admin address, one file without outside parts, and `/status`, the JSON that it reads.
//!
//! The page holds no data, so it is served to all. `/status` is for those who may use the admin address, and for the page.

mod conditions;
mod history;
mod numbers;

use std::{sync::LazyLock, time::Instant};

use axum::{
    http::{HeaderName, header},
    response::{Html, IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

pub use self::history::History;
use self::{
    conditions::Situation,
    numbers::{RuleDecisions, StatusNumbers},
};
use super::{
    report::Reports,
    rules::{control_plane_json, limits_text, rules_state},
};
use crate::{
    VERSION,
    edge::health::Phase,
    engine::{
        rule::{FailureMode, Mode, Policy, Rule},
        rule_set::RuleSet,
    },
    rules::{InForce, xds::ControlPlane},
    telemetry::last_events,
    top_keys::TopReport,
    yaml::first_lines,
};

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

pub(super) async fn page() -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_SECURITY_POLICY, &POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Html(PAGE)).into_response()
}

/// What the data of the page also depend on.
pub(super) struct PageState {
    pub(super) phase: Phase,
    /// Why overrides may not be in force.
    pub(super) override_problem: Option<String>,
    /// Why the candidate is not what its files say.
    pub(super) candidate_problem: Option<String>,
    /// What it would change.
    pub(super) candidate: Option<Value>,
    pub(super) top: Option<TopReport>,
    pub(super) with_history: bool,
}

pub(super) fn json(reports: &Reports, history: &History, asked: PageState) -> Value {
    let PageState { phase, override_problem, candidate_problem, candidate, top, with_history } =
        asked;
    let numbers = StatusNumbers::of(&reports.telemetry.families());
    let recent = history.recent(Instant::now(), &numbers);
    let in_force = reports.rules.current();
    let problems = first_lines(&reports.rules.problems());
    let control_plane = reports.control_plane.as_deref();
    let conditions = Situation {
        phase,
        recent: &recent,
        servers: &numbers.servers,
        decision_budget: history.decision_budget,
        override_problem,
        candidate_problem,
        has_rules: !in_force.rules.domains().is_empty(),
        rule_problems: &problems,
        control_plane: control_plane.map(ControlPlane::report).as_ref(),
    }
    .conditions();
    json!({
        "tollkeeper_version": VERSION,
        "phase": phase,
        "severity": conditions.first().map(|condition| condition.severity).unwrap_or_default(),
        "conditions": conditions,
        "recent": recent,
        "rules": rules_json(&in_force, problems, &numbers),
        "control_plane": control_plane.map(control_plane_json),
        "numbers": numbers,
        "candidate": candidate,
        "top": top,
        "events": last_events(),
        "history": with_history.then(|| history.json()),
    })
}

fn rules_json(in_force: &InForce, problems: Vec<String>, numbers: &StatusNumbers) -> Value {
    let listed = ListedRule::all(&in_force.rules, numbers);
    let others = [
        ("count", json!(listed.len())),
        ("listed", json!(listed.get(..LISTED_RULES_MAX).unwrap_or(&listed))),
    ];
    rules_state(problems, in_force).into_iter().chain(others).collect()
}

/// A rule in force, or another label of decisions.
#[derive(Serialize)]
struct ListedRule {
    domain: String,
    rule: String,
    limit: String,
    tags: Vec<&'static str>,
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
                    tags: tags(rule),
                    written_at: rule.location.clone(),
                });
            }
        }
        for ((domain, rule), decisions) in others {
            let (limit, tags, written_at) = Default::default();
            listed.push(Self { domain, rule, limit, tags, written_at, decisions });
        }
        listed.sort_by(|one, other| {
            let by_name = (&one.domain, &one.rule).cmp(&(&other.domain, &other.rule));
            other.decisions.sum().cmp(&one.decisions.sum()).then(by_name)
        });
        listed
    }
}

/// What differs from an enforced limit whose calls get an error without the store.
fn tags(rule: &Rule) -> Vec<&'static str> {
    let Policy::Limited(limits) = &rule.policy else { return Vec::new() };
    let mut tags = Vec::new();
    for limit in limits {
        tags.extend(match limit.mode {
            Mode::Enforced => None,
            Mode::Shadow => Some("shadow"),
            Mode::Quota => Some("quota"),
        });
        tags.extend(match limit.failure_mode() {
            _ if limit.mode == Mode::Shadow => None,
            FailureMode::Error => None,
            FailureMode::Deny => Some("on_store_failure: deny"),
            FailureMode::Allow => Some("on_store_failure: allow"),
            FailureMode::Local => Some("on_store_failure: local"),
        });
        tags.extend(limit.hold.is_some().then_some("holds"));
    }
    tags.sort_unstable();
    tags.dedup();
    tags
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
