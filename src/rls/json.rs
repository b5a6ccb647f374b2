//! The messages in protobuf's JSON: names in either case, numbers also as strings, enums by name or
//! number, `null` for absent. Keys and values of entries are plain strings here.
//! <https://protobuf.dev/programming-guides/json/>

mod bounded;

use prost_types::{Struct, value::Kind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::bounded::{AtMost, Object, Scalar};
use super::{
    decode::{self, Bounds, Decoded, ENTRIES_MAX},
    pb::{
        self, RateLimitResponse,
        envoy::config::core::v3::HeaderValue,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    },
    refusal::Refusal,
};

/// What the setting for descriptors can be at most. A list ends here, before the setting is asked.
const DESCRIPTORS_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    domain: Option<String>,
    descriptors: Option<AtMost<DESCRIPTORS_MAX, Object<Descriptor>>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Scalar>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    entries: Option<AtMost<ENTRIES_MAX, Object<Entry>>>,
    limit: Option<Object<Override>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Scalar>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<Scalar>,
    unit: Option<Scalar>,
    #[serde(alias = "unitMultiplier")]
    unit_multiplier: Option<Scalar>,
}

/// Reads and checks a request.
///
/// # Errors
/// If it is not such JSON, with the line and column, or exceeds a bound, with the field.
pub fn request(body: &[u8], bounds: Bounds) -> Result<Decoded, Refusal> {
    let Object::<Request>(request) =
        serde_json::from_slice(body).map_err(|error| Refusal::Invalid(error.to_string()))?;
    let descriptors = request.descriptors.map_or_else(Vec::new, |list| list.0);
    bounds.check_descriptors(descriptors.len())?;
    let message = pb::RateLimitRequest {
        domain: request.domain.unwrap_or_default(),
        descriptors: descriptors
            .into_iter()
            .enumerate()
            .map(|(index, Object(it))| descriptor(it, &format!("descriptors[{index}]")))
            .collect::<Result<_, _>>()?,
        hits_addend: number(request.hits_addend, "hitsAddend", u32::MAX)?.unwrap_or(0),
    };
    decode::request(message, bounds.echo)
}

fn descriptor(written: Descriptor, field: &str) -> Result<pb::RateLimitDescriptor, Refusal> {
    let entry = |Object(Entry { key, value })| pb::Entry {
        key: key.unwrap_or_default().into(),
        value: value.unwrap_or_default().into(),
    };
    let limit = written.limit.map(|it| limit_override(it.0, &format!("{field}.limit")));
    let entries = written.entries.map_or_else(Vec::new, |list| list.0);
    Ok(pb::RateLimitDescriptor {
        entries: entries.into_iter().map(entry).collect(),
        limit: limit.transpose()?,
        hits_addend: number(written.hits_addend, &format!("{field}.hitsAddend"), u64::MAX)?,
        is_negative_hits: written.is_negative_hits.unwrap_or(false),
    })
}

fn limit_override(written: Override, field: &str) -> Result<pb::RateLimitOverride, Refusal> {
    let requests = format!("{field}.requestsPerUnit");
    Ok(pb::RateLimitOverride {
        requests_per_unit: number(written.requests_per_unit, &requests, u32::MAX)?.unwrap_or(0),
        unit: unit(written.unit, &format!("{field}.unit"))?,
        unit_multiplier: number(
            written.unit_multiplier,
            &format!("{field}.unitMultiplier"),
            u32::MAX,
        )?,
    })
}

/// An unknown name is refused, as protobuf's JSON asks; an unknown number is kept, and ignored later.
fn unit(value: Option<Scalar>, field: &str) -> Result<i32, Refusal> {
    let unit = match &value {
        None => Some(0),
        Some(Scalar::Text(name)) => pb::RateLimitUnit::from_str_name(name).map(i32::from),
        Some(Scalar::Number(number)) => number.as_i64().and_then(|it| i32::try_from(it).ok()),
    };
    unit.ok_or_else(|| Refusal::Invalid(format!("{field}: must be the name of a unit")))
}

fn number<T>(value: Option<Scalar>, field: &str, max: T) -> Result<Option<T>, Refusal>
where
    T: TryFrom<u64> + std::fmt::Display,
{
    let Some(value) = value else { return Ok(None) };
    let whole = match &value {
        // Rust would read a `+` as well.
        Scalar::Text(text) if text.bytes().all(|it| it.is_ascii_digit()) => text.parse().ok(),
        Scalar::Text(_) => None,
        // `1.0` and `1e3` are whole numbers in JSON; over 2^53 they no longer are exact.
        Scalar::Number(number) => number.as_u64().or_else(|| {
            let number =
                number.as_f64().filter(|it| it.fract() == 0.0 && (0.0..9e15).contains(it))?;
            number.to_string().parse().ok()
        }),
    };
    let number = whole.and_then(|number: u64| T::try_from(number).ok());
    let refuse = || Refusal::Invalid(format!("{field}: must be a whole number from 0 to {max}"));
    number.map(Some).ok_or_else(refuse)
}

/// An answer as it is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    overall_code: &'static str,
    statuses: Vec<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<Header>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Value>,
}

#[derive(Serialize)]
struct Header {
    key: String,
    value: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_remaining: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limit {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    requests_per_unit: u32,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_multiplier: Option<u32>,
}

/// Writes an answer.
pub fn response(response: &RateLimitResponse) -> Response {
    Response {
        overall_code: code(response.overall_code),
        statuses: response.statuses.iter().map(status).collect(),
        response_headers_to_add: response.response_headers_to_add.iter().map(header).collect(),
        dynamic_metadata: response.dynamic_metadata.as_ref().map(tree),
    }
}

fn header(header: &HeaderValue) -> Header {
    Header { key: header.key.clone(), value: header.value.clone() }
}

fn tree(tree: &Struct) -> Value {
    tree.fields.iter().map(|(name, it)| (name.clone(), value(it))).collect()
}

fn value(value_of: &prost_types::Value) -> Value {
    match &value_of.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => Value::from(*number),
        Some(Kind::StringValue(text)) => Value::from(text.as_str()),
        Some(Kind::BoolValue(truth)) => Value::from(*truth),
        Some(Kind::StructValue(it)) => tree(it),
        Some(Kind::ListValue(list)) => list.values.iter().map(value).collect(),
    }
}

/// Whether the answer says to stop, and then for how many seconds.
pub fn retry_after(response: &RateLimitResponse) -> Option<i64> {
    if response.overall_code() != Code::OverLimit {
        return None;
    }
    let over = response.statuses.iter().filter(|status| status.code() == Code::OverLimit);
    let resets = over.filter_map(|status| Some(status.duration_until_reset?.seconds));
    Some(resets.max().unwrap_or(1))
}

fn status(status: &DescriptorStatus) -> Status {
    let limited = status.current_limit.is_some() || status.limit_remaining > 0;
    Status {
        code: code(status.code),
        current_limit: status.current_limit.as_ref().map(limit),
        limit_remaining: limited.then_some(status.limit_remaining),
        duration_until_reset: status
            .duration_until_reset
            .map(|reset| format!("{}s", reset.seconds)),
    }
}

fn limit(limit: &RateLimit) -> Limit {
    Limit {
        name: limit.name.clone(),
        requests_per_unit: limit.requests_per_unit,
        unit: Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).as_str_name(),
        unit_multiplier: limit.unit_multiplier,
    }
}

fn code(code: i32) -> &'static str {
    Code::try_from(code).unwrap_or(Code::Unknown).as_str_name()
}
