//! Whether the store answers: an outage is one line in the log, and its end another.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

/// So long must a store go without a failure for its outage to be over, in milliseconds. Where some
/// calls fail and others do not, the log would follow the traffic else.
const QUIET_MS: u64 = 1000;

/// Shared by all that notice whether the store answers.
#[derive(Debug, Clone)]
pub struct Outage(Arc<State>);

#[derive(Debug)]
struct State {
    since: Instant,
    down: AtomicBool,
    failed_at_ms: AtomicU64,
}

impl Default for Outage {
    fn default() -> Self {
        let (down, failed_at_ms) = (AtomicBool::new(false), AtomicU64::new(0));
        Self(Arc::new(State { since: Instant::now(), down, failed_at_ms }))
    }
}

impl Outage {
    /// The store gave no answer.
    pub fn failed(&self, error: &dyn Display) {
        self.0.failed_at_ms.store(self.now_ms(), Ordering::Relaxed);
        if !self.0.down.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the store gives no answer; on_store_failure answers the calls that need it");
        }
    }

    /// The store gave one. While all is well this is a single load.
    pub fn answered(&self) {
        if self.0.down.load(Ordering::Relaxed) {
            let quiet = self.now_ms().saturating_sub(self.0.failed_at_ms.load(Ordering::Relaxed));
            if quiet >= QUIET_MS {
                self.ended();
            }
        }
    }

    /// The store is known to be back.
    pub fn ended(&self) {
        if self.0.down.swap(false, Ordering::Relaxed) {
            tracing::info!("the store answers again");
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
