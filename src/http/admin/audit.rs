//! The audit of the admin address: what endpoints add to it, and `GET /audit`, which shows it.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::{StatusCode, Uri},
    response::Response,
};
use serde_json::{Value, json};

use super::{
    access::{Actor, Admin},
    refused::{RefusalReason, Refused},
};
use crate::{
    audit::{Attempt, AuditQuery, RefusalKind, bounded},
    candidate::OrderKind,
    http::parameters,
    members::set_member,
    telemetry::{EventKind, happened},
    text::printable::printable_start,
};

/// The number of entries in an answer, and the most.
const SHOWN: usize = 100;
const SHOWN_MAX: usize = 1000;

/// Most bytes of an id as asked for, about.
const ID_BYTES_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    /// Such as `reset counters`.
    pub(super) action: &'static str,
    pub(super) shown: &'static [&'static str],
    /// The event of a change, unless replicas find it by themselves.
    pub(super) event: Option<EventKind>,
}

/// What an entry shows beside the parameters of the request, in the extensions of its answer: an object.
#[derive(Debug, Clone)]
pub(super) struct Details(pub(super) Value);

/// Marks the answer to a request that was to change nothing, such as a trial.
#[derive(Debug, Clone)]
pub(super) struct Unchanged;

/// Notes the request that got this answer in the audit.
pub(super) async fn note_change(
    Change { action, shown, event }: Change,
    actor: &Actor,
    uri: &Uri,
    answer: Response,
) -> Response {
    let (said, status) = (answer.extensions(), answer.status());
    if said.get::<Unchanged>().is_some() {
        return answer;
    }
    let kind = said.get().copied().unwrap_or(match status {
        _ if status.is_server_error() => RefusalKind::Failed,
        StatusCode::UNAUTHORIZED => RefusalKind::Unauthorized,
        StatusCode::FORBIDDEN => RefusalKind::Forbidden,
        _ => RefusalKind::Invalid,
    });
    let reason = said.get::<RefusalReason>().map(|reason| reason.0.clone());
    let reason = reason.unwrap_or_else(|| status.to_string());
    let refused = (!status.is_success()).then_some((kind, reason));
    let mut details = said.get::<Details>().map_or_else(|| json!({}), |details| details.0.clone());
    // A stranger may have written anything, such as a token in the wrong place.
    if !kind.is_of_stranger() {
        if let Some(id) = uri.path().strip_prefix("/overrides/") {
            set_member(&mut details, "override", printable_start(id.as_bytes(), ID_BYTES_MAX));
        }
        let query = uri.query().unwrap_or_default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if shown.contains(&&*name) && details.get(&*name).is_none() {
                let number = value.parse::<u64>().ok().filter(|_| name == "used");
                set_member(&mut details, &name, number.map_or((*value).into(), Value::from));
            }
        }
    }
    if let (Some(kind), None) = (event, &refused) {
        let mut text = String::new();
        for (name, value) in shown.iter().filter_map(|name| Some((name, details.get(*name)?))) {
            text += &value
                .as_str()
                .map_or(format!("{name} {value}, "), |text| format!("{name} {text}, "));
        }
        happened(kind, bounded(&format!("{text}by {}", actor.name())));
    }
    let order = details.get("order").and_then(Value::as_str).and_then(OrderKind::named);
    let order = order.map(|order| format!("{} candidate", order.name()));
    let action = order.as_deref().unwrap_or(action);
    actor.admin.audit.note(Attempt { who: actor.name(), action, details, refused }).await;
    answer
}

pub(super) async fn show(
    State(admin): State<Admin>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refused> {
    let (entries, more) = admin.audit.read(&audit_query(query.as_deref())?).await?;
    Ok(Json(json!({ "entries": entries, "more": more.map(|id| id.to_string()) })))
}

/// Reads the query of `/audit`, if given: `limit=N`, `after=ID`, `text=TEXT` and `who=TEXT`.
fn audit_query(query: Option<&str>) -> Result<AuditQuery, String> {
    let [limit, after, text, who] = parameters::read(query, ["limit", "after", "text", "who"])?;
    let limit = parameters::limit(&limit, SHOWN, SHOWN_MAX)?;
    let after = after.first().map(|id| id.parse()).transpose();
    let after = after.map_err(|problem| format!("after: {problem}"))?;
    let [text, who] = [text, who].map(|mut texts| texts.pop());
    Ok(AuditQuery { limit, after, text, who })
}
