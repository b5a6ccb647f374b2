//! The instruments: calls and the store in files of their own, the small ones here. Each file defines its instruments
//! in one list. Names follow OpenTelemetry's semantic conventions 1.45 if they have one; they have none for limiters.

mod call;
mod control_plane;
mod edge;
mod files;
mod process;
mod rule_counters;
mod rule_series;
mod servers;
mod store;

use std::{sync::Arc, time::SystemTime};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Meter},
};

pub(super) use self::process::observe as observe_process;
pub use self::{
    call::CallMetrics,
    control_plane::observe_control_plane,
    edge::{EdgeMetrics, ListenerMetrics},
    files::FileMetrics,
    servers::{MemoryReport, ServerReport, ServerUsage, observe_memory, observe_servers},
    store::StoreMetrics,
};
pub(crate) use self::{
    call::is_server_error,
    edge::{CallsInProgress, CountedCalls, RefusedConnection},
    store::redis_error_type,
};
use super::instrument::{InstrumentRow, InstrumentUnit};
use crate::{
    VERSION,
    rules::{Loaded, Rules},
};

const COUNTERS_EVICTED: InstrumentRow = InstrumentRow::counter(
    "ratelimit.counters.evicted",
    &[],
    "live counters evicted from memory because `--memory-counters-max` was reached",
);
const RELOADS: InstrumentRow = InstrumentRow::counter(
    "ratelimit.rules.reloads",
    &["outcome"],
    "reloads of changed rule files, by outcome: `good` or `bad`",
);
const LAST_RELOAD: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.rules.last_reload_successful",
    &[],
    "1 if the newest content of the rule files is in force, else 0",
);
const RULES_INFO: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.rules.info",
    &["version"],
    "always 1; the label is the version of the rules in force, as in `/rules`",
);
const RULES_LOADED: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.rules.loaded.timestamp",
    &[],
    "Unix time at which the rules in force were loaded; `time()` minus this is their age",
)
.in_unit(InstrumentUnit::Seconds);
const BUILD_INFO: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.build_info",
    &["version"],
    "always 1; the label is the version of the program",
);

const SMALL: &[&InstrumentRow] =
    &[&COUNTERS_EVICTED, &RELOADS, &LAST_RELOAD, &RULES_INFO, &RULES_LOADED, &BUILD_INFO];

/// Every instrument, as docs/metrics.md lists them.
pub fn instruments() -> impl Iterator<Item = &'static InstrumentRow> {
    let lists = [
        call::INSTRUMENTS,
        store::INSTRUMENTS,
        servers::INSTRUMENTS,
        edge::INSTRUMENTS,
        files::INSTRUMENTS,
        control_plane::INSTRUMENTS,
        process::INSTRUMENTS,
    ];
    lists.into_iter().chain([SMALL]).flatten().copied()
}

/// Records the version, as a gauge that is always 1.
pub(super) fn build_info(meter: &Meter) {
    BUILD_INFO.new_gauge(meter).record(1, &[KeyValue::new("version", VERSION)]);
}

/// Metrics of counters in memory.
#[derive(Debug, Clone)]
pub struct MemoryMetrics {
    evicted: Counter<u64>,
}

impl MemoryMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        let metrics = Self { evicted: COUNTERS_EVICTED.new_counter(meter) };
        // Rates begin with the first eviction.
        metrics.evicted.add(0, &[]);
        metrics
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
        let metrics =
            Self { reloads: RELOADS.new_counter(meter), successful: LAST_RELOAD.new_gauge(meter) };
        metrics.successful.record(1, &[]);
        // Rates begin with the first reload.
        for outcome in ["good", "bad"] {
            metrics.reloads.add(0, &[KeyValue::new("outcome", outcome)]);
        }
        metrics
    }

    /// Observes which rules are in force.
    pub fn observe(meter: &Meter, rules: &Arc<Rules>) {
        let in_force = Arc::clone(rules);
        RULES_INFO.observe(meter, move |observe| {
            let version = in_force.current().version.to_string();
            observe(1.0, &[KeyValue::new("version", version)]);
        });
        let in_force = Arc::clone(rules);
        RULES_LOADED.observe(meter, move |observe| {
            let since = in_force.current().since.duration_since(SystemTime::UNIX_EPOCH);
            observe(since.unwrap_or_default().as_secs_f64(), &[]);
        });
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
