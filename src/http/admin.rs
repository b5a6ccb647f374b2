//! The admin address: `GET /counters` shows the counters of one descriptor, `POST /counters/reset` resets
//! them, `GET /counters/list` shows those that match patterns, and `POST /explain` shows which rules a request would match and what it would charge. `GET /top` shows the
//! hottest keys. `/log` shows and changes which lines are logged, and `/stats` shows the counters of
//! envoyproxy/ratelimit. The status page is in `status`.

mod overrides;
mod refused;

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderValue, Request, StatusCode, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};

use self::refused::{forbidden, refuse};
use super::{
    browser, compat,
    json::Decisions,
    parameters::{self, refused_parameter},
    report::Reports,
    status::{self, History},
};
use crate::{
    authorization::{AdminToken, clients::EVERY_DOMAIN},
    edge::health::Health,
    engine::{
        descriptor_syntax,
        ledger::{Charge, Remembered},
        request,
        rule::Limit,
    },
    explain::{CORRUPT, incomplete},
    limiter::listing::Listing,
    net::tls::server::Identity,
    rls::{self, refusal::Refusal},
    store::{Clear, CounterReading, system_clock},
    telemetry::{LogCause, LogFilter, due_line},
};

/// The number of descriptors that a listing shows, and the most.
const LISTED: usize = 100;
const LISTED_MAX: usize = 1000;

/// Which web pages may use an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WebPages {
    /// None: it shows more than the status page does, or changes something.
    Refused,
    /// The status page, which has the endpoint's origin.
    StatusPage,
}

/// What the endpoints for operators use.
#[derive(Debug, Clone)]
pub struct Admin {
    /// The limiter, and the domains of each client.
    pub decisions: Decisions,
    /// Reports.
    pub reports: Reports,
    /// What the service did in the last hours.
    pub history: Arc<History>,
    /// The service's phase.
    pub health: Health,
    /// The token that clients show, if there is one.
    pub token: Option<Arc<AdminToken>>,
    /// Whether clients of this address identify themselves with certificates.
    pub identifies_clients: bool,
}

/// The endpoints for operators only.
pub fn router(admin: Admin) -> Router {
    let guarded = |pages| middleware::from_fn_with_state((admin.clone(), pages), refuse_strangers);
    let of_all_domains = middleware::from_fn_with_state(admin.clone(), needs_all_domains);
    let page = Router::new()
        .route("/status", get(show_status))
        .layer(of_all_domains.clone())
        .layer(guarded(WebPages::StatusPage))
        .route("/", get(status::page));
    Router::new()
        .route("/top", get(show_top_keys).layer(middleware::from_fn(refuse_parameters)))
        .route("/log", get(show_log).layer(middleware::from_fn(refuse_parameters)))
        .route("/log", post(change_log))
        .route("/stats", get(stats))
        .layer(of_all_domains)
        .route("/counters", get(show_counters))
        .route("/counters/list", get(list_counters))
        .route("/counters/reset", post(reset_counters))
        .merge(overrides::router(admin.decisions.clone(), admin.token.is_some()))
        .route("/explain", post(explain).layer(middleware::from_fn(refuse_parameters)))
        .layer(guarded(WebPages::Refused))
        .merge(page)
        .with_state(admin)
}

/// Takes the same body as `/json`.
async fn explain(
    State(Admin { decisions, .. }): State<Admin>,
    request: Request<Body>,
) -> Result<Response, Response> {
    let bad = |refusal: Refusal| refuse(refusal.codes().1, &refusal.to_string());
    let client = request.extensions().get::<Identity>().cloned();
    let (body, _slot) = decisions.body(request).await.map_err(bad)?;
    let service = &decisions.service;
    let decoded = rls::json::request(&body, service.bounds).map_err(bad)?;
    service.check_domain(client.as_ref(), &decoded.request.domain).map_err(forbidden)?;
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
    let json = move || {
        let json =
            status::json(&admin.reports, &admin.history, admin.health.phase(), top, with_history);
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
) -> Result<Json<Value>, Response> {
    let filter = log_filter(query.as_deref());
    let filter = filter.map_err(|problem| refuse(StatusCode::BAD_REQUEST, &problem))?;
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
        None => refuse(StatusCode::NOT_FOUND, "set --metrics-compat envoyproxy"),
    };
    reports.send(answer).await
}

async fn show_counters(State(admin): State<Admin>, asked: Parts) -> Result<Response, Response> {
    counters(&admin.decisions.service, &asked, Clear::No).await
}

async fn reset_counters(State(admin): State<Admin>, asked: Parts) -> Result<Response, Response> {
    counters(&admin.decisions.service, &asked, Clear::Yes).await
}

async fn counters(
    service: &rls::Service,
    asked: &Parts,
    clear: Clear,
) -> Result<Response, Response> {
    let request =
        request(asked.uri.query()).map_err(|problem| refuse(StatusCode::BAD_REQUEST, &problem))?;
    service.check_domain(asked.extensions.get(), &request.domain).map_err(forbidden)?;
    let readings = service.limiter.read_counters(&request, clear).await;
    if readings.is_empty() {
        return Err(refuse(StatusCode::NOT_FOUND, "no limit applies to this descriptor"));
    }
    let incomplete = incomplete(readings.iter().map(|(_, reading)| reading));
    let counters: Vec<Value> = readings.iter().map(counter).collect();
    let answer = match &incomplete {
        Some(incomplete) => json!({ "counters": counters, "incomplete": incomplete }),
        None => json!({ "counters": counters }),
    };
    Ok((status_of(incomplete.as_deref()), Json(answer)).into_response())
}

async fn list_counters(State(admin): State<Admin>, asked: Parts) -> Result<Response, Response> {
    let service = &admin.decisions.service;
    let listing = listing(asked.uri.query());
    let listing = listing.map_err(|problem| refuse(StatusCode::BAD_REQUEST, &problem))?;
    service.check_domain(asked.extensions.get(), &listing.domain).map_err(forbidden)?;
    let listed = service.limiter.list(&listing).await;
    let listed =
        listed.map_err(|error| refuse(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()))?;
    let incomplete = incomplete(listed.counters.iter().map(|(_, _, reading)| reading));
    let counters = listed.counters.into_iter().map(|(descriptor, charge, reading)| {
        let mut shown = counter(&(charge, reading));
        if let Some(shown) = shown.as_object_mut() {
            shown.insert("descriptor".to_owned(), descriptor.into());
        }
        shown
    });
    let mut answer = json!({
        "counters": counters.collect::<Vec<_>>(),
        "more": listed.more,
        "digests": listed.digests,
    });
    if let (Some(incomplete), Some(answer)) = (&incomplete, answer.as_object_mut()) {
        answer.insert("incomplete".to_owned(), incomplete.as_str().into());
    }
    Ok((status_of(incomplete.as_deref()), Json(answer)).into_response())
}

/// Reads the query of `/counters/list`: `domain=D`, and if given `descriptor=k=PATTERN,k=PATTERN`, `over=true` and
/// `limit=N`.
fn listing(query: Option<&str>) -> Result<Listing, String> {
    let names = ["domain", "descriptor", "over", "limit"];
    let [domain, descriptor, over, limit] = parameters::read(query, names)?;
    let domain = domain.first().ok_or("domain: missing")?.clone().into_owned();
    let entries = match descriptor.first() {
        Some(text) => {
            descriptor_syntax::parse(text).map_err(|problem| format!("descriptor: {problem}"))?
        }
        None => Vec::new(),
    };
    let over = match over.first().map(|text| &**text) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err("over: must be true or false".to_owned()),
    };
    let limit = match limit.first() {
        None => LISTED,
        Some(text) => (text.parse().ok())
            .filter(|limit| (1..=LISTED_MAX).contains(limit))
            .ok_or_else(|| format!("limit: must be a whole number from 1 to {LISTED_MAX}"))?,
    };
    Ok(Listing { domain, entries, over, limit })
}

/// What is known is shown in any case. The status is an error if anything is missing, since scripts look at
/// the status alone.
fn status_of(incomplete: Option<&str>) -> StatusCode {
    match incomplete {
        Some(problem) => {
            if let Some(line) = due_line(LogCause::AdminAnswer, "") {
                tracing::warn!(
                    suppressed = line.suppressed,
                    "an answer of the admin address is incomplete: {problem} (logged at most once a minute)"
                );
            }
            StatusCode::SERVICE_UNAVAILABLE
        }
        None => StatusCode::OK,
    }
}

/// Reads the query of `/counters`: `domain=D&descriptor=k=v,k=v`, each part percent-encoded.
///
/// # Errors
/// A message that names the parameter, for one that is missing, unknown, malformed or given twice.
pub fn request(query: Option<&str>) -> Result<request::Request, String> {
    parameters::counters(query, "descriptor")
}

fn counter((charge, reading): &(Charge, CounterReading)) -> Value {
    let limit = &charge.counter.limit;
    let (algorithm, limit_in_words) = (limit.algorithm.name(), limit.to_string());
    let state = match reading {
        CounterReading::State(state) => state,
        CounterReading::Corrupt => {
            return json!({ "algorithm": algorithm, "limit": limit_in_words, "problem": CORRUPT });
        }
        CounterReading::NoAnswer(cause) => {
            return json!({ "algorithm": algorithm, "limit": limit_in_words, "error": cause });
        }
    };
    let mut shown = json!({
        "algorithm": algorithm,
        "limit": limit_in_words,
        "used": state.used,
        "remaining": state.remaining,
        "reset_ms": u64::try_from(state.reset.as_millis()).unwrap_or(u64::MAX),
        "remembered": state.remembered.iter().map(|call| remembered(call, limit)).collect::<Vec<_>>(),
    });
    if limit.has_open_holds()
        && let Some(shown) = shown.as_object_mut()
    {
        shown.insert("held".to_owned(), state.held.into());
        shown.insert("open_holds".to_owned(), state.open_holds.into());
    }
    shown
}

fn remembered(call: &Remembered, limit: &Limit) -> Value {
    let time = if limit.counts_calls() { "until_ms" } else { "at_ms" };
    json!({ (time): call.at.as_millis(), "hits": call.hits, "caller": call.caller })
}

/// For endpoints that show or change something of all domains.
async fn needs_all_domains(
    State(admin): State<Admin>,
    request: Request<Body>,
    next: Next,
) -> Response {
    match admin.decisions.service.check_domain(request.extensions().get(), EVERY_DOMAIN) {
        Ok(()) => next.run(request).await,
        Err(problem) => forbidden(problem),
    }
}

/// For endpoints that take no parameters.
async fn refuse_parameters(request: Request<Body>, next: Next) -> Response {
    match refused_parameter(&request) {
        Some(problem) => refuse(StatusCode::BAD_REQUEST, &problem),
        None => next.run(request).await,
    }
}

/// Lets only clients pass that show the token, if there is one. Web pages are recognized by their headers; without a token
/// or certificates, `Host` must be an IP address or localhost too.
async fn refuse_strangers(
    State((admin, pages)): State<(Admin, WebPages)>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let headers = request.headers();
    let token_problem = admin.token.as_ref().and_then(|token| match bearer(headers) {
        None => Some("a bearer token is required"),
        Some(shown) if !token.is(shown) => Some("the bearer token is not the right one"),
        Some(_) => None,
    });
    if let Some(problem) = token_problem {
        let mut response = refuse(StatusCode::UNAUTHORIZED, problem);
        let bearer = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        return response;
    }
    let is_from_web_page = match pages {
        WebPages::Refused => browser::is_from_web_page(headers),
        WebPages::StatusPage => browser::is_from_other_origin(headers),
    };
    if is_from_web_page {
        return refuse(StatusCode::FORBIDDEN, "requests from web pages are not allowed");
    }
    let is_identified = admin.token.is_some() || admin.identifies_clients;
    if !is_identified && !browser::host_is_ip_or_localhost(headers) {
        return refuse(StatusCode::FORBIDDEN, "host: must be an IP address or localhost");
    }
    next.run(request).await
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let shown = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = shown.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}
