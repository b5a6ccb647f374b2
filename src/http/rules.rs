//! `GET /rules`: the rules in force, and the problems of newer ones.

use std::time::SystemTime;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{parameters::refused_parameter, report::Reports};
use crate::{
    VERSION,
    engine::{
        rule::{Algorithm, Limit, Policy, Rule},
        rule_set::Domain,
        time::Timestamp,
    },
    process::clock::system_clock,
    rls::refusal::Refusal,
    rules::{InForce, Rules, xds::ControlPlane},
};

pub(super) async fn rules(State(reports): State<Reports>, request: Request) -> Response {
    if let Some(problem) = refused_parameter(&request) {
        return Refusal::Invalid(problem).into_response();
    }
    let Reports { rules, control_plane, .. } = reports.clone();
    reports
        .send("rules", move || Json(rules_json(&rules, control_plane.as_deref())).into_response())
        .await
}

fn rules_json(rules: &Rules, control_plane: Option<&ControlPlane>) -> Value {
    let in_force = rules.current();
    let domains = in_force.rules.domains().into_iter().map(domain_json);
    let others = [
        ("tollkeeper_version", json!(VERSION)),
        ("files", json!(in_force.files)),
        ("control_plane", json!(control_plane.map(control_plane_json))),
        ("domains", domains.collect()),
    ];
    let problems = rules.problems().iter().map(ToString::to_string).collect();
    rules_state(problems, &in_force).into_iter().chain(others).collect()
}

/// The version of the rules in force, when they were loaded, and the problems of newer ones.
pub(super) fn rules_state(problems: Vec<String>, in_force: &InForce) -> [(&'static str, Value); 3] {
    let since = in_force.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    [
        ("version", json!(in_force.version.to_string())),
        ("loaded_at", json!(since.as_secs())),
        ("problems", json!(problems)),
    ]
}

pub(super) fn control_plane_json(control_plane: &ControlPlane) -> Value {
    let report = control_plane.report();
    let (version, accepted_at) = report.accepted.unzip();
    let age = accepted_at.map(|at| system_clock().as_secs().saturating_sub(at.as_secs()));
    json!({
        "url": control_plane.target.to_string(),
        "connected": report.connected,
        "version": version,
        "accepted_at": accepted_at.map(Timestamp::as_secs),
        "age_seconds": age,
        "refused_version": report.refused,
        "failure": report.failure,
    })
}

fn domain_json(domain: &Domain) -> Value {
    let rules: Vec<Value> = domain.rules().into_iter().map(|rule| rule_json(rule)).collect();
    json!({ "domain": &*domain.name, "rules": rules })
}

fn rule_json(rule: &Rule) -> Value {
    json!({ "path": *rule.path, "limit": limits_text(rule), "written_at": rule.location })
}

/// The limits of a rule, such as `10 per minute`.
pub(super) fn limits_text(rule: &Rule) -> String {
    let limits: Vec<String> = match &rule.policy {
        Policy::Limited(limits) => limits.iter().map(|limit| limit_text(limit)).collect(),
        Policy::Unlimited => vec!["unlimited".to_owned()],
    };
    limits.join(", ")
}

/// The limit, with its algorithm unless that is the default.
fn limit_text(limit: &Limit) -> String {
    match limit.algorithm {
        Algorithm::FixedWindow | Algorithm::InFlight { .. } => limit.to_string(),
        _ => format!("{limit} by {}", limit.algorithm.name()),
    }
}
