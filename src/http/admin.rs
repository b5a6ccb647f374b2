//! The admin address: `GET /counters` shows the counters of one descriptor, `POST /counters/reset` resets
//! them, and `POST /explain` shows which rules a request would match and what it would charge.

use axum::{
    Json, Router,
    body::Body,
    extract::{RawQuery, State},
    http::{Request, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};

use super::{Http, browser};
use crate::{
    engine::{
        descriptor_syntax,
        ledger::{Charge, CounterState, Remembered},
        request::{self, Descriptor, Hits},
    },
    explain::Explanation,
    rls::{self, refusal::Refusal},
    store::{Clear, StoreError, system_clock},
};

/// The endpoints for operators only.
pub fn router(http: Http) -> Router {
    Router::new()
        .route("/counters", get(show_counters))
        .route("/counters/reset", post(reset_counters))
        .route("/explain", post(explain))
        .layer(middleware::from_fn(refuse_web_pages))
        .with_state(http)
}

/// Takes the same body as `/json`.
async fn explain(
    State(http): State<Http>,
    request: Request<Body>,
) -> Result<Json<Explanation>, Response> {
    let bad = |refusal: Refusal| refuse(refusal.codes().1, &refusal.to_string());
    let (body, _slot) = http.body(request).await.map_err(bad)?;
    let decoded = rls::json::request(&body, http.bounds).map_err(bad)?;
    let explanation = http.limiter.explain(&decoded.request, system_clock()).await;
    explanation.map(Json).map_err(|error| unanswered(&error))
}

async fn show_counters(
    State(http): State<Http>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Response> {
    counters(&http, query, Clear::No).await
}

async fn reset_counters(
    State(http): State<Http>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Response> {
    counters(&http, query, Clear::Yes).await
}

async fn counters(
    http: &Http,
    query: Option<String>,
    clear: Clear,
) -> Result<Json<Value>, Response> {
    let request = request(&query.unwrap_or_default())
        .map_err(|problem| refuse(StatusCode::BAD_REQUEST, &problem))?;
    let looked = http.limiter.look(&request, clear).await;
    let states = looked.map_err(|error| unanswered(&error))?;
    if states.is_empty() {
        return Err(refuse(StatusCode::NOT_FOUND, "no limit applies to this descriptor"));
    }
    let counters: Vec<Value> = states.iter().map(counter).collect();
    Ok(Json(json!({ "counters": counters })))
}

/// Reads the query of `/counters`: `domain=D&descriptor=k=v,k=v`, each part percent-encoded.
///
/// # Errors
/// A message that names the parameter, for one that is missing, unknown, malformed or given twice.
pub fn request(query: &str) -> Result<request::Request, String> {
    let (mut domain, mut descriptor): (Option<String>, Option<String>) = (None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let parameter = match &*name {
            "domain" => &mut domain,
            "descriptor" => &mut descriptor,
            _ => return Err("the parameters are `domain` and `descriptor`".to_owned()),
        };
        if parameter.replace(value.into_owned()).is_some() {
            return Err(format!("{name}: given twice"));
        }
    }
    let entries = descriptor_syntax::parse(&descriptor.ok_or("descriptor: missing")?)
        .map_err(|problem| format!("descriptor: {problem}"))?;
    let descriptors = vec![Descriptor { entries, hits: Hits::Look, limit: None }];
    Ok(request::Request { domain: domain.ok_or("domain: missing")?, descriptors })
}

/// A counter without a state is corrupt.
fn counter((charge, state): &(Charge, Option<CounterState>)) -> Value {
    let limit = &charge.counter.limit;
    let Some(state) = state else {
        return json!({
            "algorithm": limit.algorithm.name(),
            "limit": limit.to_string(),
            "problem": "it holds something other than a count",
        });
    };
    json!({
        "algorithm": limit.algorithm.name(),
        "limit": limit.to_string(),
        "used": state.used,
        "left": state.remaining,
        "reset_ms": u64::try_from(state.reset.as_millis()).unwrap_or(u64::MAX),
        "remembered": state.remembered.iter().map(remembered).collect::<Vec<_>>(),
    })
}

fn remembered(call: &Remembered) -> Value {
    json!({ "at_ms": call.at.as_millis(), "hits": call.hits, "caller": call.caller })
}

/// The store's error may name hosts, so it only goes to the log.
fn unanswered(error: &StoreError) -> Response {
    tracing::warn!(%error, "could not read the counters");
    refuse(StatusCode::SERVICE_UNAVAILABLE, "the store did not answer")
}

/// A web page in an operator's browser must not reach endpoints for operators.
async fn refuse_web_pages(request: Request<Body>, next: Next) -> Response {
    let headers = request.headers();
    if browser::is_from_web_page(headers) {
        return refuse(StatusCode::FORBIDDEN, "requests from web pages are not allowed");
    }
    if !browser::host_is_ip_or_localhost(headers) {
        return refuse(StatusCode::FORBIDDEN, "host: must be an IP address or localhost");
    }
    next.run(request).await
}

fn refuse(code: StatusCode, message: &str) -> Response {
    (code, Json(json!({ "error": message }))).into_response()
}
