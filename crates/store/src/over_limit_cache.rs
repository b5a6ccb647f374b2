//! Denials that a shared store gave within the last second, answered without asking it again.
//!
//! A refund or a reset by another replica takes effect after a second at most. The cache admits no call. It
//! needs a store whose denials are exact.

mod entries;

use std::{
    hash::RandomState,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tollkeeper_engine::{
    key::Counter,
    ledger::{self, Asked, Charge, Fit, JudgedBy, Tally, Verdict},
    request::Hits,
    rule::Lease,
};

use self::entries::{CachedTally, Entries, LIFE_MAX};
use super::metrics::StoreMetrics;

/// Entries per lock: few enough that no call waits long for a sweep.
const ENTRIES_PER_LOCK: usize = 4096;

/// The last tallies of counters that were over their limit, and of those charged in the same calls.
#[derive(Debug)]
pub struct OverLimitCache {
    shards: Vec<Mutex<Entries>>,
    /// Chooses the shard of a counter, and its bucket there.
    hasher: RandomState,
    created: Instant,
    /// When the last entry expires, in milliseconds since `created`. Before the first denial, and from one second
    /// after the last, a call costs a single load of it.
    quiet_from_ms: AtomicU64,
    denials: Denials,
    metrics: StoreMetrics,
}

/// What a denial of the store means for later calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denials {
    Exact,
    /// It is, or another call has reserved hits and gives them back. Only a counter that shares its hash slot with all
    /// others of its domain is never reserved.
    MayBeReserved,
}

/// Whether its denial may end before the reset, and so is not remembered: a commit can give hits back, the limit grows, or
/// a check says nothing about a hit, which closes the counter.
fn is_held(charge: &Charge) -> bool {
    let limit = &charge.counter.limit;
    limit.hold.is_some()
        || limit.opens_from.is_some()
        || limit.ban_ms.is_some() && charge.hits == Hits::Check
}

impl OverLimitCache {
    /// A cache of at most `entries_max` counters; 0 turns it off.
    pub fn new(entries_max: usize, denials: Denials, metrics: StoreMetrics) -> Self {
        let count = entries_max.div_ceil(ENTRIES_PER_LOCK);
        let entries_max = entries_max.checked_div(count).unwrap_or(0);
        Self {
            shards: (0..count).map(|_| Mutex::new(Entries::new(entries_max))).collect(),
            hasher: RandomState::new(),
            created: Instant::now(),
            quiet_from_ms: AtomicU64::new(0),
            denials,
            metrics,
        }
    }

    /// The tallies of a call that is known to be denied without any change to a counter; `None` if the store must
    /// be asked.
    pub fn answer(&self, charges: &[Charge], now: Instant) -> Option<Vec<Tally>> {
        // Calls that keep an order may follow a refund that has not been answered; how much of a part fits, only the store
        // knows.
        let asks = |charge: &Charge| {
            charge.applies_when_denied() || charge.keeps_order || charge.is_part || is_held(charge)
        };
        if self.is_quiet(now) || charges.iter().any(asks) {
            return None;
        }
        // Nothing is allocated for a call that goes on to the store.
        let asked = Asked::by(charges);
        if !charges.iter().any(|charge| self.is_known_to_deny(charge, &asked, now)) {
            return None;
        }
        let mut tallies = Vec::with_capacity(charges.len());
        for charge in charges {
            let tally = self.known(charge, &asked, now)?;
            if let Fit::Fits { remaining } = tally.fit
                && asked.of(charge) > remaining
            {
                // More than it last had: only the store knows whether that fits now.
                return None;
            }
            tallies.push(tally);
        }
        // The entry that denied may have been evicted meanwhile.
        if !denies_uncharged(charges, &tallies) {
            return None;
        }
        self.metrics.cached();
        Some(tallies)
    }

    /// Learns from the store's answer to a call that was sent at `sent` or later. If the call was denied
    /// uncharged, all tallies are kept, else only the tallies of counters that have an entry.
    pub fn learn(&self, charges: &[Charge], verdict: &Verdict, sent: Instant) {
        let denied = denies_uncharged(charges, &verdict.tallies);
        if !denied && self.is_quiet(sent) {
            return;
        }
        let asked = Asked::by(charges);
        for (charge, tally) in charges.iter().zip(&verdict.tallies) {
            if tally.judged_by != JudgedBy::Counter || charge.is_part || is_held(charge) {
                continue;
            }
            let mut tally = CachedTally::new(*tally, || asked.of(charge), sent);
            if self.denials == Denials::MayBeReserved && !charge.counter.is_in_slot_of_domain() {
                tally = tally.unsure();
            }
            if charge.counter.limit.lease == Lease::Auto {
                tally = tally.leased();
            }
            let Some((hash, mut entries)) = self.entries(&charge.counter) else { return };
            if denied {
                entries.keep(hash, &charge.counter, tally);
                let quiet_from_ms = self.millis(sent + LIFE_MAX).saturating_add(1);
                self.quiet_from_ms.fetch_max(quiet_from_ms, Ordering::Relaxed);
            } else {
                entries.correct(hash, &charge.counter, tally);
            }
        }
    }

    /// Forgets a counter that was reset before `now`, under every limit. Answers to calls sent before
    /// `now` are not kept even if they arrive later: Redis may have run them before the reset.
    pub fn forget(&self, counter: &Counter, now: Instant) {
        if let Some((hash, mut entries)) = self.entries(counter) {
            entries.forget(hash, counter, now);
        }
    }

    /// Forgets the counters to which a call that ended before `now` gave back hits.
    pub fn forget_refunded(&self, charges: &[Charge], now: Instant) {
        for charge in charges.iter().filter(|charge| charge.hits.asks_nothing()) {
            self.forget(&charge.counter, now);
        }
    }

    fn is_known_to_deny(&self, charge: &Charge, asked: &Asked<'_>, now: Instant) -> bool {
        self.known(charge, asked, now).is_some_and(|tally| ledger::denies_uncharged(charge, &tally))
    }

    /// The tally of one of these charges by its entry, if it has one.
    fn known(&self, charge: &Charge, asked: &Asked<'_>, now: Instant) -> Option<Tally> {
        let (hash, entries) = self.entries(&charge.counter)?;
        let known = entries.find(hash, &charge.counter, now)?;
        Some(known.tally(|| asked.of(charge), &charge.counter.limit, now))
    }

    /// Whether it has no entry that counts at `now` or later.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        self.millis(now) >= self.quiet_from_ms.load(Ordering::Relaxed)
    }

    fn millis(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.created);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The hash of a counter, and the shard of its entry; `None` if the cache is off.
    fn entries(&self, counter: &Counter) -> Option<(u64, MutexGuard<'_, Entries>)> {
        let hash = counter.hash_of_identity(&self.hasher);
        // The lower bits choose the bucket in the table of a shard.
        let shards = u64::try_from(self.shards.len()).ok()?;
        let shard = usize::try_from((hash >> 32).checked_rem(shards)?).ok()?;
        let entries = self.shards.get(shard)?;
        Some((hash, entries.lock()))
    }
}

fn denies_uncharged(charges: &[Charge], tallies: &[Tally]) -> bool {
    charges.iter().zip(tallies).any(|(charge, tally)| ledger::denies_uncharged(charge, tally))
}

#[cfg(test)]
mod tests;
