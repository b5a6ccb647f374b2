//! What the threads of a run share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio_util::sync::CancellationToken;

use super::load::Load;

/// What the threads of a run share: the load, and how much of it remains.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) load: Load,
    /// Cancelled when no further calls may be made.
    pub(super) ended: CancellationToken,
    /// Measured calls that are still to be made.
    calls_remaining: AtomicU64,
    answered: AtomicU64,
}

impl Workload {
    pub(super) fn new(load: Load) -> Self {
        Self {
            ended: CancellationToken::new(),
            calls_remaining: AtomicU64::new(load.calls_max.unwrap_or(u64::MAX)),
            answered: AtomicU64::new(0),
            load,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.is_cancelled() || !self.has_calls()
    }

    pub(super) fn has_calls(&self) -> bool {
        self.calls_remaining.load(Relaxed) > 0
    }

    /// Takes one of the measured calls, if any is left.
    pub(super) fn take_call(&self) -> Option<u64> {
        self.calls_remaining
            .fetch_update(Relaxed, Relaxed, |remaining| remaining.checked_sub(1))
            .ok()
    }

    pub(super) fn count_answer(&self) {
        self.answered.fetch_add(1, Relaxed);
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }
}
