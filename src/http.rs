//! HTTP: decisions in JSON, health, metrics and the rules in force; on the admin address, counters and
//! explanations. Each kind of endpoint has a state of its own.

pub mod admin;
mod browser;
mod buffered;
mod check;
mod compat;
mod json;
mod parameters;
mod report;
mod rlconfig;
mod rules;
mod serve;
mod status;

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};

pub use self::{
    compat::statsd::follow as send_to_statsd,
    json::Decisions,
    report::Reports,
    serve::{HttpBounds, serve},
    status::History,
};
use crate::{
    edge::health::Health,
    net::{grpc::ServedMethod, tls::server::Identity},
    rls::refusal::Refusal,
};

pub fn router(decisions: Decisions, reports: Reports, health: Health) -> Router {
    let needs_certificate = |needed| middleware::from_fn_with_state(needed, require_certificate);
    let json_needs_certificate = needs_certificate(decisions.needs_certificate);
    let reports_need_certificate = needs_certificate(reports.needs_certificate);
    let measured = middleware::from_fn_with_state(decisions.clone(), json::measured);
    let web_pages_refused = middleware::from_fn(json::refuse_web_pages);
    let batches = |method| {
        move |decisions: State<Decisions>, request: Request| {
            json::decide_batch(method, decisions, request)
        }
    };
    let json = Router::new()
        .route("/json", post(json::decide))
        .route("/v1/decide", post(batches(ServedMethod::Decide)))
        .route("/v1/commit", post(batches(ServedMethod::Commit)))
        .route("/v1/renew", post(batches(ServedMethod::Renew)))
        .method_not_allowed_fallback(async || Refusal::OtherMethod("POST"))
        .route("/check", get(check::check))
        .route("/check", post(check::check))
        .method_not_allowed_fallback(async || Refusal::OtherMethod("GET or POST"))
        .route("/v1/usage", get(json::usage))
        .method_not_allowed_fallback(use_get)
        .fallback(async || Refusal::UnknownPath)
        .route_layer(web_pages_refused)
        .route_layer(measured)
        .with_state(decisions);
    let reports = Router::new()
        .route("/metrics", get(metrics))
        .route("/rules", get(rules::rules))
        .method_not_allowed_fallback(use_get)
        .with_state(reports);
    // Probes have no certificate.
    json.layer(json_needs_certificate)
        .merge(reports.layer(reports_need_certificate))
        .route("/healthz", get(|| async { "OK" }))
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(healthcheck))
        .method_not_allowed_fallback(use_get)
        .with_state(health)
}

pub fn metrics_router(reports: Reports, path: Arc<str>) -> Router {
    // A path from the settings is compared, since a router would give some characters a meaning.
    Router::new()
        .fallback(async move |State(reports): State<Reports>, request: Request| {
            if request.uri().path() == &*path {
                metrics(State(reports)).await
            } else {
                StatusCode::NOT_FOUND.into_response()
            }
        })
        .with_state(reports)
}

/// What envoyproxy/ratelimit serves on its debug port, and has an equivalent here.
pub fn debug_router(reports: Reports) -> Router {
    Router::new().route("/rlconfig", get(rlconfig::list)).with_state(reports)
}

async fn use_get() -> Refusal {
    Refusal::OtherMethod("GET")
}

/// Where clients identify themselves, one without a certificate may only query health.
async fn require_certificate(State(needed): State<bool>, request: Request, next: Next) -> Response {
    if needed && request.extensions().get::<Identity>().is_none() {
        return (StatusCode::FORBIDDEN, "a client certificate is required").into_response();
    }
    next.run(request).await
}

async fn readyz(State(health): State<Health>) -> impl IntoResponse {
    if health.ready() {
        (StatusCode::OK, "OK")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    }
}

/// Answers like envoyproxy/ratelimit: 200 with `OK`, or 500 with an empty body.
async fn healthcheck(State(health): State<Health>) -> impl IntoResponse {
    if health.ready() { (StatusCode::OK, "OK") } else { (StatusCode::INTERNAL_SERVER_ERROR, "") }
}

async fn metrics(State(reports): State<Reports>) -> Response {
    let text_format = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let telemetry = Arc::clone(&reports.telemetry);
    let scrape = move || match compat::scrape(&telemetry) {
        Ok(text) => (text_format, text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    reports.send("metrics", scrape).await
}
