//! The messages in protobuf's JSON: names in either case, numbers also as strings, enums by name or
//! number, `null` for absent. Keys and values of entries are plain strings here.
//! <https://protobuf.dev/programming-guides/json/>

use serde::Deserialize;
use serde_json::{Value, json};
use tonic::Status;

use super::{
    decode::{self, Bounds, Decoded},
    pb::{
        self, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
    },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    domain: Option<String>,
    descriptors: Option<Vec<Descriptor>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    entries: Option<Vec<Entry>>,
    limit: Option<Override>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Value>,
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
    requests_per_unit: Option<Value>,
    unit: Option<Value>,
    #[serde(alias = "unitMultiplier")]
    unit_multiplier: Option<Value>,
}

/// Reads and checks a request.
///
/// # Errors
/// INVALID_ARGUMENT, with the place in the text or the field and its bound.
pub fn request(body: &[u8], bounds: Bounds) -> Result<Decoded, Status> {
    let request: Request = serde_json::from_slice(body)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let descriptors = request.descriptors.unwrap_or_default();
    bounds.check_descriptors(descriptors.len())?;
    let message = pb::RateLimitRequest {
        domain: request.domain.unwrap_or_default(),
        descriptors: descriptors
            .into_iter()
            .enumerate()
            .map(|(index, it)| descriptor(it, &format!("descriptors[{index}]")))
            .collect::<Result<_, _>>()?,
        hits_addend: number(request.hits_addend, "hitsAddend", u32::MAX)?.unwrap_or(0),
    };
    decode::request(message, bounds)
}

fn descriptor(written: Descriptor, field: &str) -> Result<pb::RateLimitDescriptor, Status> {
    let entry = |Entry { key, value }| pb::Entry {
        key: key.unwrap_or_default().into(),
        value: value.unwrap_or_default().into(),
    };
    let limit = written.limit.map(|limit| limit_override(limit, &format!("{field}.limit")));
    Ok(pb::RateLimitDescriptor {
        entries: written.entries.unwrap_or_default().into_iter().map(entry).collect(),
        limit: limit.transpose()?,
        hits_addend: number(written.hits_addend, &format!("{field}.hitsAddend"), u64::MAX)?,
        is_negative_hits: written.is_negative_hits.unwrap_or(false),
    })
}

fn limit_override(written: Override, field: &str) -> Result<pb::RateLimitOverride, Status> {
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
fn unit(value: Option<Value>, field: &str) -> Result<i32, Status> {
    let unit = match &value {
        None => Some(0),
        Some(Value::String(name)) => pb::RateLimitUnit::from_str_name(name).map(i32::from),
        Some(value) => value.as_i64().and_then(|number| i32::try_from(number).ok()),
    };
    unit.ok_or_else(|| Status::invalid_argument(format!("{field}: must be the name of a unit")))
}

fn number<T>(value: Option<Value>, field: &str, max: T) -> Result<Option<T>, Status>
where
    T: TryFrom<u64> + std::fmt::Display,
{
    let Some(value) = value else { return Ok(None) };
    let whole = match &value {
        Value::String(text) => text.parse().ok(),
        // `1.0` and `1e3` are whole numbers in JSON; over 2^53 they no longer are exact.
        Value::Number(number) => number.as_u64().or_else(|| {
            let number =
                number.as_f64().filter(|it| it.fract() == 0.0 && (0.0..9e15).contains(it))?;
            number.to_string().parse().ok()
        }),
        _ => None,
    };
    let number = whole.and_then(|number: u64| T::try_from(number).ok());
    let refuse =
        || Status::invalid_argument(format!("{field}: must be a whole number from 0 to {max}"));
    number.map(Some).ok_or_else(refuse)
}

/// Writes an answer.
pub fn response(response: &RateLimitResponse) -> Value {
    let statuses: Vec<Value> = response.statuses.iter().map(status).collect();
    json!({ "overallCode": code(response.overall_code), "statuses": statuses })
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

fn status(status: &DescriptorStatus) -> Value {
    let mut object = json!({ "code": code(status.code) });
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).as_str_name();
        object["currentLimit"] =
            json!({ "requestsPerUnit": limit.requests_per_unit, "unit": unit });
        if let Some(multiplier) = limit.unit_multiplier {
            object["currentLimit"]["unitMultiplier"] = multiplier.into();
        }
    }
    if status.current_limit.is_some() || status.limit_remaining > 0 {
        object["limitRemaining"] = status.limit_remaining.into();
    }
    if let Some(reset) = status.duration_until_reset {
        object["durationUntilReset"] = format!("{}s", reset.seconds).into();
    }
    object
}

fn code(code: i32) -> &'static str {
    Code::try_from(code).unwrap_or(Code::Unknown).as_str_name()
}
