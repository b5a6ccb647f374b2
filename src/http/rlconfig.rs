//! The rules in force as envoyproxy/ratelimit lists them, for its users' scripts. What that form cannot express, such as
//! algorithms, is on `/rules`.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse as _, Response},
};

use super::report::Reports;
use crate::{
    engine::rule::{Limit, Mode, Policy, Rule},
    rules::Rules,
};

const UNLIMITED: &str = "unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false";

pub(super) async fn list(State(reports): State<Reports>) -> Response {
    let rules = Arc::clone(&reports.rules);
    reports.send("rlconfig", move || lines(&rules).into_response()).await
}

fn lines(rules: &Rules) -> String {
    let in_force = rules.current();
    let mut text = String::new();
    for domain in in_force.rules.domains() {
        for rule in domain.rules() {
            let path = path(&domain.name, rule);
            match &rule.policy {
                Policy::Limited(limits) => {
                    for limit in limits {
                        text += &format!("{path}: {}\n", of_limit(limit));
                    }
                }
                Policy::Unlimited => text += &format!("{path}: {UNLIMITED}\n"),
            }
        }
    }
    text
}

/// `domain.key_value.key`.
fn path(domain: &str, rule: &Rule) -> String {
    let levels: Vec<String> =
        rule.path.split('|').map(|level| level.replacen('=', "_", 1)).collect();
    format!("{domain}.{}", levels.join("."))
}

fn of_limit(limit: &Limit) -> String {
    let unit = if limit.counts_calls() { "unknown" } else { limit.unit.name() };
    let (unit, requests) = (unit.to_ascii_uppercase(), limit.requests_per_unit);
    let (shadow, quota) = (limit.mode_written == Mode::Shadow, limit.mode_written == Mode::Quota);
    format!("unit={unit} requests_per_unit={requests}, shadow_mode: {shadow}, quota_mode: {quota}")
}
