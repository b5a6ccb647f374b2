//! How many counters there may be, and what is told of those that were given up for others.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::telemetry::{LogThrottle, MemoryMetrics};

/// Fewer are not worth a sweep.
const SWEEP_FROM: usize = 1024;

/// The room that all shards share.
#[derive(Debug)]
pub(super) struct Capacity {
    /// So many counters are kept at most.
    pub(super) counters_max: usize,
    kept: AtomicUsize,
    metrics: Option<MemoryMetrics>,
    log_throttle: LogThrottle,
}

impl Capacity {
    /// Capacity for so many.
    pub(super) fn new(counters_max: usize, metrics: Option<MemoryMetrics>) -> Self {
        Self {
            counters_max,
            kept: AtomicUsize::new(0),
            metrics,
            log_throttle: LogThrottle::default(),
        }
    }

    /// How many places are taken.
    pub(super) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    pub(super) fn is_worth_sweeping(&self) -> bool {
        self.kept() >= SWEEP_FROM
    }

    /// Takes a place, if one is left.
    pub(super) fn take(&self) -> bool {
        let more = |kept| Some(kept + 1).filter(|kept| *kept <= self.counters_max);
        self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Takes a place that is not there.
    pub(super) fn exceed(&self) {
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives so many places back.
    pub(super) fn free(&self, places: usize) {
        if places > 0 {
            self.kept.fetch_sub(places, Ordering::Relaxed);
        }
    }

    /// Tells of live counters that were given up. Not to be called under a lock.
    pub(super) fn tell(&self, given_up: u64) {
        if given_up == 0 {
            return;
        }
        if let Some(metrics) = &self.metrics {
            metrics.evicted(given_up);
        }
        if self.log_throttle.should_log("evicted") {
            let counters_max = self.counters_max;
            tracing::warn!(
                counters_max,
                "memory is full of live counters, and new ones replace those that have used the \
                 smallest part of their limit, which start again from zero; to keep more, raise \
                 --memory-counters-max (logged at most once a minute)"
            );
        }
    }
}
