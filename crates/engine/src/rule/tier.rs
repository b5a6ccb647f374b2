//! Tiers of a limit: parts of it from which on a proxy adds headers to the requests that it lets pass.

use std::{cmp::Reverse, fmt, sync::Arc};

use super::Limit;

/// A soft limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Percent of the limit, from 1 to 100, from which on it is reached.
    pub at: u64,
    /// The headers.
    pub request_headers: Vec<TierHeader>,
}

/// The name of a header, in lower case, and its value.
pub type TierHeader = (Arc<str>, Arc<str>);

impl Limit {
    /// The highest tier that is reached with this number of remaining hits.
    pub fn tier(&self, remaining: u64) -> Option<&Tier> {
        let used = self.capacity().saturating_sub(remaining);
        let reached = |tier: &&Tier| self.has_used(tier.at, used);
        self.tiers.as_deref()?.iter().filter(reached).max_by_key(|tier| tier.at)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers = self.request_headers.iter().map(|(name, value)| format!("{name}: {value}"));
        write!(f, "{} %: {}", self.at, headers.collect::<Vec<_>>().join(", "))
    }
}

/// The headers of these tiers: one value for a name, the one of the highest tier.
pub fn headers_of<'tiers>(tiers: impl Iterator<Item = &'tiers Tier>) -> Vec<TierHeader> {
    let mut tiers: Vec<&Tier> = tiers.collect();
    tiers.sort_by_key(|tier| Reverse(tier.at));
    let mut headers: Vec<TierHeader> = Vec::new();
    for (name, value) in tiers.into_iter().flat_map(|tier| &tier.request_headers) {
        if !headers.iter().any(|(known, _)| known == name) {
            headers.push((Arc::clone(name), Arc::clone(value)));
        }
    }
    headers
}
