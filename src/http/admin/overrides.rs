//! `/overrides` on the admin address: lists, shows, sets and ends overrides.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, State},
    http::{Request, StatusCode, request::Parts},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{
    access::{Actor, Admin},
    audit::{Change, Unchanged},
    refused::{forbidden, refuse},
};
use crate::{
    authorization::{Right, clients::EVERY_DOMAIN},
    engine::{descriptor_syntax, directive::Directive, time::Timestamp},
    http::parameters,
    overrides::{NewOverride, Override, OverrideError, check_because},
    rls::refusal::Refusal,
    text::{members::set_member, printable::printable},
};

/// Most overrides in one answer.
const LISTED_MAX: usize = 100;

pub(super) async fn list(
    State(admin): State<Admin>,
    parts: Parts,
) -> Result<Json<Value>, Response> {
    let asked = parameters::read(parts.uri.query(), ["domain", "text", "limit", "after"]);
    let [domain, text, limit, after] = asked.map_err(|problem| bad(&problem))?;
    let limit = parameters::limit(&limit, LISTED_MAX, LISTED_MAX);
    let limit = limit.map_err(|problem| bad(&problem))?;
    let (domain, text, after) = (domain.first(), text.first(), after.first());
    let of_domain = domain.map_or(EVERY_DOMAIN, |domain| domain);
    admin.check_asked(&parts, of_domain, Right::Read).map_err(forbidden)?;
    let (all, now, known) = admin.decisions.service.limiter.overrides().list();
    let text = text.map_or_else(String::new, |text| text.to_lowercase());
    let is_asked = |one: &&Arc<Override>| {
        let texts = [&*one.directive.id, &one.descriptor(), &one.because];
        domain.is_none_or(|domain| **domain == *one.directive.domain)
            && texts.iter().any(|own| own.to_lowercase().contains(&text))
    };
    let cursor =
        |one: &Override| format!("{:016}-{}", one.directive.set_at.as_millis(), one.directive.id);
    // The newest come first, and the cursors descend.
    let found = all.iter().filter(is_asked);
    let found = found.skip_while(|one| after.is_some_and(|after| *cursor(one) >= **after));
    let mut shown: Vec<&Arc<Override>> = found.take(limit.saturating_add(1)).collect();
    let more = shown.len() > limit;
    shown.truncate(limit);
    let overrides: Vec<Value> = shown.iter().map(|one| one.json(now)).collect();
    let mut answer = json!({ "overrides": overrides, "known": known });
    if let (true, Some(last)) = (more, shown.last()) {
        set_member(&mut answer, "more", cursor(last));
    }
    Ok(Json(answer))
}

pub(super) async fn show(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    parts: Parts,
) -> Result<Json<Value>, Response> {
    let one = admin.decisions.service.limiter.overrides().find(&id).await;
    let one = one.map_err(|error| failed(&error))?;
    admin.check_asked(&parts, &one.directive.domain, Right::Read).map_err(forbidden)?;
    let (_, now, _) = admin.decisions.service.limiter.overrides().list();
    Ok(Json(one.json(now)))
}

pub(super) async fn set(
    State(admin): State<Admin>,
    Extension(actor): Extension<Actor>,
    request: Request<Body>,
) -> Result<Response, Response> {
    let read = |refusal: Refusal| refuse(refusal.codes().1, &refusal.to_string());
    let (body, _slot) = admin.decisions.body(request).await.map_err(read)?;
    let new = NewOverride::read(&body).map_err(|problem| bad(&problem))?;
    let asked = details(&new.directive("", Timestamp::default()), Some(&new.because));
    let mut change = Change { action: "set override", details: asked };
    let answer = match set_one(&admin, &actor, &new).await {
        Ok((None, answer)) => return Ok((Extension(Unchanged), Json(answer)).into_response()),
        Ok((Some(one), answer)) => {
            change.details = details(&one.directive, Some(&one.because));
            Json(answer).into_response()
        }
        Err(refusal) => refusal,
    };
    Ok(change.of(answer))
}

/// Sets an override, unless only its effect is wanted. Returns the answer too.
async fn set_one(
    admin: &Admin,
    actor: &Actor,
    new: &NewOverride,
) -> Result<(Option<Arc<Override>>, Value), Response> {
    admin.check(actor, &new.domain, Right::Change).map_err(forbidden)?;
    let limiter = &admin.decisions.service.limiter;
    let hint = new.check(&limiter.rules().rules).map_err(|problem| bad(&problem))?;
    let mut effect = limiter.effect_of(new);
    if let Some(hint) = hint {
        set_member(&mut effect, "hint", hint);
    }
    let overrides = limiter.overrides();
    let mut set = None;
    if !new.dry_run {
        let by = printable(actor.name.as_bytes());
        set = Some(overrides.set(new, by).await.map_err(|error| failed(&error))?);
    }
    let trial = || new.directive("", Timestamp::from_millis(u64::MAX));
    let directive = set.as_ref().map_or_else(trial, |one| Arc::clone(&one.directive));
    let (_, now, _) = overrides.list();
    let shown = [set.clone(), overrides.superseded_by(&directive)];
    let [one, superseded] = shown.map(|one| one.map(|one| one.json(now)));
    Ok((set, json!({ "override": one, "effect": effect, "supersedes": superseded })))
}

pub(super) async fn end(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    parts: Parts,
) -> Result<Response, Response> {
    let because = parameters::read(parts.uri.query(), ["because"]);
    let [because] = because.map_err(|problem| bad(&problem))?;
    let because = because.first().map(|because| &**because);
    because.map_or(Ok(()), check_because).map_err(|problem| bad(&problem))?;
    let overrides = admin.decisions.service.limiter.overrides();
    let one = overrides.find(&id).await.map_err(|error| failed(&error))?;
    let change = Change { action: "undo override", details: details(&one.directive, because) };
    let answer = match admin.check_asked(&parts, &one.directive.domain, Right::Change) {
        Ok(()) => match overrides.end(&one).await {
            Ok(()) => {
                let (_, now, _) = overrides.list();
                let again = overrides.superseded_by(&one.directive).map(|one| one.json(now));
                Json(json!({ "override": one.json(now), "in_force_again": again })).into_response()
            }
            Err(error) => failed(&error),
        },
        Err(problem) => forbidden(problem),
    };
    Ok(change.of(answer))
}

/// What the audit says of an override; without an id, of one that is not set.
fn details(directive: &Directive, because: Option<&str>) -> Value {
    let Directive { id, domain, entries, action, until, .. } = directive;
    let value = action.value().map(|value| format!(" {value}")).unwrap_or_default();
    let mut details = json!({
        "domain": **domain,
        "descriptor": descriptor_syntax::write(entries),
        "sets": format!("{}{value}", action.name()),
        "because": because,
    });
    if !id.is_empty() {
        set_member(&mut details, "override", &**id);
        set_member(&mut details, "until_ms", until.as_millis());
    }
    details
}

fn bad(problem: &str) -> Response {
    refuse(StatusCode::BAD_REQUEST, problem)
}

fn failed(error: &OverrideError) -> Response {
    let status = match error {
        OverrideError::Full => StatusCode::CONFLICT,
        OverrideError::Unknown | OverrideError::Ended => StatusCode::NOT_FOUND,
        OverrideError::Unchanged(_) | OverrideError::Unsure(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    refuse(status, &error.to_string())
}
