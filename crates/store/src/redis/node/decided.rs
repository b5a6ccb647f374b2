//! What a server answers to a call, or why it does not.

use redis::RedisError;
use tollkeeper_engine::{
    ledger::{CounterState, Verdict},
    time::Timestamp,
};

use super::owed::Owed;
use crate::StoreError;

/// How many times a call is sent whose window is found stale, or whose node has left. A window is stale once if the clocks
/// differ, and once more if it ends meanwhile.
pub(crate) const ATTEMPTS_MAX: u8 = 3;

#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) verdict: Verdict,
    /// The counter's state, if it was to be read.
    pub(crate) state: Option<CounterState>,
    /// The server's time when it decided.
    pub(crate) at: Timestamp,
    /// The work, to be [settled](Owed::settle) when the caller has this.
    pub(crate) owed: Owed,
}

impl Decided {
    /// The verdict, which its caller has then.
    pub(crate) fn delivered(self) -> Verdict {
        self.owed.settle();
        self.verdict
    }
}

pub(crate) type CallAnswer = Result<Decided, NotDecided>;

/// Why a node has not decided a call.
#[derive(Debug)]
pub(crate) enum NotDecided {
    /// The store failed. The call may have been charged; what must not be lost of it is kept.
    Failed(StoreError),
    /// The windows of a call that is sent once more have ended.
    WindowEnded,
    /// The node has left, or does not have all keys of the call now, and has done nothing. A call that went by itself has
    /// the server's error, which may name another. The work comes back.
    Elsewhere(Option<RedisError>, Owed),
}

impl NotDecided {
    /// The store's error; `no_node` makes it where no node has the keys.
    pub(crate) fn into_store_error(self, no_node: impl FnOnce() -> StoreError) -> StoreError {
        match self {
            Self::Failed(error) => error,
            Self::WindowEnded => StoreError::ClockUnsteady,
            Self::Elsewhere(..) => no_node(),
        }
    }
}
