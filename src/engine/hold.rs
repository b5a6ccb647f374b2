//! Holds: hits that are charged for work under way, until a commit replaces them by the true number.
//!
//! A take charges an estimate. A commit gives back what was not used, or charges what was used beyond it, once. Which
//! commit belongs to which take is told by a token in the answer, by an id in both calls, or not at all; see [`HoldBy`].

mod learned;
mod parameters;

use std::{fmt, sync::Arc};

use sha2::{Digest as _, Sha256};

pub use self::{learned::LearnedEstimate, parameters::Parameters};
use crate::engine::{
    algorithm::{Algorithm, account::COUNT_MAX},
    key::Counter,
    ledger::Charge,
    request::Hits,
    time::Timestamp,
};

/// How a limit holds hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldPolicy {
    /// How long a hold may stay open, in milliseconds, from 1,000 to [`LIFETIME_MS_MAX`](Self::LIFETIME_MS_MAX).
    pub lifetime_ms: u64,
    /// How a commit finds its take.
    pub by: HoldBy,
    /// The hits that a take charges.
    pub estimate: Estimate,
    /// Hits for one unit of each kind of usage; empty if usage is a plain number.
    pub weights: Vec<(Box<str>, u64)>,
    /// Ends of calls after which nothing was used, unless the commit has a number: response flags, codes, or classes of
    /// codes such as `5xx`.
    pub unused_on: Vec<Box<str>>,
    /// What becomes of a hold that no commit ends.
    pub abandoned: Abandoned,
    /// Identifies the limit in tokens, across reloads and replicas: see [`limit_number`].
    pub number: u32,
}

/// How a commit finds its take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldBy {
    /// By the token in the answer to the take.
    Token,
    /// By the entry `hold.id`, which is equal in both calls.
    Id,
    /// Not at all: a commit ends the oldest hold of its counter.
    Counter,
}

/// What becomes of a hold whose time has passed without a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abandoned {
    /// The estimate remains charged.
    Keep,
    /// Nothing remains charged.
    Release,
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

impl HoldBy {
    /// Every form.
    pub const ALL: [Self; 3] = [Self::Token, Self::Id, Self::Counter];

    /// The name in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Id => "id",
            Self::Counter => "counter",
        }
    }
}

impl HoldPolicy {
    /// The longest time that a hold may stay open: seven days.
    pub const LIFETIME_MS_MAX: u64 = 7 * 86_400_000;

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
            unused_on: Self::UNUSED_ON.map(Into::into).into(),
            abandoned: Abandoned::Keep,
            number: 0,
        }
    }

    /// The hits that a take charges to a limit of `capacity` hits. It announces `asked`, and counts `hits` without a hold.
    pub fn estimate(&self, asked: Option<u64>, hits: u64, capacity: u64) -> u64 {
        let Estimate { default, min, max, learned } = &self.estimate;
        let learned = learned.as_ref().and_then(|learned| learned.estimate());
        // A larger estimate would never fit beside another.
        let learned = learned.map(|learned| learned.min((capacity / 2).max(1)));
        asked.or(learned).or(*default).unwrap_or(hits).clamp(*min, *max)
    }

    /// The hits that a commit of a hold of `held` hits stands for, by its parameters: all of them if it has no number,
    /// unless its end shows that no work was done.
    pub fn used(&self, commit: Parameters<'_>, held: u64) -> u64 {
        match commit.used(&self.weights) {
            Some(used) => used,
            None if commit.ended_in(&self.unused_on) => 0,
            None => held,
        }
    }
}

/// Identifies a hold among those of its counters: the nonce of a token, or the digest of a caller's id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(u128);

impl HoldId {
    /// Number of bytes of a nonce.
    pub const NONCE_BYTES: usize = 12;

    /// An id with these bits.
    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// The id of this nonce.
    pub fn from_nonce(nonce: [u8; Self::NONCE_BYTES]) -> Self {
        Self(nonce.iter().fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }

    /// The nonce that it is, if it is one.
    pub fn nonce(self) -> [u8; Self::NONCE_BYTES] {
        let mut nonce = [0; Self::NONCE_BYTES];
        for (byte, of_id) in nonce.iter_mut().zip(self.0.to_be_bytes().into_iter().skip(4)) {
            *byte = of_id;
        }
        nonce
    }

    /// The nonce that comes this many after it.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        let nonces = u128::MAX >> (128 - 8 * Self::NONCE_BYTES);
        Self(self.0.wrapping_add(count as u128) & nonces)
    }

    /// The id that a caller gives.
    pub fn from_caller(id: &[u8]) -> Self {
        let digest = Sha256::digest(id);
        // As long as a nonce, so that all ids are written with as many digits.
        Self(digest.iter().take(Self::NONCE_BYTES).fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }
}

/// As keys and members in Redis write it.
impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:024x}", self.0)
    }
}

/// What a charge does with holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldAction {
    /// Opens a hold without an id of its own beside the charge, if both fit; see [`HoldBy::Counter`].
    Open {
        /// Common to all counters of the take.
        id: HoldId,
        /// The hits of each hold on this counter.
        estimate: u64,
        /// How long it stays open.
        lifetime_ms: u64,
        /// What becomes of it then.
        abandoned: Abandoned,
    },
    /// Ends the oldest hold of the counter, on all counters of its take. The charge is the true number.
    EndOldest {
        /// The hits of each hold on this counter.
        estimate: u64,
        /// What becomes of holds whose time has passed.
        abandoned: Abandoned,
    },
    /// Charges the hits of the charge if the id is new; else commits.
    ById {
        /// The caller's id.
        id: HoldId,
        /// The true number, if this is a commit; without one, the estimate stands.
        used: Option<u64>,
        /// How long the hold stays open.
        lifetime_ms: u64,
    },
    /// Occupies places of an `in_flight` counter.
    Occupy {
        /// The token's nonce.
        id: HoldId,
        /// How long it stays open.
        lifetime_ms: u64,
    },
    /// Replaces the hits that a take with a token charged by the true number. It may be made several times: only the first
    /// has an effect.
    Commit {
        /// The token's nonce.
        id: HoldId,
        /// The hits that the take charged.
        held: u64,
        /// The true number.
        used: u64,
        /// The store's time when the take was charged.
        made: Timestamp,
        /// From then on the commit is refused.
        deadline: Timestamp,
    },
}

impl HoldAction {
    /// The key of what is known of holds on a counter, if it is not part of the counter itself.
    pub fn key_beside(&self, counter: &Counter) -> Option<String> {
        match (*self, &counter.limit.algorithm) {
            (Self::ById { id, .. }, _) => Some(counter.hold_record_key(id)),
            (Self::Occupy { .. }, _) | (_, Algorithm::InFlight { .. }) => None,
            (Self::Commit { id, .. }, _) => Some(counter.hold_record_key(id)),
            (Self::Open { .. } | Self::EndOldest { .. }, _) => Some(counter.open_holds_key()),
        }
    }
}

/// What has become of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The true number counts.
    Applied,
    /// It was made before; nothing has changed.
    Repeated,
    /// The hold's time has passed; nothing has changed.
    Late,
}

/// A hold that a token names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenHold {
    /// The nonce.
    pub id: HoldId,
    /// What was charged, at least one.
    pub charges: Vec<HeldCharge>,
}

/// A charge of a take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldCharge {
    /// The counter, with a limit that has a [`HoldPolicy`].
    pub counter: Counter,
    /// The hits that were charged.
    pub hits: u64,
    /// The store's time when they were charged.
    pub made: Timestamp,
}

impl HeldCharge {
    /// What replaces it by the true number, which the parameters of the commit tell.
    fn commit(&self, id: HoldId, parameters: Parameters<'_>) -> Option<Charge> {
        let policy = self.counter.limit.hold.as_ref()?;
        let (held, made) = (self.hits, self.made);
        let used = policy.used(parameters, held);
        let deadline = made.plus_millis(policy.lifetime_ms);
        let hold = HoldAction::Commit { id, held, used, made, deadline };
        let charge = Charge::new(self.counter.clone(), Hits::Refund(0));
        Some(Charge { hold: Some(hold), ..charge })
    }
}

impl TakenHold {
    /// The charges that commit it.
    pub fn commit(&self, parameters: Parameters<'_>) -> impl Iterator<Item = Charge> {
        self.charges.iter().filter_map(move |charge| charge.commit(self.id, parameters))
    }
}

/// The number by which tokens name a limit: the same on every replica, and after a reload.
pub fn limit_number(domain: &str, path: &str, index: usize) -> u32 {
    let digest = Sha256::digest(format!("{domain}\n{path}\n{index}"));
    digest.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_survives_as_an_id_and_is_written_with_24_digits() {
        let nonce = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255];
        assert_eq!(HoldId::from_nonce(nonce).nonce(), nonce);
        assert_eq!(HoldId::from_nonce(nonce).to_string(), "000102030405060708090aff");
    }

    #[test]
    fn an_estimate_is_what_is_asked_or_learned_or_the_default_within_its_bounds() {
        let mut policy = HoldPolicy::new(600_000);
        assert_eq!(policy.estimate(Some(300), 1, 1000), 300);
        assert_eq!(policy.estimate(None, 7, 1000), 7);
        policy.estimate = Estimate { default: Some(50), min: 10, max: 400, learned: None };
        assert_eq!(policy.estimate(None, 7, 1000), 50);
        assert_eq!(policy.estimate(Some(1), 7, 1000), 10);
        assert_eq!(policy.estimate(Some(COUNT_MAX), 7, 1000), 400);
        let learned = Arc::new(LearnedEstimate::default());
        policy.estimate.learned = Some(Arc::clone(&learned));
        assert_eq!(policy.estimate(None, 7, 1000), 50, "nothing is learned yet");
        learned.learn(200);
        assert_eq!(policy.estimate(None, 7, 1000), 200);
        assert_eq!(policy.estimate(None, 7, 100), 50, "half of the limit");
    }
}
