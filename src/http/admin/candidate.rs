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
    candidate::{Candidate, Order, OrderKind},
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
    let limiter = actor.limiter();
    let candidate = candidate(limiter)?;
    let version = version.first().ok_or_else(|| {
        let present = candidate.version().map(|present| format!("; the candidate is {present}"));
        format!("version: missing{}", present.unwrap_or_default())
    })?;
    if let Some(problem) = candidate.refusal(order, version) {
        return Err(Refused::conflict(problem));
    }
    let (by, now) = (printable(actor.name().as_bytes()), limiter.overrides().now());
    let (candidate_version, at_ms) = (version.to_string(), now.as_millis());
    let order = Order { order, candidate: candidate_version, by, at_ms, because: because.pop() };
    let given = candidate.give(order, now).await;
    if given.map_err(|error| {
        Refused::from(error).and("; GET /candidate says whether the order was given")
    })? {
        limiter.rules_changed();
    }
    Ok(Json(candidate.json()))
}

fn candidate(limiter: &Limiter) -> Result<&Candidate, Refused> {
    let off =
        || Refused::not_found("no rules are judged beside those in force: --candidate is not set");
    limiter.candidate().map(|candidate| &**candidate).ok_or_else(off)
}
