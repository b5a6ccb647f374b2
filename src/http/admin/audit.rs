//! The audit of the admin address: what endpoints add to it, and `GET /audit`, which shows it.

use axum::{
    Extension, Json,
    body::Body,
    extract::{RawQuery, State},
    http::{Request, StatusCode},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{
    access::{Actor, Admin, Stranger},
    refused::{RefusalReason, refuse},
};
use crate::{
    audit::{Attempt, AuditQuery},
    http::parameters,
};

/// The number of entries in an answer, and the most.
const SHOWN: usize = 100;
const SHOWN_MAX: usize = 1000;

/// What a request changed, or was to change, in the extensions of its answer.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// Such as `reset counters`.
    pub(super) action: &'static str,
    /// An object: the domain, the descriptor, and what else the operator has sent.
    pub(super) details: Value,
}

/// Marks the answer to a request that was to change nothing, such as a trial.
#[derive(Debug, Clone)]
pub(super) struct Unchanged;

impl Change {
    /// The answer to the request that changed this.
    pub(super) fn of(self, mut answer: Response) -> Response {
        answer.extensions_mut().insert(self);
        answer
    }
}

/// Notes each request in the audit: the [`Change`] of its answer, else its method and path.
pub(super) async fn note_change(
    State(admin): State<Admin>,
    Extension(actor): Extension<Actor>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let answer = next.run(request).await;
    let said = answer.extensions();
    if said.get::<Unchanged>().is_some() {
        return answer;
    }
    let is_stranger = said.get::<Stranger>().is_some();
    let (action, details) = match said.get::<Change>() {
        Some(change) => (change.action, change.details.clone()),
        // A token may have been pasted into the query, or in place of an id.
        None => ("attempt", json!({ "request": format!("{method} {}", shown(uri.path())) })),
    };
    let status = answer.status();
    let reason = said.get::<RefusalReason>().map(|reason| reason.0.clone());
    let reason = reason.unwrap_or_else(|| status.to_string());
    let outcome = match status {
        _ if status.is_success() => "done".to_owned(),
        _ if status.is_server_error() => format!("failed: {reason}"),
        _ => format!("refused: {reason}"),
    };
    let (who, is_done) = (&*actor.name, status.is_success());
    let attempt = Attempt { who, is_stranger, action, details, is_done, outcome };
    admin.audit.note(attempt).await;
    answer
}

/// The path of a request, with an id only if it has the form of one.
fn shown(path: &str) -> &str {
    let id = path.strip_prefix("/overrides/").unwrap_or_default();
    let is_id = id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if id.is_empty() || is_id { path } else { "/overrides/{id}" }
}

/// Shows entries, the newest first.
pub(super) async fn show(
    State(admin): State<Admin>,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let query = audit_query(query.as_deref());
    let query = query.map_err(|problem| refuse(StatusCode::BAD_REQUEST, &problem))?;
    let read = admin.audit.read(&query).await;
    let (entries, more) =
        read.map_err(|error| refuse(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()))?;
    let more = more.map(|id| id.to_string());
    Ok(Json(json!({ "entries": entries, "more": more })).into_response())
}

/// Reads the query of `/audit`, if given: `limit=N`, `after=ID`, `text=TEXT` and `who=TEXT`.
fn audit_query(query: Option<&str>) -> Result<AuditQuery, String> {
    let [limit, after, text, who] = parameters::read(query, ["limit", "after", "text", "who"])?;
    let limit = parameters::limit(&limit, SHOWN, SHOWN_MAX)?;
    let after = after.first().map(|id| id.parse()).transpose();
    let after = after.map_err(|problem| format!("after: {problem}"))?;
    let [text, who] = [text, who].map(|texts| texts.first().map(|text| text.clone().into_owned()));
    Ok(AuditQuery { limit, after, text, who })
}
