//! HTTP: decisions in JSON, health, metrics and the rules in force; on the admin address, counters and
//! explanations.

pub mod admin;
mod browser;
mod json;
mod serve;

pub use serve::serve;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Request, State},
    http::{StatusCode, header},
    response::IntoResponse,
    routing::{get, post},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time,
};

use crate::{
    VERSION,
    engine::{
        rule::{Algorithm, Limit, Policy, Rule},
        rule_set::Domain,
    },
    health::Health,
    limiter::Limiter,
    rls::{decode::Bounds, headers::Headers, refusal::Refusal},
    rules::Rules,
    telemetry::Telemetry,
};

/// Most requests with a body in progress at a time. Below the number of connections, so that probes always
/// find one.
pub const REQUESTS_MAX: usize = 128;

/// Longest time that a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// The state that the endpoints share.
#[derive(Debug, Clone)]
pub struct Http {
    /// Decides the calls of `/json`.
    pub limiter: Arc<Limiter>,
    /// Bounds for one request.
    pub bounds: Bounds,
    /// The rate limit headers that an answer carries.
    pub headers: Arc<Headers>,
    /// The largest body, in bytes.
    pub message_bytes_max: usize,
    /// The service's phase.
    pub health: Health,
    /// The source of `/metrics`.
    pub telemetry: Arc<Telemetry>,
    /// The rules in force.
    pub rules: Arc<Rules>,
    /// One permit for each request with a body: [`REQUESTS_MAX`].
    pub request_slots: Arc<Semaphore>,
}

impl Http {
    /// The body of a request, and its slot among the requests in progress.
    ///
    /// # Errors
    /// If no slot is free, or the body is too slow, too large or incomplete.
    async fn body(&self, request: Request) -> Result<(Bytes, SemaphorePermit<'_>), Refusal> {
        let Ok(slot) = self.request_slots.try_acquire() else {
            return Err(Refusal::Busy("too many concurrent requests".to_owned()));
        };
        let (body, bytes_max) = (request.into_body(), self.message_bytes_max);
        // What `content-length` says; 0 without one.
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(Refusal::TooLongAt(bytes_max));
        }
        match time::timeout(BODY_WITHIN, Limited::new(body, bytes_max).collect()).await {
            Ok(Ok(body)) => Ok((body.to_bytes(), slot)),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::TooLongAt(bytes_max)),
            Ok(Err(_)) => Err(Refusal::Invalid("body: malformed or incomplete".to_owned())),
            Err(_) => Err(Refusal::TooSlow),
        }
    }
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
        .with_state(http)
}

async fn readyz(State(http): State<Http>) -> impl IntoResponse {
    if http.health.ready() {
        (StatusCode::OK, "OK")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    }
}

/// Answers like envoyproxy/ratelimit: 200 with `OK`, or 500 with an empty body.
async fn healthcheck(State(http): State<Http>) -> impl IntoResponse {
    if http.health.ready() {
        (StatusCode::OK, "OK")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "")
    }
}

async fn metrics(State(http): State<Http>) -> impl IntoResponse {
    let text_format = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (text_format, http.telemetry.scrape())
}

async fn rules(State(http): State<Http>) -> Json<Value> {
    let in_force = http.rules.current();
    let since = in_force.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Json(json!({
        "tollkeeper_version": VERSION,
        "version": in_force.version.to_string(),
        "loaded_at": since.as_secs(),
        "files": in_force.files,
        "problems": http.rules.problems().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "domains": in_force.rules.domains().into_iter().map(domain_json).collect::<Vec<_>>(),
    }))
}

fn domain_json(domain: &Domain) -> Value {
    let rules: Vec<Value> = domain.rules().into_iter().map(|rule| rule_json(rule)).collect();
    json!({ "domain": &*domain.name, "rules": rules })
}

fn rule_json(rule: &Rule) -> Value {
    let limits: Vec<String> = match &rule.policy {
        Policy::Limited(limits) => limits.iter().map(|limit| limit_text(limit)).collect(),
        Policy::Unlimited => vec!["unlimited".to_owned()],
    };
    json!({ "path": *rule.path, "limit": limits.join(", "), "written_at": rule.location })
}

/// The limit, with its algorithm unless that is the default.
fn limit_text(limit: &Limit) -> String {
    match limit.algorithm {
        Algorithm::FixedWindow => limit.to_string(),
        _ => format!("{limit} by {}", limit.algorithm.name()),
    }
}
