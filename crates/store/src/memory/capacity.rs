//! The limits on the number and the size of counters, and the reports of live ones that were evicted.

use tollkeeper_base::telemetry::{LogCause, due_line};

use super::metrics::{MemoryMetrics, MemorySize};
use crate::sync::atomic::{AtomicUsize, Ordering};

/// With fewer counters a sweep is not worthwhile.
const SWEPT_FROM: usize = 1024;

#[derive(Debug)]
pub(super) struct Capacity {
    pub(super) max: MemorySize,
    kept: AtomicUsize,
    bytes: AtomicUsize,
    metrics: Option<MemoryMetrics>,
}

impl Capacity {
    /// Capacity for `shards` shards, each with a place for its first counter.
    pub(super) fn new(max: MemorySize, shards: usize, metrics: Option<MemoryMetrics>) -> Self {
        Self { max, kept: AtomicUsize::new(shards), bytes: AtomicUsize::new(0), metrics }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_worth_sweeping(&self) -> bool {
        self.kept.load(Ordering::Relaxed) >= SWEPT_FROM
    }

    /// Reserves a place for one more counter; `false` if there is none.
    pub(super) fn reserve(&self) -> bool {
        self.kept
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |kept| {
                (kept < self.max.counters).then_some(kept + 1)
            })
            .is_ok()
    }

    /// Releases the places of `counters` counters.
    pub(super) fn release(&self, counters: usize) {
        if counters > 0 {
            self.kept.fetch_sub(counters, Ordering::Relaxed);
        }
    }

    /// Notes that what counters take has changed from `before` to `after`.
    pub(super) fn resize(&self, before: usize, after: usize) {
        if before < after {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.bytes() > self.max.bytes
    }

    /// Reports live counters that were evicted. Must not be called under a lock.
    pub(super) fn report_evicted(&self, evicted: u64) {
        if evicted == 0 {
            return;
        }
        if let Some(metrics) = &self.metrics {
            metrics.evicted.add(evicted, &[]);
        }
        if let Some(line) = due_line(LogCause::Evicted, "") {
            let MemorySize { counters: counters_max, bytes: size_max } = self.max;
            tracing::warn!(
                counters_max,
                size_max,
                suppressed = line.suppressed,
                "memory is full of live counters: new ones evict those that have used the smallest part of \
                 their limit, which then start again from zero; to keep more, raise --memory-counters-max \
                 or --memory-size-max (logged at most once a minute)"
            );
        }
    }
}
