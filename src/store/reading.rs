//! What a counter is found to hold.

use crate::engine::ledger::CounterState;

/// What a look at a counter has found.
#[derive(Debug, Clone)]
pub enum CounterReading {
    /// Its state.
    State(CounterState),
    /// It holds something other than a count.
    Corrupt,
    /// The store gives no answer, for a reason that names the server.
    NoAnswer(String),
}

/// Whether a look at a counter resets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// The counter stays as it is.
    No,
    /// The counter starts again from zero. No hit is lost between the look and the reset.
    Yes,
}
