//! Metrics of counters in memory.

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};

use crate::telemetry::{InstrumentRow, InstrumentUnit, Observe, Observed, float};

pub(crate) const MEMORY_COUNTERS: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.memory.counters",
    &["use"],
    "counters in memory, also expired, for `memory://` (`store`) or `local` (`fallback`)",
);
pub(crate) const MEMORY_COUNTERS_LIMIT: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.memory.counters.limit",
    &["use"],
    "maximum number of counters in memory (`--memory-counters-max`)",
);
const MEMORY_SIZE: InstrumentRow =
    InstrumentRow::gauge("ratelimit.memory.size", &["use"], "memory that these counters use")
        .in_unit(InstrumentUnit::Bytes);

const MEMORY_SIZE_LIMIT: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.memory.size.limit",
    &["use"],
    "maximum memory that these counters use (`--memory-size-max`)",
)
.in_unit(InstrumentUnit::Bytes);

pub(crate) const COUNTERS_EVICTED: InstrumentRow = InstrumentRow::counter(
    "ratelimit.counters.evicted",
    &[],
    "live counters evicted at `--memory-counters-max` or `--memory-size-max`",
);

/// What is observed of counters in memory, and of the use that they have.
pub(crate) const OBSERVED: &[Observed<'_, (&'static str, MemoryReport)>] = &[
    (&MEMORY_COUNTERS, |(used_for, memory), to| count(used_for, to, memory.used.counters)),
    (&MEMORY_COUNTERS_LIMIT, |(used_for, memory), to| count(used_for, to, memory.max.counters)),
    (&MEMORY_SIZE, |(used_for, memory), to| count(used_for, to, memory.used.bytes)),
    (&MEMORY_SIZE_LIMIT, |(used_for, memory), to| count(used_for, to, memory.max.bytes)),
];

/// What a store keeps, or may keep at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySize {
    pub counters: usize,
    /// The bytes that they take.
    pub bytes: usize,
}

/// What counters in memory take now, and may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// What they take.
    pub used: MemorySize,
    /// The most that they may take.
    pub max: MemorySize,
}

/// Metrics of counters in memory.
#[derive(Debug, Clone)]
pub struct MemoryMetrics {
    evicted: Counter<u64>,
}

impl MemoryMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        Self { evicted: COUNTERS_EVICTED.new_counter(meter) }
    }

    /// Counts live counters that were evicted.
    pub(crate) fn evicted(&self, count: u64) {
        self.evicted.add(count, &[]);
    }
}

fn count(used_for: &'static str, observe: Observe<'_>, value: usize) {
    let value = u64::try_from(value).unwrap_or(u64::MAX);
    observe(float(value), &[KeyValue::new("use", used_for)]);
}
