//! What the candidate and the rules in force have said of the same calls, since both are compared.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    engine::{
        rule::{Algorithm, Limit},
        time::Timestamp,
    },
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

/// The domain of a rule, and its path.
pub(super) type RuleName = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct Trial {
    /// The versions that are compared, the candidate's and the one in force, and the order to do so.
    pub(super) subject: [String; 3],
    /// Since when all hits are on the counters of the candidate.
    pub(super) since: Timestamp,
    /// How often descriptors of each rule were [`Compared`] with each result.
    by_rule: BTreeMap<RuleName, [u64; 3]>,
    pub(super) left_out: u64,
}

impl Trial {
    pub(super) fn new(subject: [String; 3], since: Timestamp) -> Self {
        Self { subject, since, ..Self::default() }
    }

    pub(super) fn add(&mut self, domain: &Arc<str>, rule: &Arc<str>, result: Compared) {
        let counts = self.by_rule.entry((Arc::clone(domain), Arc::clone(rule))).or_default();
        if let Some(count) = counts.get_mut(result as usize) {
            *count += 1;
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (RuleName, [u64; 3])> {
        self.by_rule.iter().map(|(name, counts)| (name.clone(), *counts))
    }

    /// Whether the candidate's counter of this limit has all hits that count at `at`, also if they have closed it for a time.
    pub(super) fn is_whole(&self, limit: &Limit, ban_ms: u64, at: Timestamp) -> bool {
        let since = self.since.plus_millis(limit.ban_ms.unwrap_or(0).max(ban_ms));
        match limit.algorithm {
            Algorithm::FixedWindow => limit.window.at(at).start >= since,
            // The window before counts too, or a bucket may have been in debt for as long.
            _ => since.plus_millis(limit.window_ms().saturating_mul(2)) <= at,
        }
    }
}
