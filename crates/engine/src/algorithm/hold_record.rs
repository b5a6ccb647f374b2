//! What is known of one hold on one counter: a take by id, or that a hold was committed; or that the counter is closed.

use super::account::{Account, HOLD_MS_MAX, Terms};
use crate::time::Timestamp;

/// The record of one hold on one counter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldRecord {
    /// What is known; `None` without a record.
    pub state: Option<HoldState>,
    /// From then on it is of no use.
    pub until: Timestamp,
}

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldState {
    /// These hits were charged at a time, and count until a commit, or for good after the deadline.
    Taken {
        /// The hits.
        hits: u64,
        /// When they were charged.
        made: Timestamp,
        /// From then on a commit is late.
        deadline: Timestamp,
    },
    /// A commit was made.
    Committed,
    /// It holds nothing, and closes the counter.
    Closed {
        /// For how long, in milliseconds.
        for_ms: u64,
    },
}

impl HoldRecord {
    /// How long the time of a reset is kept: as long as a hold may be open, in milliseconds.
    pub const RESET_MS: u64 = HOLD_MS_MAX;

    /// The record of a reset.
    pub fn of_reset(at: Timestamp) -> Self {
        Self { state: Some(HoldState::Committed), until: at.plus_millis(Self::RESET_MS) }
    }

    /// Whether the reset of which this is the record was at this time or later.
    pub fn is_reset_since(&self, made: Timestamp) -> bool {
        self.state.is_some() && made.plus_millis(Self::RESET_MS) <= self.until
    }
}

/// It counts no hits.
impl Account for HoldRecord {
    fn set_back(&mut self, terms: &Terms) {
        if let Some(HoldState::Closed { for_ms }) = self.state {
            self.until = self.until.min(terms.now.plus_millis(for_ms));
        }
    }

    fn refund(&mut self, _: u64, _: &Terms) {}

    fn give_back(&mut self, _: u64, _: u64, _: Timestamp, _: Option<&str>, _: &Terms) {}

    fn fits(&self, _: u64, _: &Terms) -> bool {
        true
    }

    fn charge(&mut self, _: u64, _: Option<&str>, _: &Terms) {}

    fn is_unused(&self) -> bool {
        self.state.is_none()
    }

    fn used(&self, _: &Terms) -> u64 {
        0
    }

    fn remaining(&self, _: &Terms) -> u64 {
        0
    }

    fn ends(&self, _: &Terms) -> Timestamp {
        self.until
    }
}
