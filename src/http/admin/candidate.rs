//! `/candidate` on the admin address: what the candidate would change, and orders about it.

use axum::{
    Extension, Json,
    extract::{RawQuery, State},
};
use serde_json::Value;

use super::{
    access::{Actor, Admin},
    refused::Refused,
};
use crate::{
    candidate::{Candidate, OrderKind},
    http::parameters,
    limiter::Limiter,
    overrides::check_because,
    text::printable::printable,
};

pub(super) async fn show(State(admin): State<Admin>) -> Result<Json<Value>, Refused> {
    Ok(Json(candidate(&admin.decisions.service.limiter)?.json()))
}

/// Takes `order=promote|abort|judge`, the `version` of the candidate that it is about, and the reason.
pub(super) async fn order(
    Extension(actor): Extension<Actor>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refused> {
    let names = ["order", "version", "because"];
    let [order, version, mut because] = parameters::read(query.as_deref(), names)?;
    let order = order.first().and_then(|order| OrderKind::named(order));
    let order = order.ok_or_else(|| format!("order: must be {}", OrderKind::names().join(", ")))?;
    check_because(because.first())?;
    let (limiter, version) = (actor.limiter(), version.first());
    let candidate = candidate(limiter)?;
    let present = candidate.version();
    match (version, &present) {
        (_, None) => {
            Err(Refused::conflict("there is no candidate, or it has a problem".to_owned()))?
        }
        (None, Some(present)) => Err(format!("version: missing; the candidate is {present}"))?,
        (Some(version), Some(present)) if **version != **present => {
            Err(Refused::conflict(format!("version: the candidate is {present}")))?;
        }
        _ => {}
    }
    let (by, now) = (printable(actor.name.as_bytes()), limiter.overrides().now());
    if candidate.give(order, by, because.pop(), now).await? {
        limiter.rules_changed();
    }
    Ok(Json(candidate.json()))
}

fn candidate(limiter: &Limiter) -> Result<&Candidate, Refused> {
    let off =
        || Refused::not_found("no rules are judged beside those in force: --candidate is not set");
    limiter.candidate().map(|candidate| &**candidate).ok_or_else(off)
}
