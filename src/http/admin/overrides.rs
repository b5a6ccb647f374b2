//! `/overrides` on the admin address: lists, shows, sets and ends overrides.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    http::{Request, StatusCode, request::Parts},
    response::Response,
    routing::get,
};
use serde_json::{Value, json};

use super::refused::{forbidden, refuse};
use crate::{
    authorization::clients::EVERY_DOMAIN,
    http::{json::Decisions, parameters},
    net::tls::server::Identity,
    overrides::{NewOverride, Override, OverrideError},
    rls::refusal::Refusal,
    text::printable::printable,
};

/// Most overrides in one answer.
const LISTED_MAX: usize = 100;

/// What the endpoints use.
#[derive(Clone)]
struct OverridesState {
    decisions: Decisions,
    /// Who has set an override if the client has shown no certificate.
    unnamed: &'static str,
}

/// The endpoints. `needs_token` is whether clients have shown a token.
pub(super) fn router<S>(decisions: Decisions, needs_token: bool) -> Router<S> {
    let unnamed = if needs_token { "admin token" } else { "admin address" };
    Router::new()
        .route("/overrides", get(list).post(set))
        .route("/overrides/{id}", get(show).delete(end))
        .with_state(OverridesState { decisions, unnamed })
}

/// Which overrides are listed.
struct ListQuery {
    domain: Option<String>,
    text: String,
    limit: usize,
    after: Option<String>,
}

async fn list(State(admin): State<OverridesState>, parts: Parts) -> Result<Json<Value>, Response> {
    let asked = asked(parts.uri.query()).map_err(|problem| bad(&problem))?;
    check_domain(&admin, parts.extensions.get(), asked.domain.as_deref().unwrap_or(EVERY_DOMAIN))?;
    let (all, now, known) = admin.decisions.service.limiter.overrides().list();
    let cursor =
        |one: &Override| format!("{:016}-{}", one.directive.set_at.as_millis(), one.directive.id);
    let mut found = all.iter().filter(|one| asked.matches(one));
    // The newest come first, and the cursors descend.
    let mut shown: Vec<&Arc<Override>> = found
        .by_ref()
        .skip_while(|one| asked.after.as_ref().is_some_and(|after| cursor(one) >= *after))
        .take(asked.limit.saturating_add(1))
        .collect();
    let more = shown.len() > asked.limit;
    shown.truncate(asked.limit);
    let overrides: Vec<Value> = shown.iter().map(|one| one.json(now)).collect();
    let mut answer = json!({ "overrides": overrides, "known": known });
    if let (true, Some(last), Some(answer)) = (more, shown.last(), answer.as_object_mut()) {
        answer.insert("more".to_owned(), cursor(last).into());
    }
    Ok(Json(answer))
}

/// Reads the query of a list.
fn asked(query: Option<&str>) -> Result<ListQuery, String> {
    let [domain, text, limit, after] =
        parameters::read(query, ["domain", "text", "limit", "after"])?;
    let first = |given: &[std::borrow::Cow<'_, str>]| given.first().map(|text| text.to_string());
    let limit = match limit.first() {
        None => LISTED_MAX,
        Some(text) => (text.parse().ok())
            .filter(|limit| (1..=LISTED_MAX).contains(limit))
            .ok_or_else(|| format!("limit: must be a whole number from 1 to {LISTED_MAX}"))?,
    };
    let text = first(&text).unwrap_or_default().to_lowercase();
    Ok(ListQuery { domain: first(&domain), text, limit, after: first(&after) })
}

impl ListQuery {
    fn matches(&self, one: &Override) -> bool {
        let texts = [&*one.directive.id, &one.descriptor(), &one.because];
        self.domain.as_ref().is_none_or(|domain| **domain == *one.directive.domain)
            && texts.iter().any(|text| text.to_lowercase().contains(&self.text))
    }
}

async fn show(
    State(admin): State<OverridesState>,
    Path(id): Path<String>,
    parts: Parts,
) -> Result<Json<Value>, Response> {
    let one = find(&admin, parts.extensions.get(), &id)?;
    let (_, now, _) = admin.decisions.service.limiter.overrides().list();
    Ok(Json(one.json(now)))
}

async fn set(
    State(admin): State<OverridesState>,
    request: Request<Body>,
) -> Result<Json<Value>, Response> {
    let client = request.extensions().get::<Identity>().cloned();
    let read = |refusal: Refusal| refuse(refusal.codes().1, &refusal.to_string());
    let (body, _slot) = admin.decisions.body(request).await.map_err(read)?;
    let new = NewOverride::read(&body).map_err(|problem| bad(&problem))?;
    check_domain(&admin, client.as_ref(), &new.domain)?;
    let limiter = &admin.decisions.service.limiter;
    new.check(&limiter.rules().rules).map_err(|problem| bad(&problem))?;
    let effect = limiter.effect_of(&new);
    if new.dry_run {
        return Ok(Json(json!({ "override": null, "effect": effect })));
    }
    let set = limiter.overrides().set(&new, who(&admin, client.as_ref())).await;
    let one = set.map_err(|error| failed(&error))?;
    let now = one.directive.set_at;
    Ok(Json(json!({ "override": one.json(now), "effect": effect })))
}

async fn end(
    State(admin): State<OverridesState>,
    Path(id): Path<String>,
    parts: Parts,
) -> Result<Json<Value>, Response> {
    let because = parameters::read(parts.uri.query(), ["because"]);
    let [_because] = because.map_err(|problem| bad(&problem))?;
    find(&admin, parts.extensions.get(), &id)?;
    let overrides = admin.decisions.service.limiter.overrides();
    let one = overrides.end(&id).await.map_err(|error| failed(&error))?;
    let (_, now, _) = overrides.list();
    Ok(Json(json!({ "override": one.json(now) })))
}

/// The override in force with this id, if the client may use its domain.
fn find(
    admin: &OverridesState,
    client: Option<&Identity>,
    id: &str,
) -> Result<Arc<Override>, Response> {
    let (all, ..) = admin.decisions.service.limiter.overrides().list();
    let found = all.into_iter().find(|one| *one.directive.id == *id);
    let found = found.ok_or_else(|| failed(&OverrideError::Unknown))?;
    check_domain(admin, client, &found.directive.domain)?;
    Ok(found)
}

/// Who sets an override: the first name in its certificate, or how it has been let in.
fn who(admin: &OverridesState, client: Option<&Identity>) -> String {
    let name = client.and_then(|identity| identity.0.first());
    name.map_or_else(|| admin.unnamed.to_owned(), |name| printable(name.as_bytes()))
}

fn check_domain(
    admin: &OverridesState,
    client: Option<&Identity>,
    domain: &str,
) -> Result<(), Response> {
    admin.decisions.service.check_domain(client, domain).map_err(forbidden)
}

fn bad(problem: &str) -> Response {
    refuse(StatusCode::BAD_REQUEST, problem)
}

fn failed(error: &OverrideError) -> Response {
    let status = match error {
        OverrideError::Full => StatusCode::CONFLICT,
        OverrideError::Unknown => StatusCode::NOT_FOUND,
        OverrideError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    refuse(status, &error.to_string())
}
