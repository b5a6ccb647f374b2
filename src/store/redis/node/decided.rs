//! What a server answers to a call, or why it does not.

use redis::RedisError;

use crate::{
    engine::{
        ledger::{CounterState, Verdict},
        time::Timestamp,
    },
    store::StoreError,
};

/// How many times a call is sent whose window is found stale, or whose node has left. A window is stale once if the clocks
/// differ, and once more if it ends meanwhile.
pub(crate) const ATTEMPTS_MAX: u8 = 3;

/// What a server has decided.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    pub(crate) verdict: Verdict,
    /// The counter's state, if it was to be read.
    pub(crate) state: Option<CounterState>,
    /// The server's time when it decided.
    pub(crate) at: Timestamp,
}

pub(crate) type CallAnswer = Result<Decided, NotDecided>;

/// Why a node has not decided a call.
#[derive(Debug, Clone)]
pub(crate) enum NotDecided {
    /// The store failed. The call may have been charged; if it was not sent, the batcher has kept its debits.
    Failed(StoreError),
    /// The store failed before the call was sent. Keeping its debits is left to the caller.
    NotSent(StoreError),
    /// The windows of a call that is sent once more have ended.
    WindowEnded,
    /// The node has left, or does not have all keys of the call now, and has done nothing. A call that went by itself has
    /// the server's error, which may name another.
    Elsewhere(Option<RedisError>),
}

impl NotDecided {
    pub(crate) const fn was_not_sent(&self) -> bool {
        matches!(self, Self::NotSent(_))
    }

    /// Whether the same work may succeed later.
    pub(crate) const fn may_pass(&self) -> bool {
        !matches!(self, Self::Failed(StoreError::Corrupt(_)))
    }

    /// The store's error; `no_node` makes it where no node has the keys.
    pub(crate) fn into_store_error(self, no_node: impl FnOnce() -> StoreError) -> StoreError {
        match self {
            Self::Failed(error) | Self::NotSent(error) => error,
            Self::WindowEnded => StoreError::ClockUnsteady,
            Self::Elsewhere(_) => no_node(),
        }
    }
}
