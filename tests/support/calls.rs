//! Calls as text: descriptors, separated by spaces, such as `user=a`, `user=a,plan=b(3)` with hits, `user=a(-1)` with a refund,
//! `user=a(;5/YEAR)` with a limit, and `user=a(1;5/YEAR*2)` with hits and a limit per two years. A unit may be a number.

use tollkeeper_proto::RateLimitOverride;

use super::{prelude::*, service::of_bytes};

/// The descriptors of a call.
pub fn descriptors(text: &str) -> Vec<RateLimitDescriptor> {
    text.split(' ').filter(|word| !word.is_empty()).map(one).collect()
}

fn one(word: &str) -> RateLimitDescriptor {
    let (entries, terms) = word.split_once('(').unwrap_or((word, ")"));
    let terms = terms.strip_suffix(')').expect(word);
    let (count, limit) = terms.split_once(';').unwrap_or((terms, ""));
    let entries = entries.split(',').filter(|entry| !entry.is_empty());
    let entries = entries.map(|entry| entry.split_once('=').expect(word));
    let entries: Vec<_> = entries.map(|(key, value)| (bytes(key), bytes(value))).collect();
    let entries: Vec<_> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    let descriptor = match count.strip_prefix('-') {
        Some(count) => refund(of_bytes(&entries), count.parse().unwrap()),
        None if count.is_empty() => of_bytes(&entries),
        None => hits(of_bytes(&entries), count.parse().unwrap()),
    };
    let limit = (!limit.is_empty()).then(|| limit_of(limit));
    RateLimitDescriptor { limit, ..descriptor }
}

fn limit_of(text: &str) -> RateLimitOverride {
    let (requests, unit) = text.split_once('/').expect(text);
    let (unit, multiplier) = unit.split_once('*').unwrap_or((unit, ""));
    let known = RateLimitUnit::from_str_name(unit).map(Into::into);
    RateLimitOverride {
        requests_per_unit: requests.parse().unwrap(),
        unit: known.unwrap_or_else(|| unit.parse().unwrap()),
        unit_multiplier: (!multiplier.is_empty()).then(|| multiplier.parse().unwrap()),
    }
}

/// Bytes of a text whose characters have their numbers.
pub fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|character| character as u8).collect()
}
