//! What charges do with holds, and what becomes of commits.

use crate::{
    algorithm::Algorithm, hold::Abandoned, hold_id::HoldId, key::Counter, time::Timestamp,
};

/// What a charge does with holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldAction {
    /// Opens a hold without an id of its own beside the charge, if both fit; see [`HoldBy::Counter`](crate::hold::HoldBy::Counter).
    Open {
        /// Common to all counters of the take.
        id: HoldId,
        /// The hits that it holds on this counter.
        estimate: u64,
        /// How long it stays open.
        lifetime_ms: u64,
        /// What becomes of it then.
        abandoned: Abandoned,
    },
    /// Ends the oldest hold of the counter, on all counters of its take. The charge is the true number.
    EndOldest {
        /// What becomes of holds whose time has passed.
        abandoned: Abandoned,
    },
    /// Opens and ends no hold: the charge counts beside those that are open.
    Beside {
        /// What becomes of holds whose time has passed.
        abandoned: Abandoned,
    },
    /// Charges the hits of the charge if the id is new; else commits.
    ById {
        /// The caller's id.
        id: HoldId,
        /// The true number, if this is a commit; without one, the estimate stands.
        used: Option<u64>,
        /// Whether the call states what was used, or how the work has ended: then it takes nothing, and what was used is
        /// charged even if the id is new.
        is_end: bool,
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
    /// Holds nothing: when the charge does not fit, the counter is closed for a time, in which nothing fits.
    Ban {
        /// How long.
        for_ms: u64,
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
    /// What becomes of open holds whose time has passed, if it acts on open holds.
    pub(super) const fn abandoned(&self) -> Option<Abandoned> {
        match *self {
            Self::Open { abandoned, .. }
            | Self::EndOldest { abandoned }
            | Self::Beside { abandoned } => Some(abandoned),
            _ => None,
        }
    }

    /// The key of what is known of holds on a counter, if it is not part of the counter itself.
    pub fn key_beside(&self, counter: &Counter) -> Option<String> {
        match (*self, &counter.limit.algorithm) {
            (Self::ById { id, .. }, _) => Some(counter.hold_record_key(id)),
            (Self::Ban { .. }, _) => Some(counter.ban_key()),
            (Self::Occupy { .. }, _) | (_, Algorithm::InFlight { .. }) => None,
            (Self::Commit { id, .. }, _) => Some(counter.hold_record_key(id)),
            (Self::Open { .. } | Self::EndOldest { .. } | Self::Beside { .. }, _) => {
                Some(counter.open_holds_key())
            }
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
