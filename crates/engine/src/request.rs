//! A request, after the protocol's defaults have been applied and invalid messages refused.

use std::fmt;

use bytes::Bytes;

use crate::{algorithm::account::COUNT_MAX, rule::Limit};

/// The longest key of a rule, in bytes. Requests may have longer ones, which match no rule.
pub const KEY_BYTES_MAX: usize = 256;

/// Most descriptors in one request, unless `--max-descriptors` sets another number.
pub const DESCRIPTORS_MAX_DEFAULT: usize = 64;

/// Most entries in one descriptor.
pub const ENTRIES_MAX: usize = 32;

/// Checks the number of descriptors in a request.
///
/// # Errors
/// If there are more than `max`; the message names the field and the bound.
pub fn check_descriptors(count: usize, max: usize) -> Result<(), String> {
    if count > max {
        return Err(format!("descriptors: {count} exceeds {max}"));
    }
    Ok(())
}

/// Checks the number of entries in the descriptor of this index.
///
/// # Errors
/// If there are more than [`ENTRIES_MAX`]; the message names the field and the bound.
pub fn check_entries(descriptor: usize, count: usize) -> Result<(), String> {
    if count > ENTRIES_MAX {
        return Err(format!("descriptors[{descriptor}].entries: {count} exceeds {ENTRIES_MAX}"));
    }
    Ok(())
}

/// One call: may all of these descriptors pass, in this domain?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of a set of rules; not empty.
    pub domain: String,
    /// What to limit; at least one.
    pub descriptors: Vec<Descriptor>,
}

impl Request {
    /// The same request with this number of hits in place of those that it charges.
    pub fn with_hits(&self, hits: u64) -> Self {
        let mut request = self.clone();
        for descriptor in &mut request.descriptors {
            if let Hits::Charge(charged) = &mut descriptor.hits {
                *charged = hits;
            }
        }
        request
    }
}

/// One thing to limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The path through the rules. Envoy does send empty ones.
    pub entries: Vec<Entry>,
    /// What to do with its counters.
    pub hits: Hits,
    /// Whether it has a number of hits of its own.
    pub states_hits: bool,
    /// A limit that replaces the configured rule.
    pub limit: Option<Limit>,
}

impl Descriptor {
    /// A descriptor that states neither hits nor a limit of its own.
    pub const fn new(entries: Vec<Entry>, hits: Hits) -> Self {
        Self { entries, hits, states_hits: false, limit: None }
    }
}

/// One step of a descriptor's path. Any bytes are allowed.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the thing, such as `user`; not empty.
    pub key: Bytes,
    /// Its value, such as `alice`; may be empty.
    pub value: Bytes,
}

/// Values are people's names, addresses and tokens, so `{:?}` must not write them to a log.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}

/// What a descriptor does with its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hits {
    /// Charges this many hits, at least 1.
    Charge(u64),
    /// Checks whether one hit would pass, and charges nothing.
    Check,
    /// Gives this many hits back.
    Refund(u64),
    /// Asks for none: the charge commits a hold, whose hits it replaces. No descriptor has this.
    Commit,
}

/// What the hits that a call states stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitsMeaning {
    /// What is charged; the true number where a commit has no name.
    Charged,
    /// What the work is expected to need: an estimate where hits are held.
    Expected,
    /// Work that is done: it is charged whether it fits or not.
    Done,
    /// A part of what the work could use: it is not held.
    Part,
    /// A part that the caller spends itself: what it does not spend, it gives back.
    Lease,
    /// A part that a proxy spends itself, for seconds.
    Assigned,
    /// None, since the call is only judged: it holds nothing.
    Checked,
    /// None, since counters are only read: a limit is whole if the class of the call is not given.
    Read,
}

impl HitsMeaning {
    /// Whether as many hits as fit are charged.
    pub const fn is_part(self) -> bool {
        matches!(self, Self::Part | Self::Lease | Self::Assigned)
    }
}

impl Hits {
    /// The most hits that a descriptor can charge or give back; more count as this many.
    pub const MAX: u64 = COUNT_MAX;

    /// The hits that it charges.
    pub const fn charged(self) -> u64 {
        match self {
            Self::Charge(hits) => hits,
            Self::Check | Self::Refund(_) | Self::Commit => 0,
        }
    }

    /// The hits that it refunds.
    pub const fn refunded(self) -> u64 {
        match self {
            Self::Refund(hits) => hits,
            Self::Charge(_) | Self::Check | Self::Commit => 0,
        }
    }

    /// Whether it asks for no hits, and so denies nothing: it may give some back.
    pub const fn asks_nothing(self) -> bool {
        matches!(self, Self::Refund(_) | Self::Commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_its_bound_is_refused_by_name() {
        check_descriptors(3, 3).unwrap();
        assert_eq!(check_descriptors(4, 3), Err("descriptors: 4 exceeds 3".to_owned()));
        check_entries(2, 32).unwrap();
        assert_eq!(check_entries(2, 33), Err("descriptors[2].entries: 33 exceeds 32".to_owned()));
    }

    #[test]
    fn another_number_of_hits_replaces_those_that_are_charged() {
        for (hits, charged, asks_nothing, expected) in [
            (Hits::Charge(3), 3, false, Hits::Charge(7)),
            (Hits::Check, 0, false, Hits::Check),
            (Hits::Refund(3), 0, true, Hits::Refund(3)),
            (Hits::Commit, 0, true, Hits::Commit),
        ] {
            let descriptors = vec![Descriptor::new(Vec::new(), hits)];
            let request = Request { domain: "shop".to_owned(), descriptors };
            assert_eq!(request.with_hits(7).descriptors[0].hits, expected);
            assert_eq!((hits.charged(), hits.asks_nothing()), (charged, asks_nothing), "{hits:?}");
        }
    }

    #[test]
    fn values_of_entries_are_not_logged() {
        let entry = Entry { key: "user".into(), value: "alice".into() };
        assert_eq!(format!("{entry:?}"), "Entry { .. }");
    }

    #[test]
    fn parts_leases_and_assignments_charge_as_many_hits_as_fit() {
        use HitsMeaning::{Assigned, Charged, Checked, Done, Expected, Lease, Part, Read};
        assert!([Part, Lease, Assigned].iter().all(|meaning| meaning.is_part()));
        assert!(![Charged, Expected, Done, Checked, Read].iter().any(|meaning| meaning.is_part()));
    }
}
