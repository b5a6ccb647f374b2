//! Turns the wire's messages into a [`Request`], with every default and every refusal of the protocol.
//!
//! Only what an operator configures is refused. What an end user can influence (values, hits taken from
//! headers) never is: Envoy takes an error for "allow".

use prost_types::Struct;

use super::{
    metadata,
    pb::{self, rate_limit_response::rate_limit::Unit as WireUnit},
    refusal::Refusal,
};
use crate::engine::{
    request::{self, DESCRIPTORS_MAX_DEFAULT, Descriptor, Entry, Hits, Request},
    rule::{Limit, Unit},
};

#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub descriptors_max: usize,
    /// Whether the answer's dynamic metadata repeats the request.
    pub echo: Echo,
}

/// Whether the answer's dynamic metadata repeats the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Echo {
    #[default]
    Off,
    On,
}

#[derive(Debug)]
pub struct Decoded {
    pub request: Request,
    /// Number of limit overrides that were ignored, for an unknown unit or an impossible window.
    pub overrides_ignored: u64,
    /// The part of the answer's dynamic metadata that repeats the request, under [`Echo::On`].
    pub echo: Option<Struct>,
}

/// The bounds of a service with default settings.
impl Default for Bounds {
    fn default() -> Self {
        Self { descriptors_max: DESCRIPTORS_MAX_DEFAULT, echo: Echo::default() }
    }
}

impl Bounds {
    pub fn check_descriptors(self, count: usize) -> Result<(), Refusal> {
        request::check_descriptors(count, self.descriptors_max).map_err(Refusal::Invalid)
    }

    pub fn check_entries(self, descriptor: usize, count: usize) -> Result<(), Refusal> {
        request::check_entries(descriptor, count).map_err(Refusal::Invalid)
    }
}

/// Checks a message and fills in its defaults. Its descriptors and entries are within [`Bounds`] already.
pub fn request(message: pb::RateLimitRequest, echo: Echo) -> Result<Decoded, Refusal> {
    if message.domain.is_empty() {
        return Err(Refusal::Invalid("domain: must not be empty".to_owned()));
    }
    if message.descriptors.is_empty() {
        return Err(Refusal::Empty);
    }

    let echo = (echo == Echo::On).then(|| metadata::echo(&message));
    // On the wire, 0 and an absent field are the same; both count as 1.
    let hits = u64::from(message.hits_addend.max(1));
    let (descriptors, overrides_ignored) = descriptors(message.descriptors, hits, false)?;
    let request = Request { domain: message.domain, descriptors };
    Ok(Decoded { request, overrides_ignored, echo })
}

/// The request of a recorded call, with these hits where descriptors have none of their own.
///
/// # Errors
/// What is wrong with the field that it names.
pub fn recorded(
    domain: String,
    messages: Vec<pb::RateLimitDescriptor>,
    hits: u64,
) -> Result<Request, String> {
    if domain.is_empty() || messages.is_empty() {
        return Err("a call without a domain or a descriptor".to_owned());
    }
    for (index, message) in messages.iter().enumerate() {
        request::check_entries(index, message.entries.len())?;
    }
    let (descriptors, _) =
        descriptors(messages, hits, false).map_err(|refusal| refusal.to_string())?;
    Ok(Request { domain, descriptors })
}

/// Checks descriptors. Those without hits of their own have the call's. Also returns the number of overrides that are
/// ignored.
pub(super) fn descriptors(
    messages: Vec<pb::RateLimitDescriptor>,
    hits: u64,
    states_hits: bool,
) -> Result<(Vec<Descriptor>, u64), Refusal> {
    let mut overrides_ignored = 0;
    let mut descriptors = Vec::with_capacity(messages.len());
    for (index, descriptor) in messages.into_iter().enumerate() {
        let limit = descriptor.limit.as_ref().and_then(limit_override);
        overrides_ignored += u64::from(descriptor.limit.is_some() && limit.is_none());
        descriptors.push(Descriptor {
            states_hits: states_hits || descriptor.hits_addend.is_some(),
            hits: descriptor_hits(descriptor.hits_addend, hits, descriptor.is_negative_hits),
            entries: entries(index, descriptor.entries)?,
            limit,
        });
    }
    Ok((descriptors, overrides_ignored))
}

/// Keys and values may have any length: the keys of counters hold digests of long ones.
fn entries(descriptor: usize, entries: Vec<pb::Entry>) -> Result<Vec<Entry>, Refusal> {
    if let Some(index) = entries.iter().position(|entry| entry.key.is_empty()) {
        let field = format!("descriptors[{descriptor}].entries[{index}].key");
        return Err(Refusal::Invalid(format!("{field}: must not be empty")));
    }
    // In the same memory.
    Ok(entries.into_iter().map(|pb::Entry { key, value }| Entry { key, value }).collect())
}

/// A descriptor's own hits replace the request's. An explicit 0 is a check.
fn descriptor_hits(own: Option<u64>, of_request: u64, is_refund: bool) -> Hits {
    let hits = own.unwrap_or(of_request).min(Hits::MAX);
    if is_refund {
        return Hits::Refund(hits);
    }
    match hits {
        0 => Hits::Check,
        hits => Hits::Charge(hits),
    }
}

fn limit_override(limit: &pb::RateLimitOverride) -> Option<Limit> {
    // The answer's enum is the request's with WEEK added. envoyproxy/ratelimit reads a request's number
    // by it too.
    let unit = match WireUnit::try_from(limit.unit).ok()? {
        WireUnit::Unknown => return None,
        WireUnit::Second => Unit::Second,
        WireUnit::Minute => Unit::Minute,
        WireUnit::Hour => Unit::Hour,
        WireUnit::Day => Unit::Day,
        WireUnit::Week => Unit::Week,
        WireUnit::Month => Unit::Month,
        WireUnit::Year => Unit::Year,
    };
    Limit::new(limit.requests_per_unit.into(), unit, limit.unit_multiplier.unwrap_or(1))
}
