//! Metrics of counters in memory.

use opentelemetry::{KeyValue, metrics::Counter};
use tollkeeper_base::telemetry::{Observe, Observed, float, instruments};

instruments! {
    pub struct MemoryMetrics {
        evicted: Counter<u64> => COUNTERS_EVICTED = Counter("ratelimit.counters.evicted", [],
            "live counters evicted at `--memory-counters-max` or `--memory-size-max`");
    }

    MEMORY_COUNTERS = Gauge("ratelimit.memory.counters", ["use"],
        "counters in memory, also expired, for `memory://` (`store`) or `local` (`fallback`)");
    MEMORY_COUNTERS_LIMIT = Gauge("ratelimit.memory.counters.limit", ["use"],
        "maximum number of counters in memory (`--memory-counters-max`)");
    MEMORY_SIZE = Gauge("ratelimit.memory.size", ["use"],
        "memory that these counters use") in Bytes;
    MEMORY_SIZE_LIMIT = Gauge("ratelimit.memory.size.limit", ["use"],
        "maximum memory that these counters use (`--memory-size-max`)") in Bytes;
}

/// What is observed of counters in memory, and of the use that they have.
pub const OBSERVED: &[Observed<'_, (&'static str, MemoryReport)>] = &[
    (&MEMORY_COUNTERS, |(used_for, memory), to| count(used_for, to, memory.used.counters)),
    (&MEMORY_COUNTERS_LIMIT, |(used_for, memory), to| count(used_for, to, memory.max.counters)),
    (&MEMORY_SIZE, |(used_for, memory), to| count(used_for, to, memory.used.bytes)),
    (&MEMORY_SIZE_LIMIT, |(used_for, memory), to| count(used_for, to, memory.max.bytes)),
];

/// What a store keeps, or may keep at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySize {
    pub counters: usize,
    pub bytes: usize,
}

/// What counters in memory take now, and may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    pub used: MemorySize,
    pub max: MemorySize,
}

fn count(used_for: &'static str, observe: Observe<'_>, value: usize) {
    let value = u64::try_from(value).unwrap_or(u64::MAX);
    observe(float(value), &[KeyValue::new("use", used_for)]);
}
