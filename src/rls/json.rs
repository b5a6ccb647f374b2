//! The messages in protobuf's JSON: field names in either case, numbers also as strings, enums by name or
//! number, `null` for an absent field. Keys and values of entries are plain strings here.
//! <https://protobuf.dev/programming-guides/json/>

mod bounded;

use http::{HeaderMap, HeaderName, header};
use prost_types::{Struct, value::Kind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use self::bounded::{AtMost, MapAtMost, Object, Scalar};
use super::{
    decode::{self, Bounds, Decoded},
    pb::{
        self, RateLimitResponse,
        envoy::config::core::v3::HeaderValue,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    },
    refusal::Refusal,
};
use crate::{engine::request::ENTRIES_MAX, text::printable::printable};

/// The largest value of `--max-descriptors`. Descriptors beyond it are only counted.
pub(super) const DESCRIPTORS_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<AtMost<DESCRIPTORS_MAX, Object<JsonDescriptor>>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Scalar>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JsonDescriptor {
    entries: Option<AtMost<ENTRIES_MAX, Object<JsonEntry>>>,
    limit: Option<Object<JsonOverride>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Scalar>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonOverride {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<Scalar>,
    unit: Option<Scalar>,
    #[serde(alias = "unitMultiplier")]
    unit_multiplier: Option<Scalar>,
}

pub fn request(body: &[u8], bounds: Bounds) -> Result<Decoded, Refusal> {
    let Object::<JsonRequest>(request) =
        serde_json::from_slice(body).map_err(|error| Refusal::Invalid(problem(&error)))?;
    let message = pb::RateLimitRequest {
        domain: request.domain.unwrap_or_default(),
        descriptors: descriptors(request.descriptors, bounds)?,
        hits_addend: number(request.hits_addend, "hitsAddend", u32::MAX)?.unwrap_or(0),
    };
    decode::request(message, bounds.echo)
}

pub(super) fn descriptors(
    list: Option<AtMost<DESCRIPTORS_MAX, Object<JsonDescriptor>>>,
    bounds: Bounds,
) -> Result<Vec<pb::RateLimitDescriptor>, Refusal> {
    let list = list.unwrap_or_default();
    bounds.check_descriptors(list.count)?;
    let mut descriptors = Vec::with_capacity(list.count);
    for (index, Object(written)) in list.first.into_iter().enumerate() {
        bounds.check_entries(index, written.entries.as_ref().map_or(0, |list| list.count))?;
        descriptors.push(descriptor(written, &format!("descriptors[{index}]"))?);
    }
    Ok(descriptors)
}

/// What is wrong with JSON, and where. serde_json repeats what it finds in place of what it expects; a value
/// must not be repeated, and the name of an unknown field is from outside.
pub(super) fn problem(error: &serde_json::Error) -> String {
    const NAME_BYTES_MAX: usize = 64;
    if error.is_eof() && error.column() == 0 && error.line() == 1 {
        return "the body is empty; send a JSON object".to_owned();
    }
    let text = error.to_string();
    let Some((found, expected)) = text.rsplit_once(", expected ") else { return text };
    if let Some(value) = found.strip_prefix("invalid type: ") {
        let kind = value.split(['"', '`']).next().unwrap_or_default().trim_end();
        return format!("invalid type: {kind}, expected {expected}");
    }
    match found.strip_prefix("unknown field ") {
        Some(name) if name.len() > NAME_BYTES_MAX => format!("unknown field, expected {expected}"),
        Some(_) => printable(text.as_bytes()),
        None => text,
    }
}

fn descriptor(written: JsonDescriptor, field: &str) -> Result<pb::RateLimitDescriptor, Refusal> {
    let entries = written.entries.unwrap_or_default().first;
    let limit = match written.limit {
        Some(Object(limit)) => Some(limit_override(limit, &format!("{field}.limit"))?),
        None => None,
    };
    Ok(pb::RateLimitDescriptor {
        entries: entries.into_iter().map(entry).collect(),
        limit,
        hits_addend: number(written.hits_addend, &format!("{field}.hitsAddend"), u64::MAX)?,
        is_negative_hits: written.is_negative_hits.unwrap_or(false),
    })
}

fn entry(Object(written): Object<JsonEntry>) -> pb::Entry {
    pb::Entry {
        key: written.key.unwrap_or_default().into(),
        value: written.value.unwrap_or_default().into(),
    }
}

fn limit_override(written: JsonOverride, field: &str) -> Result<pb::RateLimitOverride, Refusal> {
    let requests = format!("{field}.requestsPerUnit");
    let multiplier = format!("{field}.unitMultiplier");
    Ok(pb::RateLimitOverride {
        requests_per_unit: number(written.requests_per_unit, &requests, u32::MAX)?.unwrap_or(0),
        unit: unit(written.unit, &format!("{field}.unit"))?,
        unit_multiplier: number(written.unit_multiplier, &multiplier, u32::MAX)?,
    })
}

/// An unknown name is refused, as protobuf's JSON requires. An unknown number is kept, and ignored later.
fn unit(value: Option<Scalar>, field: &str) -> Result<i32, Refusal> {
    let unit = match &value {
        None => Some(0),
        Some(Scalar::Text(name)) => pb::RateLimitUnit::from_str_name(name).map(i32::from),
        Some(Scalar::Number(number)) => {
            number.as_i64().and_then(|number| i32::try_from(number).ok())
        }
    };
    unit.ok_or_else(|| Refusal::Invalid(format!("{field}: must be the name of a unit")))
}

pub(super) fn number<T>(value: Option<Scalar>, field: &str, max: T) -> Result<Option<T>, Refusal>
where
    T: TryFrom<u64> + PartialOrd + std::fmt::Display,
{
    let Some(value) = value else { return Ok(None) };
    match whole_number(&value).and_then(|number| T::try_from(number).ok()) {
        Some(number) if number <= max => Ok(Some(number)),
        _ => Err(Refusal::Invalid(format!("{field}: must be a whole number from 0 to {max}"))),
    }
}

fn whole_number(value: &Scalar) -> Option<u64> {
    match value {
        // Rust would accept a leading `+` as well.
        Scalar::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        Scalar::Text(_) => None,
        Scalar::Number(number) => number.as_u64().or_else(|| whole_float(number.as_f64()?)),
    }
}

/// `1.0` and `1e3` are whole numbers in JSON. Over 2^53 they are no longer exact.
fn whole_float(number: f64) -> Option<u64> {
    if number.fract() != 0.0 || !(0.0..9e15).contains(&number) {
        return None;
    }
    number.to_string().parse().ok()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JsonResponse {
    overall_code: &'static str,
    statuses: Vec<JsonStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonHeader>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    request_headers_to_add: Vec<JsonHeader>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Value>,
}

#[derive(Serialize)]
struct JsonHeader {
    key: String,
    value: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonStatus {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_remaining: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonLimit {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    requests_per_unit: u32,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_multiplier: Option<u32>,
}

pub fn response(response: &RateLimitResponse) -> JsonResponse {
    JsonResponse {
        overall_code: code(response.overall_code),
        statuses: response.statuses.iter().map(status).collect(),
        response_headers_to_add: response.response_headers_to_add.iter().map(json_header).collect(),
        request_headers_to_add: response.request_headers_to_add.iter().map(json_header).collect(),
        dynamic_metadata: response.dynamic_metadata.as_ref().map(object),
    }
}

fn json_header(header: &HeaderValue) -> JsonHeader {
    JsonHeader { key: header.key.clone(), value: header.value.clone() }
}

fn object(map: &Struct) -> Value {
    map.fields.iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

fn value(value_of: &prost_types::Value) -> Value {
    match &value_of.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => Value::from(*number),
        Some(Kind::StringValue(text)) => Value::from(text.as_str()),
        Some(Kind::BoolValue(truth)) => Value::from(*truth),
        Some(Kind::StructValue(map)) => object(map),
        Some(Kind::ListValue(list)) => list.values.iter().map(value).collect(),
    }
}

/// All headers of an answer, and `Retry-After` if the call is denied.
pub fn headers(response: &RateLimitResponse) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let for_response = response.response_headers_to_add.iter();
    for header in for_response.chain(&response.request_headers_to_add) {
        let name = HeaderName::try_from(&header.key);
        if let (Ok(name), Ok(value)) = (name, http::HeaderValue::try_from(&header.value)) {
            headers.insert(name, value);
        }
    }
    if let Some(seconds) = retry_after(response) {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    headers
}

/// Seconds to wait before a retry, or `None` if the call was not denied.
pub fn retry_after(response: &RateLimitResponse) -> Option<i64> {
    if response.overall_code() != Code::OverLimit {
        return None;
    }
    let over = response.statuses.iter().filter(|status| status.code() == Code::OverLimit);
    let resets = over.filter_map(|status| Some(status.duration_until_reset?.seconds));
    Some(resets.max().unwrap_or(1))
}

fn status(status: &DescriptorStatus) -> JsonStatus {
    let has_remaining = status.current_limit.is_some() || status.limit_remaining > 0;
    JsonStatus {
        code: code(status.code),
        current_limit: status.current_limit.as_ref().map(limit),
        limit_remaining: has_remaining.then_some(status.limit_remaining),
        duration_until_reset: status
            .duration_until_reset
            .map(|reset| format!("{}s", reset.seconds)),
    }
}

fn limit(limit: &RateLimit) -> JsonLimit {
    JsonLimit {
        name: limit.name.clone(),
        requests_per_unit: limit.requests_per_unit,
        unit: Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).as_str_name(),
        unit_multiplier: limit.unit_multiplier,
    }
}

fn code(code: i32) -> &'static str {
    Code::try_from(code).unwrap_or(Code::Unknown).as_str_name()
}
