//! The admin address: `/counters` shows and changes counters, and `POST /explain` shows which rules a request would match and what it would charge. `GET /top` shows the
//! hottest keys. `/log` shows and changes which lines are logged, and `/stats` shows the counters of
//! envoyproxy/ratelimit. The status page is in `status`.

mod access;
mod audit;
mod counters;
mod overrides;
mod refused;

use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{RawQuery, State},
    http::{Request, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use serde_json::{Value, json};

pub use self::{access::Admin, counters::request};
use self::{
    access::{Actor, WebPages, needs_all_domains, refuse_strangers},
    audit::Change,
    counters::status_of,
    refused::{forbidden, refuse},
};
use super::{
    compat,
    parameters::{self, refused_parameter},
    status::{self, PageState},
};
use crate::{
    authorization::Right,
    rls::{self, refusal::Refusal},
    store::system_clock,
    telemetry::LogFilter,
};

/// The endpoints for operators only.
pub fn router(admin: Admin) -> Router {
    let guarded = |pages| middleware::from_fn_with_state((admin.clone(), pages), refuse_strangers);
    let of_all_domains =
        |right| middleware::from_fn_with_state((admin.clone(), right), needs_all_domains);
    let changes = Router::new()
        .route("/log", post(change_log))
        .layer(of_all_domains(Right::Change))
        .route("/counters/reset", post(counters::reset))
        .route("/counters/set", post(counters::set))
        .route("/overrides", post(overrides::set).layer(middleware::from_fn(refuse_parameters)))
        .route("/overrides/{id}", delete(overrides::end))
        .layer(guarded(WebPages::StatusPageWithToken))
        .layer(middleware::from_fn_with_state(admin.clone(), audit::note_change));
    let page = Router::new()
        .route("/status", get(show_status))
        .layer(of_all_domains(Right::Read))
        .route("/counters", get(counters::show))
        .route("/overrides", get(overrides::list))
        .route("/explain", post(explain).layer(middleware::from_fn(refuse_parameters)))
        .layer(guarded(WebPages::StatusPage))
        .route("/", get(status::page));
    Router::new()
        .route("/top", get(show_top_keys).layer(middleware::from_fn(refuse_parameters)))
        .route("/log", get(show_log).layer(middleware::from_fn(refuse_parameters)))
        .route("/stats", get(stats))
        .route("/audit", get(audit::show))
        .layer(of_all_domains(Right::Read))
        .route("/counters/list", get(counters::list))
        .route("/overrides/{id}", get(overrides::show))
        .layer(guarded(WebPages::Refused))
        .merge(changes)
        .merge(page)
        .layer(middleware::from_fn_with_state(admin.clone(), access::identify))
        .with_state(admin)
}

/// Takes the same body as `/json`.
async fn explain(
    State(admin): State<Admin>,
    Extension(actor): Extension<Actor>,
    request: Request<Body>,
) -> Result<Response, Response> {
    let bad = |refusal: Refusal| refuse(refusal.codes().1, &refusal.to_string());
    let decisions = &admin.decisions;
    let (body, _slot) = decisions.body(request).await.map_err(bad)?;
    let service = &decisions.service;
    let decoded = rls::json::request(&body, service.bounds).map_err(bad)?;
    admin.check(&actor, &decoded.request.domain, Right::Read).map_err(forbidden)?;
    let explanation = service.limiter.explain(&decoded.request, system_clock()).await;
    Ok((status_of(explanation.incomplete.as_deref()), Json(explanation)).into_response())
}

/// What the status page shows.
async fn show_status(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    let with_history = match wants_history(query.as_deref()) {
        Ok(wanted) => wanted,
        Err(problem) => return refuse(StatusCode::BAD_REQUEST, &problem),
    };
    let (no_store, reports) = ([(header::CACHE_CONTROL, "no-store")], admin.reports.clone());
    let top = admin.decisions.service.limiter.top().await;
    let (_, _, knows_overrides) = admin.decisions.service.limiter.overrides().list();
    let json = move || {
        let asked = PageState { phase: admin.health.phase(), knows_overrides, top, with_history };
        let json = status::json(&admin.reports, &admin.history, asked);
        (no_store, Json(json)).into_response()
    };
    reports.send(json).await
}

/// Reads the query of `/status`: nothing, or `history=1`.
fn wants_history(query: Option<&str>) -> Result<bool, String> {
    let [history] = parameters::read(query, ["history"])?;
    match history.first().map(|text| &**text) {
        None => Ok(false),
        Some("1") => Ok(true),
        Some(_) => Err("history: must be 1".to_owned()),
    }
}

async fn show_top_keys(State(admin): State<Admin>) -> Response {
    match admin.decisions.service.limiter.top().await {
        Some(report) => Json(report).into_response(),
        None => refuse(StatusCode::NOT_FOUND, "keys are not counted: --top-keys is off"),
    }
}

async fn show_log(State(admin): State<Admin>) -> Json<Value> {
    let filter = admin.reports.telemetry.log_filter().map(|filter| filter.to_string());
    Json(json!({ "filter": filter }))
}

/// Until the next start.
async fn change_log(
    State(admin): State<Admin>,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let filter = log_filter(query.as_deref());
    let filter = filter.map_err(|problem| refuse(StatusCode::BAD_REQUEST, &problem))?;
    tracing::info!(%filter, "log filter changed");
    let change =
        Change { action: "change log filter", details: json!({ "value": filter.to_string() }) };
    admin.reports.telemetry.set_log_filter(filter);
    Ok(change.of(show_log(State(admin)).await.into_response()))
}

/// Reads the query of `/log`: `filter=FILTER`, percent-encoded.
fn log_filter(query: Option<&str>) -> Result<LogFilter, String> {
    let [filter] = parameters::read(query, ["filter"])?;
    let filter = filter.first().ok_or("filter: missing, such as POST /log?filter=info")?;
    filter.parse().map_err(|problem| format!("filter: {problem}"))
}

async fn stats(State(Admin { reports, .. }): State<Admin>) -> Response {
    let telemetry = Arc::clone(&reports.telemetry);
    let answer = move || match compat::stats(&telemetry) {
        Some(stats) => Json(stats).into_response(),
        None => refuse(StatusCode::NOT_FOUND, "set --metrics-compat envoyproxy"),
    };
    reports.send(answer).await
}

/// For endpoints that take no parameters.
async fn refuse_parameters(request: Request<Body>, next: Next) -> Response {
    match refused_parameter(&request) {
        Some(problem) => refuse(StatusCode::BAD_REQUEST, &problem),
        None => next.run(request).await,
    }
}
