//! Holds: hits that are charged for work under way, until a commit replaces them by the true number.
//!
//! A take charges an estimate. A commit gives back what was not used, or charges what was used beyond it, once. Which
//! commit belongs to which take is known by a token in the answer, by an id in both calls, or not at all; see [`HoldBy`].

mod learned;

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

pub use self::learned::LearnedEstimate;
use crate::{
    algorithm::account::{COUNT_MAX, HOLD_MS_MAX},
    text::named::named,
};

/// The names of holds that are leases, in place of the number of a limit: of a process, and of a proxy.
const LEASE: u32 = u32::MAX;
const ASSIGNMENT: u32 = u32::MAX - 1;

/// How long a caller may take to give back what it has leased and not spent.
const LEASE_GIVEN_BACK_WITHIN_MS: u64 = 10_000;

/// The same for hits that are assigned to a proxy, which reports some seconds later what it has used.
const ASSIGNMENT_GIVEN_BACK_WITHIN_MS: u64 = 60_000;

/// How a limit holds hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldPolicy {
    /// How long a hold may stay open, in milliseconds, from 1,000 to [`LIFETIME_MS_MAX`](Self::LIFETIME_MS_MAX).
    pub lifetime_ms: u64,
    /// How a commit finds its take.
    pub by: HoldBy,
    /// The hits that a take charges.
    pub estimate: Estimate,
    /// Hits that one unit of each kind of usage adds, fewer than 0 if another kind includes it and costs more; empty if
    /// usage is a plain number.
    pub weights: Vec<(Box<str>, i64)>,
    /// Ends of calls after which nothing was used, unless the commit has a number: response flags, codes, or classes of
    /// codes such as `5xx`. `None` for [`UNUSED_ON`](Self::UNUSED_ON).
    pub unused_on: Option<Vec<Box<str>>>,
    /// What becomes of a hold that no commit ends.
    pub abandoned: Abandoned,
    /// Identifies the limit in tokens, across reloads and replicas: see [`limit_number`].
    pub number: u32,
}

named! {
    /// How a commit finds its take.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum HoldBy {
        /// By the token in the answer to the take.
        Token = "token",
        /// By the entry `hold.id`, which is equal in both calls.
        Id = "id",
        /// Not at all: a commit ends the oldest hold of its counter.
        Counter = "counter",
    }
}

named! {
    /// What becomes of a hold whose time has passed without a commit.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Abandoned {
        /// The estimate remains charged.
        Keep = "keep",
        /// Nothing remains charged.
        Release = "release",
    }
}

/// The hits that a take charges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// For a take that announces no number; if absent, the hits of the take.
    pub default: Option<u64>,
    /// The least estimate.
    pub min: u64,
    /// The largest estimate.
    pub max: u64,
    /// What commits have shown, if it replaces `default`.
    pub learned: Option<Arc<LearnedEstimate>>,
}

impl HoldPolicy {
    /// The longest time that a hold may stay open: seven days.
    pub const LIFETIME_MS_MAX: u64 = HOLD_MS_MAX;

    /// How far ahead the end of a hold may lie: the longest lifetime, and a day for clocks that differ.
    pub const AHEAD_MS_MAX: u64 = Self::LIFETIME_MS_MAX + 86_400_000;

    /// Most items of `weights`, and of `unused_on`, since tokens repeat both, and most bytes of the name of each.
    pub const ITEMS_MAX: usize = 16;
    /// See [`ITEMS_MAX`](Self::ITEMS_MAX).
    pub const NAME_BYTES_MAX: usize = 32;

    /// Envoy's flags of calls that reached no upstream: connection failure, no healthy upstream, overflow, no route, no
    /// cluster, rate limited.
    /// <https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage>
    pub const UNUSED_ON: [&str; 6] = ["UF", "UH", "UO", "NR", "NC", "RL"];

    /// A policy by token without estimate, with the defaults of everything else.
    pub fn new(lifetime_ms: u64) -> Self {
        Self {
            lifetime_ms,
            by: HoldBy::Token,
            estimate: Estimate { default: None, min: 0, max: COUNT_MAX, learned: None },
            weights: Vec::new(),
            unused_on: None,
            abandoned: Abandoned::Keep,
            number: 0,
        }
    }

    /// The policy of hits that a caller has leased.
    pub fn lease() -> Self {
        Self { number: LEASE, ..Self::new(LEASE_GIVEN_BACK_WITHIN_MS) }
    }

    /// The policy of hits that are assigned to a proxy.
    pub fn assignment() -> Self {
        Self { number: ASSIGNMENT, ..Self::new(ASSIGNMENT_GIVEN_BACK_WITHIN_MS) }
    }

    /// Whether it is that of hits that a caller has leased, or that are assigned to a proxy.
    pub const fn is_lease(&self) -> bool {
        self.number == LEASE || self.is_assignment()
    }

    /// Whether it is that of hits that are assigned to a proxy.
    pub const fn is_assignment(&self) -> bool {
        self.number == ASSIGNMENT
    }

    /// The ends of calls after which nothing was used.
    pub fn unused_ends(&self) -> impl Iterator<Item = &str> {
        let usual = if self.unused_on.is_none() { &Self::UNUSED_ON[..] } else { &[] };
        usual.iter().copied().chain(self.unused_on.iter().flatten().map(|end| &**end))
    }

    /// The estimate that a take charges to a limit of `capacity` hits: what the call announces (`asked`), else the learned or
    /// the default one, else its `hits`.
    pub fn estimate(&self, asked: Option<u64>, hits: u64, capacity: u64) -> u64 {
        self.estimate_of(asked, hits, capacity).0
    }

    /// The [`estimate`](Self::estimate), and its source as a phrase.
    pub fn estimate_of(&self, asked: Option<u64>, hits: u64, capacity: u64) -> (u64, &'static str) {
        let Estimate { default, min, max, learned } = &self.estimate;
        let learned = learned.as_ref().map(|learned| learned.estimate());
        let (estimate, source) = match (asked, learned, default) {
            (Some(asked), _, _) => (asked, "announced by the call"),
            // A larger estimate would never fit beside another.
            (None, Some(learned), _) => {
                (learned.min((capacity / 2).max(1)), "learned from commits")
            }
            (None, None, Some(default)) => (*default, "the rule's default"),
            (None, None, None) => (hits, "the hits of the call"),
        };
        (estimate.clamp(*min, *max), source)
    }
}

/// The number by which tokens name a limit: the same on every replica, and after a reload.
pub fn limit_number(domain: &str, path: &str, index: usize) -> u32 {
    let digest = Sha256::digest(format!("{domain}\n{path}\n{index}"));
    let number = digest.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte));
    number.min(ASSIGNMENT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_what_is_asked_or_learned_or_the_default_within_its_bounds() {
        let mut policy = HoldPolicy::new(600_000);
        assert_eq!(policy.estimate(Some(300), 1, 1000), 300);
        assert_eq!(policy.estimate(None, 7, 1000), 7);
        policy.estimate = Estimate { default: Some(50), min: 10, max: 400, learned: None };
        assert_eq!(policy.estimate(None, 7, 1000), 50);
        assert_eq!(policy.estimate(Some(1), 7, 1000), 10);
        assert_eq!(policy.estimate(Some(COUNT_MAX), 7, 1000), 400);
        let learned = Arc::new(LearnedEstimate::new(50));
        policy.estimate.learned = Some(Arc::clone(&learned));
        assert_eq!(policy.estimate(None, 7, 1000), 50, "nothing is learned yet");
        (0..200).for_each(|_| learned.learn(200));
        assert_eq!(policy.estimate(None, 7, 1000), 200);
        assert_eq!(policy.estimate(None, 7, 100), 50, "half of the limit");
    }

    #[test]
    fn leases_of_processes_and_of_proxies_have_names_that_no_limit_has() {
        for (policy, is_lease, is_assignment) in [
            (HoldPolicy::new(1000), false, false),
            (HoldPolicy::lease(), true, false),
            (HoldPolicy::assignment(), true, true),
        ] {
            assert_eq!((policy.is_lease(), policy.is_assignment()), (is_lease, is_assignment));
        }
        assert_eq!(HoldPolicy::assignment().number, u32::MAX - 1);
    }

    #[test]
    fn the_number_of_a_limit_stays_the_same() {
        assert_eq!(limit_number("shop", "user", 0), 13_177_342);
        assert_eq!(limit_number("shop", "user", 1), 1_433_100_021);
    }

    #[test]
    fn the_ends_after_which_nothing_was_used_are_those_of_the_rule_in_place_of_the_usual_ones() {
        let mut policy = HoldPolicy::new(1000);
        assert_eq!(policy.unused_ends().collect::<Vec<_>>(), ["UF", "UH", "UO", "NR", "NC", "RL"]);
        policy.unused_on = Some(vec!["5xx".into()]);
        assert_eq!(policy.unused_ends().collect::<Vec<_>>(), ["5xx"]);
    }
}
