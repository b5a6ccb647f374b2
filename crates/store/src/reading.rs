//! What a counter is found to hold.

use tollkeeper_engine::ledger::CounterState;

#[derive(Debug, Clone)]
pub enum CounterReading {
    State(CounterState),
    /// It holds something other than a count.
    Corrupt,
    /// The store gives no answer, for a reason that names the server.
    NoAnswer(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// The counter stays as it is.
    No,
    /// It stays as it is, and what it remembers is read too, each hit or call.
    Show,
    /// It stays as it is, but nothing that was charged before is given back later.
    Holds,
    /// The counter starts again from zero. No hit is lost between reading and reset.
    Yes,
}

impl Clear {
    /// Whether nothing is given back later that was charged before.
    pub(crate) const fn ends_holds(self) -> bool {
        matches!(self, Self::Holds | Self::Yes)
    }
}
