//! What a caller asks, once the protocol's defaults and refusals are behind it.

use std::fmt;

use bytes::Bytes;

use crate::engine::rule::Limit;

/// The longest key of an entry, in bytes, in requests and in rules.
pub const KEY_BYTES_MAX: usize = 256;

/// One call: may all of these descriptors pass, in this domain?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the rules to ask; not empty.
    pub domain: String,
    /// What to limit; at least one.
    pub descriptors: Vec<Descriptor>,
}

/// One thing to limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The path through the rules. Envoy does send empty ones.
    pub entries: Vec<Entry>,
    /// What to do with the counter.
    pub hits: Hits,
    /// A limit that stands in for the configured rule.
    pub limit: Option<Limit>,
}

/// One step of a descriptor's path. Any bytes are allowed.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the thing, such as `user`; not empty.
    pub key: Bytes,
    /// Which one it is, such as `alice`; may be empty.
    pub value: Bytes,
}

/// Values are people's names, addresses and tokens, so they never enter a log by way of `{:?}`.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}

/// What a descriptor does with its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hits {
    /// Takes this many, at least 1.
    Charge(u64),
    /// Asks whether one would pass, and takes nothing.
    Look,
    /// Gives this many back.
    Refund(u64),
}

impl Hits {
    /// The most hits that are told apart, 2^53 - 1; more count as this. Lua knows whole numbers
    /// up to here, and no limit comes near it.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Whether it gives back.
    pub const fn is_refund(self) -> bool {
        matches!(self, Self::Refund(_))
    }
}
