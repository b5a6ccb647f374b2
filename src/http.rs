//! HTTP: decisions in JSON, health, metrics, and the rules in force; on an address of their own, the
//! counters.

pub mod counters;
mod json;
mod serve;

pub use serve::serve;

use std::{sync::Arc, time::SystemTime};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header},
    response::IntoResponse,
    routing::{get, post},
};
use serde_json::{Value, json};

use crate::{
    VERSION,
    engine::{
        rule::{Algorithm, Limit, Policy, Rule},
        rule_set::Domain,
    },
    health::Health,
    limiter::Limiter,
    rls::{decode::Bounds, headers::Headers},
    rules::Rules,
    telemetry::Telemetry,
};

/// What the endpoints answer from.
#[derive(Debug, Clone)]
pub struct Http {
    /// Decides.
    pub limiter: Arc<Limiter>,
    /// How much one request may hold.
    pub bounds: Bounds,
    /// Which headers an answer carries.
    pub headers: Arc<Headers>,
    /// The largest body, in bytes.
    pub message_bytes_max: usize,
    /// The service's phase.
    pub health: Health,
    /// Where metrics are read.
    pub telemetry: Arc<Telemetry>,
    /// The rules in force.
    pub rules: Arc<Rules>,
}

/// The endpoints.
pub fn router(http: Http) -> Router {
    Router::new()
        .route("/json", post(json::decide))
        .route("/healthz", get(|| async { "OK" }))
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(healthcheck))
        .route("/metrics", get(metrics))
        .route("/rules", get(rules))
        .layer(DefaultBodyLimit::max(http.message_bytes_max))
        .with_state(http)
}

async fn readyz(State(http): State<Http>) -> impl IntoResponse {
    match http.health.ready() {
        true => (StatusCode::OK, "OK"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    }
}

/// As envoyproxy/ratelimit answers: 200 `OK`, or 500 and nothing.
async fn healthcheck(State(http): State<Http>) -> impl IntoResponse {
    match http.health.ready() {
        true => (StatusCode::OK, "OK"),
        false => (StatusCode::INTERNAL_SERVER_ERROR, ""),
    }
}

async fn metrics(State(http): State<Http>) -> impl IntoResponse {
    let text_format = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (text_format, http.telemetry.scrape())
}

async fn rules(State(http): State<Http>) -> Json<Value> {
    let domain = |domain: &Domain| {
        let rules: Vec<Value> = domain.rules().into_iter().map(|it| rule(it)).collect();
        json!({ "domain": &*domain.name, "rules": rules })
    };
    let in_force = http.rules.current();
    let since = in_force.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Json(json!({
        "tollkeeper_version": VERSION,
        "version": in_force.version.to_string(),
        "loaded_at": since.as_secs(),
        "files": in_force.files,
        "problems": http.rules.problems().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "domains": in_force.rules.domains().into_iter().map(domain).collect::<Vec<_>>(),
    }))
}

fn told(limit: &Limit) -> String {
    match limit.algorithm {
        Algorithm::FixedWindow => limit.to_string(),
        _ => format!("{limit} by {}", limit.algorithm.name()),
    }
}

fn rule(rule: &Rule) -> Value {
    let limits: Vec<String> = match &rule.policy {
        Policy::Limited(limits) => limits.iter().map(|limit| told(limit)).collect(),
        Policy::Unlimited => vec!["unlimited".to_owned()],
    };
    json!({ "path": *rule.path, "limit": limits.join(", "), "written_at": rule.location })
}
