//! `/overrides` on the admin address: lists, shows, sets and ends overrides.

use std::{mem, sync::Arc};

use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, RawQuery},
    http::Request,
    response::{IntoResponse as _, Response},
};
use serde_json::{Map, Value, json};

use super::{
    access::Actor,
    audit::{Details, Unchanged},
    refused::Refused,
};
use crate::{
    audit::RefusalKind,
    authorization::{Right, clients::EVERY_DOMAIN},
    engine::{descriptor_syntax::is_digest, directive::Directive, time::Timestamp},
    http::parameters,
    members::{present, set_member},
    overrides::{NewOverride, Override, OverrideError, check_because},
    text::printable::printable,
};

const LISTED_MAX: usize = 100;

pub(super) async fn list(
    Extension(actor): Extension<Actor>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refused> {
    let names = ["domain", "text", "limit", "after"];
    let [domain, text, limit, after] = parameters::read(query.as_deref(), names)?;
    let limit = parameters::limit(&limit, LISTED_MAX, LISTED_MAX)?;
    let (domain, text, after) = (domain.first(), text.first(), after.first());
    let checked = actor.check(domain.map_or(EVERY_DOMAIN, |domain| domain), Right::Read);
    checked.map_err(|refused| match domain {
        Some(_) => refused,
        None => refused.and("; give a `domain`"),
    })?;
    if after.is_some_and(|after| !is_cursor(after)) {
        return Err("after: must be the `more` of an answer".to_owned().into());
    }
    let (all, now, known) = actor.limiter().overrides().list();
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
    let in_list = |one: &&Arc<Override>| {
        let is_alike = |other: &&Arc<Override>| other.directive.has_target_of(&one.directive);
        let newest = all.iter().find(is_alike).filter(|newest| !Arc::ptr_eq(newest, one));
        let mut shown = one.json(now);
        if let Some(newest) = newest {
            set_member(&mut shown, "hidden_by", &*newest.directive.id);
        }
        shown
    };
    let overrides: Vec<Value> = shown.iter().map(in_list).collect();
    let problem = actor.limiter().overrides().list_problem();
    let more = shown.last().filter(|_| more).map(|last| cursor(last));
    let answer =
        json!({ "overrides": overrides, "known": known, "problem": problem, "more": more });
    Ok(Json(present(answer)))
}

/// Whether a text has the form of the cursors of [`list`].
fn is_cursor(text: &str) -> bool {
    text.split_once('-').is_some_and(|(ms, id)| {
        ms.len() == 16 && ms.bytes().all(|byte| byte.is_ascii_digit()) && !id.is_empty()
    })
}

pub(super) async fn show(
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let overrides = actor.limiter().overrides();
    let one = overrides.find(&id).await?;
    let checked = actor.check(&one.directive.domain, Right::Read);
    checked.map_err(|_| OverrideError::Unknown)?;
    Ok(Json(one.json(overrides.now())))
}

pub(super) async fn set(
    Extension(actor): Extension<Actor>,
    request: Request<Body>,
) -> Result<Response, Refused> {
    let (body, _held) = actor.admin.decisions.body(request).await?;
    let (mut details, set) = match without_digest(&actor, &body).await {
        Ok(named) => {
            let body = named.as_deref().unwrap_or(&body);
            (readable(body), set_one(&actor, body).await)
        }
        Err(refused) => (readable(&body), Err(refused)),
    };
    if let Ok((None, answer)) = &set {
        return Ok((Extension(Unchanged), Json(answer)).into_response());
    }
    let answer = set.map(|(one, answer)| {
        if let Some(Directive { id, until, .. }) = one.as_ref().map(|one| &*one.directive) {
            set_member(&mut details, "override", &**id);
            set_member(&mut details, "until_ms", until.as_millis());
        }
        Json(answer)
    });
    Ok((Extension(Details(details)), answer).into_response())
}

/// The same with the descriptor in place of its digest; `None` if it has none.
async fn without_digest(actor: &Actor, body: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
    let mut fields: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name| fields.get(name).and_then(Value::as_str);
    let (Some(domain), Some(digest)) =
        (text("domain"), text("descriptor").filter(|text| is_digest(text)))
    else {
        return Ok(None);
    };
    let descriptor = actor.descriptors_of(domain, &[digest]).await?.concat();
    set_member(&mut fields, "descriptor", descriptor);
    Ok(Some(fields.to_string().into_bytes()))
}

/// Sets an override, unless only its effect is wanted. Returns the answer too.
async fn set_one(actor: &Actor, body: &[u8]) -> Result<(Option<Arc<Override>>, Value), Refused> {
    let new = NewOverride::read(body)?;
    actor.check(&new.domain, Right::Change)?;
    let limiter = actor.limiter();
    let hint = new.check(&limiter.rules().rules)?;
    let mut effect = limiter.effect_of(&new);
    if let Some(hint) = hint {
        set_member(&mut effect, "hint", hint);
    }
    let overrides = limiter.overrides();
    let mut set = None;
    if !new.dry_run {
        set = Some(overrides.set(&new, printable(actor.name().as_bytes())).await?);
    }
    let newest = Timestamp::from_millis(u64::MAX);
    let trial = || new.directive("", newest, newest);
    let directive = set.as_ref().map_or_else(trial, |one| Arc::clone(&one.directive));
    let now = overrides.now();
    let shown = [set.clone(), overrides.superseded_by(&directive)];
    let [one, superseded] = shown.map(|one| one.map(|one| one.json(now)));
    Ok((set, json!({ "override": one, "effect": effect, "supersedes": superseded })))
}

/// What the audit shows of a new override, also of one that is refused.
fn readable(body: &[u8]) -> Value {
    let fields: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let mut details = json!({});
    for (name, value) in fields {
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(true) if name == "dry_run" => {
                set_member(&mut details, "dry_run", true);
                continue;
            }
            _ => continue,
        };
        match &*name {
            "domain" | "descriptor" | "for" | "because" => set_member(&mut details, &name, text),
            "action" => set_member(&mut details, "sets", text),
            "limit" | "times" => set_member(&mut details, "sets", format!("{name} {text}")),
            _ => {}
        }
    }
    details
}

pub(super) async fn end(
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    // The audit shows it.
    let [because] = parameters::read(query.as_deref(), ["because"])?;
    check_because(because.first())?;
    let overrides = actor.limiter().overrides();
    let one = overrides.find(&id).await?;
    let Directive { domain, action, .. } = &*one.directive;
    let (descriptor, sets) = (one.descriptor(), action.to_string());
    // Its reason too, so that a search for it finds the end.
    let details = json!({
        "domain": **domain, "descriptor": descriptor, "sets": sets, "was_because": one.because,
    });
    let ended = match actor.check(domain, Right::Change) {
        Ok(()) => overrides.end(&one).await.map_err(Refused::from),
        Err(refused) => Err(refused),
    };
    let answer = ended.map(|()| {
        let now = overrides.now();
        let again = overrides.superseded_by(&one.directive).map(|one| one.json(now));
        Json(json!({ "override": one.json(now), "in_force_again": again }))
    });
    let mut answer = (Extension(Details(details)), answer).into_response();
    if actor.check(domain, Right::Read).is_err() {
        // The client has given only an id, and learns no more. The audit shows why.
        answer.extensions_mut().insert(RefusalKind::Forbidden);
        let noted = mem::take(answer.extensions_mut());
        answer = Refused::from(OverrideError::Unknown).into_response();
        answer.extensions_mut().extend(noted);
    }
    Ok(answer)
}
