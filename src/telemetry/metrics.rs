//! The instruments: calls and the store in files of their own, the small ones here. Names follow
//! OpenTelemetry's semantic conventions 1.45 if they have one; they have none for limiters.

mod call;
mod edge;
mod files;
mod store;

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Meter},
};

pub use self::{
    call::CallMetrics,
    edge::{EdgeMetrics, ListenerMetrics},
    files::FileMetrics,
    store::StoreMetrics,
};
pub(crate) use self::{
    call::{is_server_error, status_name},
    edge::RefusedConnection,
    store::redis_error_type,
};
use crate::{VERSION, rules::Loaded};

/// Records the version, as a gauge that is always 1.
pub(super) fn build_info(meter: &Meter) {
    let info = meter
        .u64_gauge("ratelimit.build_info")
        .with_description("Always 1; the label has the version of the program")
        .build();
    info.record(1, &[KeyValue::new("version", VERSION)]);
}

/// Metrics of counters in memory.
#[derive(Debug, Clone)]
pub struct MemoryMetrics {
    evicted: Counter<u64>,
}

impl MemoryMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        Self {
            evicted: meter
                .u64_counter("ratelimit.counters.evicted")
                .with_description("Live counters in memory that were evicted")
                .build(),
        }
    }

    /// Counts live counters that were evicted.
    pub(crate) fn evicted(&self, count: u64) {
        self.evicted.add(count, &[]);
    }
}

/// Metrics of the rules.
#[derive(Debug, Clone)]
pub struct RuleMetrics {
    reloads: Counter<u64>,
    successful: Gauge<u64>,
}

impl RuleMetrics {
    /// Instruments of `meter`. The rules at the start are valid.
    pub fn new(meter: &Meter) -> Self {
        let metrics = Self {
            reloads: meter
                .u64_counter("ratelimit.rules.reloads")
                .with_description("Changes of the rule files, by outcome")
                .build(),
            successful: meter
                .u64_gauge("ratelimit.rules.last_reload_successful")
                .with_description("1 if the newest content of the rule files is in force, else 0")
                .build(),
        };
        metrics.successful.record(1, &[]);
        metrics
    }

    /// Records the outcome of a reload.
    pub fn loaded(&self, loaded: Loaded) {
        let (outcome, successful) = match loaded {
            Loaded::Good => ("good", 1),
            Loaded::Bad => ("bad", 0),
        };
        self.reloads.add(1, &[KeyValue::new("outcome", outcome)]);
        self.successful.record(successful, &[]);
    }
}
