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
    http::{Request, header},
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
    refused::Refused,
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
    telemetry::{
        EventKind::{CounterSet, CountersReset, LogFilterSet},
        LogFilter,
    },
};

pub fn router(admin: Admin) -> Router {
    let guarded = |pages| middleware::from_fn_with_state(pages, refuse_strangers);
    let of_all_domains = |right| middleware::from_fn_with_state(right, needs_all_domains);
    let guard = || guarded(WebPages::StatusPageWithToken);
    let noted = |action, shown, event| {
        middleware::from_fn_with_state(Change { action, shown, event }, audit::note_change)
    };
    let plain = middleware::from_fn(refuse_parameters);
    let log = noted("change log filter", &["filter"], Some(LogFilterSet));
    let counters: &[&str] = &["descriptor", "domain", "used", "limit", "because"];
    let reset = noted("reset counters", counters, Some(CountersReset));
    let set = noted("set counter", counters, Some(CounterSet));
    let set_override = noted("set override", &[], None);
    let undo = noted("undo override", &["because"], None);
    let of_log = of_all_domains(Right::Change);
    let changes = Router::new()
        .route("/log", post(change_log).layer(of_log).layer(guard()).layer(log))
        .route("/counters/reset", post(counters::reset).layer(guard()).layer(reset))
        .route("/counters/set", post(counters::set).layer(guard()).layer(set))
        .route("/overrides", post(overrides::set).layer(plain).layer(guard()).layer(set_override))
        .route("/overrides/{id}", delete(overrides::end).layer(guard()).layer(undo));
    let page = Router::new()
        .route("/status", get(show_status))
        .layer(of_all_domains(Right::Read))
        .route("/counters", get(counters::show))
        .route("/overrides", get(overrides::list))
        .route("/explain", post(explain))
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

/// Takes the same body as `/json`, or the domain, descriptors and hits as parameters, which can have any bytes.
async fn explain(
    Extension(actor): Extension<Actor>,
    request: Request<Body>,
) -> Result<Response, Refused> {
    let decisions = &actor.admin.decisions;
    let bounds = decisions.service.bounds;
    let query = request.uri().query().filter(|query| !query.is_empty()).map(str::to_owned);
    let (body, _held) = decisions.body(request).await?;
    let call = match query {
        Some(query) => parameters::call(&query, bounds).map_err(Refusal::Invalid)?,
        None => rls::json::request(&body, bounds)?.request,
    };
    actor.check(&call.domain, Right::Read)?;
    let explanation = actor.limiter().explain(&call, system_clock()).await;
    Ok((status_of(explanation.incomplete.as_deref()), Json(explanation)).into_response())
}

async fn show_status(
    State(admin): State<Admin>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    let with_history = wants_history(query.as_deref())?;
    let limiter = &admin.decisions.service.limiter;
    let (top, override_problem) = (limiter.top().await, limiter.overrides().problem());
    let asked = PageState { phase: admin.health.phase(), override_problem, top, with_history };
    let reports = admin.reports.clone();
    let json = move || {
        let json = status::json(&admin.reports, &admin.history, asked);
        ([(header::CACHE_CONTROL, "no-store")], Json(json)).into_response()
    };
    Ok(reports.send(json).await)
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

async fn show_top_keys(State(admin): State<Admin>) -> Result<Response, Refused> {
    let top = admin.decisions.service.limiter.top().await;
    let off = || Refused::not_found("keys are not counted: --top-keys is off");
    Ok(Json(top.ok_or_else(off)?).into_response())
}

async fn show_log(State(admin): State<Admin>) -> Json<Value> {
    let filter = admin.reports.telemetry.log_filter().map(|filter| filter.to_string());
    Json(json!({ "filter": filter }))
}

/// Until the next start.
async fn change_log(
    State(admin): State<Admin>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refused> {
    let filter = log_filter(query.as_deref())?;
    tracing::info!(%filter, "log filter changed");
    admin.reports.telemetry.set_log_filter(filter);
    Ok(show_log(State(admin)).await)
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
        None => Refused::not_found("set --metrics-compat envoyproxy").into_response(),
    };
    reports.send(answer).await
}

/// For endpoints that take no parameters.
async fn refuse_parameters(request: Request<Body>, next: Next) -> Result<Response, Refused> {
    match refused_parameter(&request) {
        Some(problem) => Err(problem.into()),
        None => Ok(next.run(request).await),
    }
}
