//! The admin address: `GET /counters` shows how the counters of one descriptor stand,
//! `POST /counters/reset` begins them anew, and `POST /explain` tells what a request would meet and charge.

use axum::{
    Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, RawQuery, State},
    http::{Request, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};

use super::{Http, pages};
use crate::{
    engine::{
        descriptor_syntax,
        ledger::{Charge, CounterState, Remembered},
        request::{self, Descriptor, Hits},
    },
    explain::Explanation,
    rls,
    store::{Clear, StoreError, system_clock},
};

/// The endpoints that are not for everybody.
pub fn router(http: Http) -> Router {
    Router::new()
        .route("/counters", get(|state, query| answer(state, query, Clear::No)))
        .route("/counters/reset", post(|state, query| answer(state, query, Clear::Yes)))
        .route("/explain", post(explain))
        .layer(DefaultBodyLimit::max(http.message_bytes_max))
        .layer(middleware::from_fn(refuse_browsers))
        .with_state(http)
}

/// The body is that of `/json`.
async fn explain(
    State(http): State<Http>,
    request: Request<Body>,
) -> Result<Json<Explanation>, Response> {
    let (body, _place) = http.body(request).await?;
    let decoded = rls::json::request(&body, http.bounds)
        .map_err(|refusal| refuse(StatusCode::BAD_REQUEST, &refusal.to_string()))?;
    let explanation = http.limiter.explain(&decoded.request, system_clock()).await;
    explanation.map(Json).map_err(|error| unanswered(&error))
}

async fn answer(
    State(http): State<Http>,
    RawQuery(query): RawQuery,
    clear: Clear,
) -> Result<Json<Value>, Response> {
    let request = request(&query.unwrap_or_default())
        .map_err(|problem| refuse(StatusCode::BAD_REQUEST, &problem))?;
    let stand = http.limiter.look(&request, clear).await.map_err(|error| unanswered(&error))?;
    if stand.is_empty() {
        return Err(refuse(StatusCode::NOT_FOUND, "no limit counts this descriptor"));
    }
    let counters: Vec<Value> = stand.iter().map(counter).collect();
    Ok(Json(json!({ "counters": counters })))
}

/// `domain=D&descriptor=k=v,k=v`, each part percent-encoded.
fn request(query: &str) -> Result<request::Request, String> {
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

fn counter((charge, standing): &(Charge, Option<CounterState>)) -> Value {
    let limit = &charge.counter.limit;
    let Some(standing) = standing else {
        return json!({
            "algorithm": limit.algorithm.name(),
            "limit": limit.to_string(),
            "problem": "it holds something other than a count",
        });
    };
    let remembered = |it: &Remembered| json!({ "at_ms": it.at.as_millis(), "hits": it.hits, "caller": it.caller });
    json!({
        "algorithm": limit.algorithm.name(),
        "limit": limit.to_string(),
        "used": standing.used,
        "left": standing.remaining,
        "reset_ms": u64::try_from(standing.reset.as_millis()).unwrap_or(u64::MAX),
        "remembered": standing.remembered.iter().map(remembered).collect::<Vec<_>>(),
    })
}

/// What the store said may name hosts; that is for the log.
fn unanswered(error: &StoreError) -> Response {
    tracing::warn!(%error, "the counters could not be looked at");
    refuse(StatusCode::SERVICE_UNAVAILABLE, "the store gives no answer")
}

/// A page in an operator's browser must not reach what is open to the operator alone.
async fn refuse_browsers(request: Request<Body>, next: Next) -> Response {
    let headers = request.headers();
    if pages::made_by_page(headers) {
        return refuse(StatusCode::FORBIDDEN, "a web page may not ask this");
    }
    if !pages::host_is_no_name(headers) {
        return refuse(StatusCode::FORBIDDEN, "host: must be an IP address or localhost");
    }
    next.run(request).await
}

fn refuse(code: StatusCode, message: &str) -> Response {
    (code, Json(json!({ "error": message }))).into_response()
}
