//! The admin address: `/counters` shows and changes counters, and `POST /explain` shows which rules a request would match and
//! what it would charge. `GET /top` shows the hottest keys. `/log` shows and changes which lines are logged, `/recording`
//! whether calls are recorded, and `/candidate` what other rules would change and whether they are in force. `/stats` shows
//! the counters of envoyproxy/ratelimit. The status page is in `status`.

mod access;
mod audit;
mod candidate;
mod counters;
mod overrides;
mod refused;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{RawQuery, State},
    http::{Request, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, delete, get, post},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use self::{
    Query::{Descriptors, Empty, Parameters},
    access::{
        Actor,
        WebPages::{self, NoPage, StatusPage, StatusPageWithToken},
    },
    audit::Change,
    counters::status_of,
    refused::Refused,
};
pub use self::{access::Admin, counters::request};
use super::{
    compat,
    parameters::{self, refused_parameter},
    status::{self, PageState},
};
use crate::{
    authorization::{Right, clients::EVERY_DOMAIN},
    engine::descriptor_syntax::is_digest,
    rls::{self, refusal::Refusal},
    store::system_clock,
    telemetry::{
        EventKind::{CounterSet, CountersReset, LogFilterSet},
        LogFilter,
    },
    text::duration::{duration, seconds_up},
};

/// The longest time for which calls are recorded when it is asked for.
const RECORDED_FOR_MAX: Duration = Duration::from_secs(7 * 86_400);

pub fn router(admin: Admin) -> Router {
    const READ: Option<Right> = Some(Right::Read);
    const CHANGE: Option<Right> = Some(Right::Change);
    const COUNTER: &[&str] = &["descriptor", "domain", "used", "limit", "because"];
    let noted = |action, shown, event| Some(Change { action, shown, event });
    let log = noted("change log filter", &["filter"], Some(LogFilterSet));
    let recording = noted("record calls", &["for"], None);
    let order = noted("order about the candidate", &["order", "version", "because"], None);
    let reset = noted("reset counters", COUNTER, Some(CountersReset));
    let set = noted("set counter", COUNTER, Some(CounterSet));
    let set_override = noted("set override", &[], None);
    let undo = noted("undo override", &["because"], None);
    // An endpoint without a right on all domains checks the domain by itself.
    #[rustfmt::skip]
    let endpoints = [
        // path, method and handler, web pages, right on all domains, query, note in the audit
        ("/audit", get(audit::show), NoPage, READ, Parameters, None),
        ("/candidate", get(candidate::show), NoPage, READ, Empty, None),
        ("/candidate", post(candidate::order), NoPage, CHANGE, Parameters, order),
        ("/counters", get(counters::show), StatusPage, None, Descriptors, None),
        ("/counters/list", get(counters::list), NoPage, None, Descriptors, None),
        ("/counters/reset", post(counters::reset), StatusPageWithToken, None, Descriptors, reset),
        ("/counters/set", post(counters::set), StatusPageWithToken, None, Descriptors, set),
        ("/explain", post(explain), StatusPage, None, Descriptors, None),
        ("/log", get(show_log), NoPage, READ, Empty, None),
        ("/log", post(change_log), StatusPageWithToken, CHANGE, Parameters, log),
        ("/overrides", get(overrides::list), StatusPage, None, Parameters, None),
        ("/overrides", post(overrides::set), StatusPageWithToken, None, Empty, set_override),
        ("/overrides/{id}", get(overrides::show), NoPage, None, Parameters, None),
        ("/overrides/{id}", delete(overrides::end), StatusPageWithToken, None, Parameters, undo),
        ("/recording", get(show_recording), NoPage, READ, Empty, None),
        ("/recording", post(record), NoPage, CHANGE, Parameters, recording),
        ("/stats", get(stats), NoPage, READ, Parameters, None),
        ("/status", get(show_status), StatusPage, READ, Parameters, None),
        ("/top", get(show_top_keys), NoPage, READ, Empty, None),
    ];
    let guarded = |pages, of_all_domains, query, change| {
        let guard = EndpointGuard { pages, of_all_domains, query, change };
        middleware::from_fn_with_state(guard, admit)
    };
    // Strangers do not learn which paths there are.
    let unknown = any(async || StatusCode::NOT_FOUND);
    let unknown = unknown.layer(guarded(StatusPage, READ, Parameters, None));
    // The page itself shows nothing before it has asked the others.
    let mut router = Router::new().route("/", get(status::page)).fallback_service(unknown);
    for (path, handler, pages, of_all_domains, query, change) in endpoints {
        router = router.route(path, handler.layer(guarded(pages, of_all_domains, query, change)));
    }
    router.layer(middleware::from_fn_with_state(admin.clone(), access::identify)).with_state(admin)
}

/// What a request needs to reach an endpoint, and what the audit notes of it.
#[derive(Debug, Clone, Copy)]
struct EndpointGuard {
    pages: WebPages,
    /// The right that its client needs on all domains.
    of_all_domains: Option<Right>,
    query: Query,
    change: Option<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Query {
    Parameters,
    /// Among them descriptors, or their digests.
    Descriptors,
    /// None are known, so any is refused.
    Empty,
}

impl EndpointGuard {
    fn check(&self, actor: &Actor, request: &Request<Body>) -> Result<(), Refused> {
        actor.refuse_stranger(self.pages, request.headers())?;
        if let Some(right) = self.of_all_domains {
            actor.check(EVERY_DOMAIN, right)?;
        }
        match refused_parameter(request) {
            Some(problem) if self.query == Empty => Err(problem.into()),
            _ => Ok(()),
        }
    }
}

/// Lets a request reach its endpoint if it may, and notes it if it is to change something.
async fn admit(
    State(guard): State<EndpointGuard>,
    Extension(actor): Extension<Actor>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let (mut uri, only_reads) = (request.uri().clone(), request.method().is_safe());
    let checked = match guard.check(&actor, &request) {
        Ok(()) if guard.query == Descriptors => without_digests(&actor, &uri).await,
        Ok(()) => Ok(None),
        Err(refused) => Err(refused),
    };
    let answer = match checked {
        Ok(named) => {
            uri = named.unwrap_or(uri);
            *request.uri_mut() = uri.clone();
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    };
    match guard.change.filter(|_| !only_reads) {
        Some(change) => audit::note_change(change, &actor, &uri, answer).await,
        None => answer,
    }
}

/// The same with descriptors in place of digests of lists; `None` if it has none.
async fn without_digests(actor: &Actor, uri: &Uri) -> Result<Option<Uri>, Refused> {
    let query = uri.query().unwrap_or_default();
    let digest = |pair| match str::split_once(pair, '=') {
        Some((name @ ("descriptor" | "d"), text)) if is_digest(text) => Some((name, text)),
        _ => None,
    };
    let parameters = || form_urlencoded::parse(query.as_bytes());
    let domain = parameters().find(|(name, _)| name == "domain").map(|(_, domain)| domain);
    let digests: Vec<&str> = query.split('&').filter_map(digest).map(|(_, text)| text).collect();
    let Some(domain) = domain.filter(|_| !digests.is_empty()) else { return Ok(None) };
    let mut descriptors = actor.descriptors_of(&domain, &digests).await?.into_iter();
    let written = |pair| match digest(pair) {
        Some((name, _)) => {
            let descriptor = descriptors.next().unwrap_or_default();
            format!("{name}={}", utf8_percent_encode(&descriptor, NON_ALPHANUMERIC))
        }
        None => pair.to_owned(),
    };
    let pairs: Vec<String> = query.split('&').map(written).collect();
    let uri = format!("{}?{}", uri.path(), pairs.join("&"));
    Ok(Some(uri.parse().map_err(|error| format!("descriptor: {error}"))?))
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
    let explained = actor.limiter().explain(&call, system_clock()).await;
    let explanation = explained.map_err(Refusal::from)?;
    Ok((status_of(explanation.incomplete.as_deref()), Json(explanation)).into_response())
}

async fn show_status(
    State(admin): State<Admin>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    let with_history = wants_history(query.as_deref())?;
    let limiter = &admin.decisions.service.limiter;
    let (top, override_problem) = (limiter.top().await, limiter.overrides().problem());
    let candidate_problem = limiter.candidate().and_then(|candidate| candidate.problem());
    let asked = PageState {
        phase: admin.health.phase(),
        override_problem,
        candidate_problem,
        candidate: limiter.candidate().map(|candidate| candidate.json()),
        top,
        with_history,
    };
    let reports = admin.reports.clone();
    let json = move || {
        let json = status::json(&admin.reports, &admin.history, asked);
        ([(header::CACHE_CONTROL, "no-store")], Json(json)).into_response()
    };
    Ok(reports.send(if with_history { "history" } else { "status" }, json).await)
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

async fn show_recording(State(admin): State<Admin>) -> Result<Json<Value>, Refused> {
    let recorder = admin.decisions.service.limiter.recorder();
    let recorder =
        recorder.ok_or_else(|| Refused::not_found("calls are not recorded: --record is off"))?;
    let left = recorder.time_left();
    Ok(Json(json!({
        "folder": recorder.folder_path().display().to_string(),
        "recording": left != Some(Duration::ZERO),
        "seconds_left": left.map(seconds_up),
    })))
}

/// Until the next start, or as long as asked for.
async fn record(
    State(admin): State<Admin>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refused> {
    let time = recording_time(query.as_deref())?;
    if let Some(recorder) = admin.decisions.service.limiter.recorder() {
        recorder.record_for(time);
    }
    show_recording(State(admin)).await
}

/// Reads the query of `/recording`: `for=TIME`.
fn recording_time(query: Option<&str>) -> Result<Duration, String> {
    let [time] = parameters::read(query, ["for"])?;
    let time = time.first().ok_or("for: missing, such as POST /recording?for=10m")?;
    duration(time, Duration::ZERO, RECORDED_FOR_MAX).map_err(|problem| format!("for: {problem}"))
}

async fn stats(State(Admin { reports, .. }): State<Admin>) -> Response {
    let telemetry = Arc::clone(&reports.telemetry);
    let answer = move || match compat::stats(&telemetry) {
        Some(stats) => Json(stats).into_response(),
        None => Refused::not_found("set --metrics-compat envoyproxy").into_response(),
    };
    reports.send("stats", answer).await
}
