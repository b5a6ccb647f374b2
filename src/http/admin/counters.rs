//! Counters on the admin address: `GET /counters` shows the counters of a descriptor, `POST /counters/reset` resets them,
//! `POST /counters/set` sets what one of them has used, and `GET /counters/list` shows counters that match patterns.

use axum::{
    Extension, Json,
    extract::RawQuery,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    access::Actor,
    refused::{RefusalReason, Refused},
};
use crate::{
    authorization::Right,
    engine::{
        descriptor_syntax,
        ledger::{Charge, Remembered},
        request::{Hits, Request},
        rule::{Algorithm, Lease, Limit},
    },
    explain::{CORRUPT, incomplete},
    http::parameters,
    limiter::listing::Listing,
    members::{present, set_member},
    overrides::check_because,
    store::{Clear, CounterReading},
    telemetry::{LogCause, due_line},
};

/// The number of descriptors that a listing shows, and the most.
const LISTED: usize = 100;
const LISTED_MAX: usize = 1000;

/// Reads the query of `/counters`: `domain=D&descriptor=k=v,k=v`, each part percent-encoded.
pub fn request(query: Option<&str>) -> Result<Request, String> {
    parameters::counters(query, "descriptor")
}

pub(super) async fn show(
    Extension(actor): Extension<Actor>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    read(&actor, request(query.as_deref())?, Clear::Show).await
}

pub(super) async fn reset(
    Extension(actor): Extension<Actor>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    let names = ["domain", "descriptor", "because"];
    let ([domain, _, because], descriptor) =
        parameters::read_with_descriptors(query.as_deref(), names)?;
    check_because(because.first())?;
    let request = parameters::asked(domain, "descriptor", descriptor)?;
    read(&actor, request, Clear::Yes).await
}

/// Shows the counters of a descriptor, reset with [`Clear::Yes`].
async fn read(actor: &Actor, request: Request, clear: Clear) -> Result<Response, Refused> {
    let right = if clear == Clear::Yes { Right::Change } else { Right::Read };
    actor.check(&request.domain, right)?;
    let limiter = actor.limiter();
    let readings = limiter.read_counters(&request, clear).await;
    if readings.is_empty() {
        return Err(no_limit());
    }
    limiter.prepare_digests().await;
    let incomplete = incomplete(readings.iter().map(|(_, reading)| reading));
    let (quotas, now) = (actor.quotas(), Instant::now());
    let counters = readings.iter().map(|reading| {
        let mut shown = counter(reading);
        let assigned = quotas.assigned(reading.0.counter.id(), now);
        if assigned > 0 {
            set_member(&mut shown, "assigned", assigned);
        }
        if let Some(digest) = limiter.digest(&reading.0.counter) {
            set_member(&mut shown, "digest", digest);
        }
        shown
    });
    Ok(answered(json!({ "counters": counters.collect::<Vec<_>>() }), incomplete))
}

/// An answer that may lack something.
fn answered(mut answer: Value, incomplete: Option<String>) -> Response {
    let status = status_of(incomplete.as_deref());
    let Some(incomplete) = incomplete else { return (status, Json(answer)).into_response() };
    set_member(&mut answer, "incomplete", incomplete.as_str());
    (status, Extension(RefusalReason(incomplete)), Json(answer)).into_response()
}

/// Sets what is used of one counter, and shows it with what was used before.
pub(super) async fn set(
    Extension(actor): Extension<Actor>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refused> {
    let (request, used, limit) = asked_to_set(query.as_deref())?;
    actor.check(&request.domain, Right::Change)?;
    let limiter = actor.limiter();
    let mut readings = limiter.read_counters(&request, Clear::No).await;
    if readings.is_empty() {
        return Err(no_limit());
    }
    let labels: Vec<String> = readings.iter().map(|(charge, _)| label(charge)).collect();
    readings.retain(|(charge, _)| limit.as_ref().is_none_or(|limit| is_named(charge, limit)));
    let [(charge, reading)] = &readings[..] else {
        return Err(format!("limit: must be one of: {}", labels.join(", ")).into());
    };
    let before = match reading {
        CounterReading::State(before) => before,
        CounterReading::Corrupt => {
            return Err(Refused::unavailable(format!("{CORRUPT}; reset it first")));
        }
        CounterReading::NoAnswer(cause) => return Err(Refused::unavailable(cause)),
    };
    let limit = &charge.counter.limit;
    match limit.algorithm {
        Algorithm::InFlight { .. } => {
            let problem = "used: calls in flight cannot be set; each ends with its commit";
            return Err(problem.to_owned().into());
        }
        Algorithm::SlidingLog { .. } if used > limit.capacity() => {
            return Err(format!("used: a sliding_log of {limit} holds no more hits").into());
        }
        _ => {}
    }
    let set = limiter.set_used(&request, &charge.counter, used).await;
    let mut shown = counter(&(charge.clone(), set.map_err(Refused::unavailable)?));
    set_member(&mut shown, "was", before.used);
    Ok(Json(json!({ "counters": [shown] })))
}

/// How messages name one of several limits of a descriptor.
fn label(charge: &Charge) -> String {
    let limit = &charge.counter.limit;
    match &limit.name {
        Some(name) => name.to_string(),
        None => format!("{} of {limit}", limit.algorithm.name()),
    }
}

/// Whether a limit is named so: by its name, its algorithm, or a text such as `10 per minute`.
fn is_named(charge: &Charge, name: &str) -> bool {
    let limit = &charge.counter.limit;
    label(charge) == name || limit.to_string() == name || limit.algorithm.name() == name
}

/// What is known is shown in any case. The status is an error if anything is missing, since scripts look at
/// the status alone.
pub(super) fn status_of(incomplete: Option<&str>) -> StatusCode {
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

/// Reads the query of `/counters/set`: the one of `/counters`, `used=N`, and if given `limit=NAME` and `because=TEXT`.
fn asked_to_set(query: Option<&str>) -> Result<(Request, u64, Option<String>), String> {
    let names = ["domain", "descriptor", "used", "limit", "because"];
    let ([domain, _, used, mut limit, because], descriptor) =
        parameters::read_with_descriptors(query, names)?;
    check_because(because.first())?;
    let used = used.first().ok_or("used: missing")?.parse().ok().filter(|used| *used <= Hits::MAX);
    let used =
        used.ok_or_else(|| format!("used: must be a whole number from 0 to {}", Hits::MAX))?;
    let request = parameters::asked(domain, "descriptor", descriptor)?;
    Ok((request, used, limit.pop()))
}

pub(super) async fn list(
    Extension(actor): Extension<Actor>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    let listing = listing(query.as_deref())?;
    actor.check(&listing.domain, Right::Read)?;
    let listed = actor.limiter().list(&listing).await?;
    let counters = listed.counters.into_iter().map(|(descriptor, charge, reading)| {
        let mut shown = counter(&(charge, reading));
        set_member(&mut shown, "descriptor", descriptor);
        shown
    });
    let answer = json!({
        "counters": counters.collect::<Vec<_>>(),
        "more": listed.more,
        "digests": listed.digests,
    });
    Ok(answered(answer, listed.incomplete))
}

/// Reads the query of `/counters/list`: `domain=D`, and if given `descriptor=k=PATTERN,k=PATTERN`, `whole=true`,
/// `over=true` or `over=PERCENT`, and `limit=N`.
fn listing(query: Option<&str>) -> Result<Listing, String> {
    let names = ["domain", "descriptor", "whole", "over", "limit"];
    let ([mut domain, _, whole, over, limit], descriptor) =
        parameters::read_with_descriptors(query, names)?;
    let domain = domain.pop().ok_or("domain: missing")?;
    let entries = match descriptor.first() {
        Some(text) => {
            descriptor_syntax::parse(text).map_err(|problem| format!("descriptor: {problem}"))?
        }
        None => Vec::new(),
    };
    let whole = match whole.first().map(|text| &**text) {
        None | Some("false") => false,
        Some("true") if entries.is_empty() => return Err("whole: needs a descriptor".to_owned()),
        Some("true") => true,
        Some(_) => return Err("whole: must be true or false".to_owned()),
    };
    let over = match over.first().map(|text| &**text) {
        None | Some("false") => None,
        Some("true") => Some(100),
        Some(percent) => {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            Some(percent.ok_or("over: must be true, false or a percentage from 1 to 100")?)
        }
    };
    let limit = parameters::limit(&limit, LISTED, LISTED_MAX)?;
    Ok(Listing { domain, entries, whole, over, limit })
}

fn counter((charge, reading): &(Charge, CounterReading)) -> Value {
    let limit = &charge.counter.limit;
    let (algorithm, text) = (limit.algorithm.name(), limit.to_string());
    let state = match reading {
        CounterReading::State(state) => state,
        CounterReading::Corrupt => {
            return json!({ "algorithm": algorithm, "limit": text, "problem": CORRUPT });
        }
        CounterReading::NoAnswer(cause) => {
            return json!({ "algorithm": algorithm, "limit": text, "error": cause });
        }
    };
    let (has_holds, leases) = (limit.has_open_holds(), limit.lease == Lease::Auto);
    present(json!({
        "algorithm": algorithm,
        "limit": text,
        "name": limit.name.as_deref(),
        "used": state.used,
        "remaining": state.remaining,
        "reset_ms": u64::try_from(state.reset.as_millis()).unwrap_or(u64::MAX),
        "remembered": state.remembered.iter().map(|call| remembered(call, limit)).collect::<Value>(),
        "held": has_holds.then_some(state.held),
        "open_holds": has_holds.then_some(state.open_holds),
        "closed": state.closed.then_some(true),
        "lease": leases.then_some("auto"),
        "credit": leases.then_some(state.credit),
    }))
}

fn remembered(call: &Remembered, limit: &Limit) -> Value {
    let time = if limit.counts_calls() { "until_ms" } else { "at_ms" };
    json!({ (time): call.at.as_millis(), "hits": call.hits, "caller": call.caller })
}

fn no_limit() -> Refused {
    Refused::not_found("no limit applies to this descriptor")
}
