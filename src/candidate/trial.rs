//! What the candidate and the rules in force have said of the same calls, since both are compared.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    engine::{key::Counter, rule::Algorithm, time::Timestamp},
    text::named::named,
};

named! {
    /// What the candidate says of a descriptor.
    #[derive(Debug, Clone, Copy)]
    pub(super) enum Compared {
        Same = "same",
        Denied = "denied",
        Admitted = "admitted",
    }
}

#[derive(Debug, Default)]
pub(super) struct Trial {
    /// The versions that are compared: the candidate's, and the one in force.
    pub(super) versions: [String; 2],
    /// Since when all hits are on the counters of the candidate.
    pub(super) since: Timestamp,
    /// By domain and rule: how often each was [`Compared`].
    by_rule: BTreeMap<(Arc<str>, Arc<str>), [u64; 3]>,
    pub(super) left_out: u64,
}

impl Trial {
    pub(super) fn new(versions: [String; 2], since: Timestamp) -> Self {
        Self { versions, since, ..Self::default() }
    }

    pub(super) fn add(&mut self, domain: &Arc<str>, rule: &Arc<str>, result: Compared) {
        let counts = self.by_rule.entry((Arc::clone(domain), Arc::clone(rule))).or_default();
        if let Some(count) = counts.get_mut(result as usize) {
            *count += 1;
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (Arc<str>, Arc<str>, [u64; 3])> {
        let counts = self.by_rule.iter();
        counts.map(|((domain, rule), counts)| (Arc::clone(domain), Arc::clone(rule), *counts))
    }

    /// Whether the candidate's counter has all hits that count at `at`.
    pub(super) fn is_whole(&self, counter: Option<&Counter>, at: Timestamp) -> bool {
        let Some(limit) = counter.map(|counter| &counter.limit) else { return true };
        match limit.algorithm {
            Algorithm::FixedWindow => limit.window.at(at).start >= self.since,
            // The window before counts too, or a bucket may have been in debt for as long.
            _ => self.since.plus_millis(limit.window_ms().saturating_mul(2)) <= at,
        }
    }
}
