//! Lists the counters of a domain whose descriptors match patterns.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::MutexGuard,
    time::{self, Instant},
};

use super::{Deciding, Limiter, Undecided, once::ID_KEY};
use crate::{
    engine::{
        descriptor_syntax, key,
        ledger::Charge,
        pattern::Pattern,
        request::{Descriptor, Entry, Hits, Request},
        rule::Limit,
    },
    explain::incomplete,
    store::{Clear, CounterReading},
};

/// How long a request waits for its turn to walk the keys.
const WALKS_AFTER: Duration = Duration::from_secs(1);

const FIND_WITHIN: Duration = Duration::from_secs(2);

/// How long it may take until the last counters are read; then an operator waits for them.
const READ_WITHIN: Duration = Duration::from_secs(3);

const READ_MAX: usize = 10_000;

const AT_A_TIME: usize = 16;

#[derive(Debug)]
pub struct Listing {
    pub domain: String,
    /// The keys of some entries in their order, and patterns for their values; empty for all descriptors.
    pub entries: Vec<Entry>,
    /// Only descriptors without other entries.
    pub whole: bool,
    /// Only counters that have used this part of their limit, in percent from 1 to 100.
    pub over: Option<u64>,
    /// The most descriptors in the answer.
    pub limit: usize,
}

#[derive(Debug, Default)]
pub struct Listed {
    /// Descriptors as the command line writes them, in their order, with a counter for each limit.
    pub counters: Vec<(String, Charge, CounterReading)>,
    /// Whether there may be others.
    pub more: bool,
    /// How many of the counters that were read gave no answer, as a sentence.
    pub incomplete: Option<String>,
    /// The number of keys that were met from which the values cannot be read, since one of them is too long.
    pub digests: u64,
}

impl Limiter {
    /// The counters that match, as they are now. Counters without a rule in force are left out.
    pub async fn list(&self, listing: &Listing) -> Result<Listed, Undecided> {
        let started = Instant::now();
        let _turn = self.walk().await?;
        let (patterns, mut listed) = (listing.patterns(), Listed::default());
        let by = self.deciding();
        let mut found: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        let is_all = {
            // Only reading a counter shows how much of its limit it has used.
            let wanted = listing.over.map_or(listing.limit + 1, |_| READ_MAX);
            let mut note = |name: &str| {
                match key::counted(name) {
                    Some((domain, entries))
                        if domain == listing.domain.as_bytes()
                            && (!listing.whole || entries.len() == patterns.len())
                            && matches(&patterns, &entries)
                            && entries.first().is_none_or(|entry| *entry.key != *ID_KEY) =>
                    {
                        let descriptor = descriptor_syntax::write(&entries);
                        if found.len() < READ_MAX
                            && !found.contains_key(&descriptor)
                            && self.has_limit(&by, &listing.domain, &entries)
                        {
                            found.insert(descriptor, entries);
                        }
                    }
                    None if key::has_digest(name) => listed.digests += 1,
                    _ => {}
                }
                found.len() < wanted
            };
            let domain = key::caller(listing.domain.as_bytes());
            self.store.keys(&domain, &mut note, started + FIND_WITHIN).await?
        };
        listed.more |= !is_all || found.len() == READ_MAX;
        let found: Vec<(String, Vec<Entry>)> = found.into_iter().collect();
        let mut shown = 0;
        for some in found.chunks(AT_A_TIME) {
            if started.elapsed() > READ_WITHIN {
                listed.more = true;
                break;
            }
            let read = some.iter().map(|(_, entries)| self.read_one(&listing.domain, entries));
            let read = join_all(read).await;
            let all: Vec<&CounterReading> =
                read.iter().flatten().map(|(_, reading)| reading).collect();
            listed.incomplete = listed.incomplete.or_else(|| incomplete(all.into_iter()));
            for ((descriptor, _), readings) in some.iter().zip(read) {
                let readings = readings
                    .into_iter()
                    .filter(|(charge, reading)| listing.wants(&charge.counter.limit, reading));
                let mut readings = readings.peekable();
                if readings.peek().is_none() {
                    continue;
                }
                if shown == listing.limit {
                    listed.more = true;
                    return Ok(listed);
                }
                shown += 1;
                let readings =
                    readings.map(|(charge, reading)| (descriptor.clone(), charge, reading));
                listed.counters.extend(readings);
            }
        }
        Ok(listed)
    }

    /// The descriptors that lists show by these digests, each if a counter of the domain counts it now; within, `None` if it
    /// cannot be read from the key.
    pub async fn descriptors_of(
        &self,
        domain: &str,
        digests: &[&str],
    ) -> Result<Vec<Option<Option<Vec<Entry>>>>, Undecided> {
        let _turn = self.walk().await?;
        self.holds.prepare_digests().await;
        let (domain, mut found) = (key::caller(domain.as_bytes()), vec![None; digests.len()]);
        let mut note = |name: &str| {
            if let Some(id) = key::business_id_in(name)
                && id.split('|').next() == Some(&domain)
            {
                let own = self.holds.digests(key::id_of(&id));
                for (digest, found) in digests.iter().zip(&mut found) {
                    if own.iter().any(|own| own == digest) {
                        *found = Some(key::counted(name).map(|(_, entries)| entries));
                    }
                }
            }
            found.contains(&None)
        };
        self.store.keys(&domain, &mut note, Instant::now() + FIND_WITHIN).await?;
        Ok(found)
    }

    /// The turn to walk the keys, which one request has at a time.
    async fn walk(&self) -> Result<MutexGuard<'_, ()>, Undecided> {
        let turn = time::timeout(WALKS_AFTER, self.walking.lock()).await;
        turn.map_err(|_| Undecided::TooMany)
    }

    fn has_limit(&self, by: &Deciding, domain: &str, entries: &[Entry]) -> bool {
        !self.plan_of_reading(by, &reading(domain, entries)).charges.is_empty()
    }

    async fn read_one(&self, domain: &str, entries: &[Entry]) -> Vec<(Charge, CounterReading)> {
        self.read_counters(&reading(domain, entries), Clear::No).await
    }
}

fn reading(domain: &str, entries: &[Entry]) -> Request {
    let descriptor = Descriptor::new(entries.to_vec(), Hits::Check);
    Request { domain: domain.to_owned(), descriptors: vec![descriptor] }
}

impl Listing {
    /// The keys of the entries, each with its value and its pattern if it has a star.
    fn patterns(&self) -> Vec<(&Entry, Option<Pattern>)> {
        self.entries.iter().map(|entry| (entry, Pattern::of(&entry.value))).collect()
    }

    fn wants(&self, limit: &Limit, reading: &CounterReading) -> bool {
        let Some(percent) = self.over else { return true };
        match reading {
            CounterReading::State(state) => {
                let used = limit.capacity().saturating_sub(state.remaining);
                limit.has_used(percent, used)
            }
            CounterReading::Corrupt => true,
            // Whether it is over is not known; the listing says that it is incomplete.
            CounterReading::NoAnswer(_) => false,
        }
    }
}

fn matches(patterns: &[(&Entry, Option<Pattern>)], entries: &[Entry]) -> bool {
    let matches_one = |((asked, pattern), entry): (&(&Entry, Option<Pattern>), &Entry)| {
        asked.key == entry.key
            && match pattern {
                Some(pattern) => pattern.matches(&entry.value),
                None => asked.value == entry.value,
            }
    };
    // A rule may have further levels before, between and after them.
    let mut rest = entries.iter();
    patterns.iter().all(|pattern| rest.any(|entry| matches_one((pattern, entry))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rule::Unit;

    #[test]
    fn a_counter_without_an_answer_is_not_listed_as_over() {
        let listing = |over| {
            let (domain, entries) = ("shop".to_owned(), Vec::new());
            Listing { domain, entries, whole: false, over, limit: 1 }
        };
        let (limit, silent) =
            (Limit::new(10, Unit::Day, 1).unwrap(), CounterReading::NoAnswer(String::new()));
        assert!(listing(None).wants(&limit, &silent));
        assert!(!listing(Some(100)).wants(&limit, &silent));
    }
}
