//! `GET|POST /check`: decisions for proxies that need no more than a status, such as NGINX with `auth_request`. The body
//! of an answer is empty, unless `--denied-body` asks for one. Its headers are for the response to the proxy's client.
//!
//! A web page can make a browser send GET without `Origin`, as for an image. So GET needs a header that no page can add to
//! a request to another origin without asking first.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, Method, StatusCode, request::Parts},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;

use super::{
    json::{Decisions, measured_code},
    parameters,
};
use crate::{
    engine::{
        descriptor_syntax,
        request::{self, Descriptor, Entry, Hits},
    },
    net::tls::server::Identity,
    rls::{
        self,
        decode::{Bounds, Decoded},
        refusal::Refusal,
    },
    store::guard::Arrival,
};

/// The header that GET needs. Caddy and Traefik send it anyway.
const FORWARDED_METHOD: &str = "x-forwarded-method";

/// The query of a request, with the headers that it names.
struct Question {
    call: request::Request,
    denied: StatusCode,
    /// The status if the service or its store cannot decide.
    failed: Option<StatusCode>,
}

/// 200, or the status that was asked for; 400 for a bad query, 403 for a request from a web page, 503 if the store gave
/// no answer, or too many requests are in progress.
pub(super) async fn check(
    State(decisions): State<Decisions>,
    asked: Parts,
) -> Result<Response, Refusal> {
    if asked.method != Method::POST && !asked.headers.contains_key(FORWARDED_METHOD) {
        return Err(Refusal::Unmarked);
    }
    let question = read(asked.uri.query(), &asked.headers, decisions.service.bounds);
    let Question { call, denied, failed } = question.map_err(Refusal::Invalid)?;
    let decoded = Decoded { request: call, overrides_ignored: 0, echo: None };
    let client = asked.extensions.get::<Identity>();
    let decided = decisions.service.decide_in_turn(decoded, client, Arrival::now()).await;
    match (decided, failed) {
        (Ok(answer), _) => {
            let is_denied = rls::json::retry_after(&answer).is_some();
            let status = if is_denied { denied } else { StatusCode::OK };
            Ok((status, rls::json::headers(&answer), Body::from(answer.raw_body)).into_response())
        }
        (Err(refusal), Some(status)) if refusal.codes().1.is_server_error() => {
            Ok((status, measured_code(&refusal)).into_response())
        }
        (Err(refusal), _) => Err(refusal),
    }
}

fn read(query: Option<&str>, headers: &HeaderMap, bounds: Bounds) -> Result<Question, String> {
    let names = ["domain", "d", "hits", "deny", "on_failure"];
    let ([mut domain, _, hits, deny, on_failure], paths) =
        parameters::read_with_descriptors(query, names)?;
    if paths.is_empty() {
        return Err("d: missing, such as d=user=@x-user".to_owned());
    }
    bounds.check_descriptors(paths.len()).map_err(|refusal| refusal.to_string())?;
    let states_hits = !hits.is_empty();
    let hits = match hits.first() {
        None => Hits::Charge(1),
        Some(hits) => match number(hits, "hits", 0..=Hits::MAX)? {
            0 => Hits::Check,
            hits => Hits::Charge(hits),
        },
    };
    let mut descriptors = Vec::with_capacity(paths.len());
    for (index, path) in paths.iter().enumerate() {
        let entries = entries(path, headers).map_err(|problem| format!("d: {problem}"))?;
        request::check_entries(index, entries.len())?;
        descriptors.push(Descriptor { entries, hits, states_hits, limit: None });
    }
    let denied = match deny.first() {
        None => StatusCode::TOO_MANY_REQUESTS,
        Some(status) => {
            let status = number(status, "deny", 400..=599)?;
            status.to_string().parse().map_err(|_| "deny: must be a status")?
        }
    };
    let failed = match on_failure.first().map(|what| &**what) {
        None => None,
        Some("allow") => Some(StatusCode::OK),
        Some("deny") => Some(denied),
        Some(_) => return Err("on_failure: must be allow or deny".to_owned()),
    };
    let domain = domain.pop().filter(|domain| !domain.is_empty()).ok_or("domain: missing")?;
    let call = request::Request { domain, descriptors };
    Ok(Question { call, denied, failed })
}

fn number(text: &str, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).filter(|number| range.contains(number)).ok_or_else(
        || format!("{name}: must be a whole number from {} to {}", range.start(), range.end()),
    )
}

/// The entries of a descriptor. A value such as `@x-user` stands for the header of this name, and `@@` for an `@`.
fn entries(path: &[u8], headers: &HeaderMap) -> Result<Vec<Entry>, String> {
    let mut entries = descriptor_syntax::parse(path)?;
    for entry in &mut entries {
        let Some(name) = entry.value.strip_prefix(b"@") else { continue };
        entry.value = match HeaderName::from_bytes(name) {
            Ok(name) => header(headers, &name),
            Err(_) if name.starts_with(b"@") => entry.value.slice(1..),
            Err(_) => return Err("after `@`, a value needs the name of a header".to_owned()),
        };
    }
    Ok(entries)
}

/// The value of a header; if it is repeated, all values with commas. It is empty if the request has no such header: then
/// all requests without the header share a counter, and none of them is free.
fn header(headers: &HeaderMap, name: &HeaderName) -> Bytes {
    let values: Vec<&[u8]> = headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
    values.join(&b',').into()
}
