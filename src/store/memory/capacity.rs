//! The limit on the number of counters, and the reports of live ones that were evicted.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::metrics::MemoryMetrics;
use crate::telemetry::{LogCause, due_line};

/// With fewer counters a sweep is not worthwhile.
const SWEEP_FROM: usize = 1024;

/// The capacity that all shards share.
#[derive(Debug)]
pub(super) struct Capacity {
    /// The most counters that are kept.
    pub(super) counters_max: usize,
    kept: AtomicUsize,
    metrics: Option<MemoryMetrics>,
}

impl Capacity {
    /// Capacity for `counters_max` counters.
    pub(super) fn new(counters_max: usize, metrics: Option<MemoryMetrics>) -> Self {
        Self { counters_max, kept: AtomicUsize::new(0), metrics }
    }

    /// The number of counters.
    pub(super) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    pub(super) fn is_worth_sweeping(&self) -> bool {
        self.kept() >= SWEEP_FROM
    }

    /// Reserves capacity for one more counter; `false` if the store is full.
    pub(super) fn reserve(&self) -> bool {
        self.kept
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |kept| {
                (kept < self.counters_max).then_some(kept + 1)
            })
            .is_ok()
    }

    /// Adds one counter beyond the capacity.
    pub(super) fn exceed(&self) {
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases the capacity of `counters` counters.
    pub(super) fn release(&self, counters: usize) {
        if counters > 0 {
            self.kept.fetch_sub(counters, Ordering::Relaxed);
        }
    }

    /// Reports live counters that were evicted. Must not be called under a lock.
    pub(super) fn report_evicted(&self, evicted: u64) {
        if evicted == 0 {
            return;
        }
        if let Some(metrics) = &self.metrics {
            metrics.evicted(evicted);
        }
        if let Some(line) = due_line(LogCause::Evicted, "") {
            let counters_max = self.counters_max;
            tracing::warn!(
                counters_max,
                suppressed = line.suppressed,
                "memory is full of live counters: new ones evict those that have used the smallest part of \
                 their limit, which then start again from zero; to keep more, raise --memory-counters-max \
                 (logged at most once a minute)"
            );
        }
    }
}
