//! The numbers of the status page, from the series that `/metrics` shows too. Counts grow from the start of the process; the
//! page makes rates of them.

use std::collections::{BTreeMap, HashMap};

use prometheus::proto::{Histogram, Metric, MetricFamily};
use serde::Serialize;

use super::compat::{label, merged, metrics};

/// The numbers of one replica.
#[derive(Debug, Serialize)]
pub struct StatusNumbers {
    /// The durations of calls.
    pub calls: Durations,
    /// Calls that ended with an error.
    pub calls_failed: u64,
    /// Calls that were decided after their caller had given up.
    pub calls_late: u64,
    /// Charges that `on_store_failure` decided.
    pub fallbacks: u64,
    /// The durations of round trips to Redis.
    pub round_trips: Durations,
    /// The servers of the store; none for memory.
    pub servers: Vec<ServerStatus>,
    /// Counters in memory, for `--store memory://`.
    pub memory: Option<MemoryStatus>,
    /// When the process started, in Unix seconds.
    pub started_at: u64,
    /// All descriptors decided.
    pub decisions: RuleDecisions,
    /// The descriptors decided, by domain and by label of the rule.
    #[serde(skip)]
    pub by_rule: HashMap<(String, String), RuleDecisions>,
}

/// A histogram of durations.
#[derive(Debug, Serialize)]
pub struct Durations {
    /// All durations.
    pub count: u64,
    /// Upper bounds in seconds, each with the number of durations that are not longer.
    pub buckets: Vec<(f64, u64)>,
}

/// How the descriptors of a rule were decided.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct RuleDecisions {
    /// They passed.
    pub ok: u64,
    /// They were denied.
    pub over_limit: u64,
    /// They passed a limit in shadow mode, which they exceeded.
    pub shadow: u64,
}

/// One server of the store.
#[derive(Debug, Serialize)]
pub struct ServerStatus {
    /// Its address.
    pub address: String,
    /// Whether it answers and takes writes; `None` until it was asked.
    pub up: Option<bool>,
    /// Whether calls are answered without it.
    pub breaker_open: bool,
    /// Open connections to it.
    pub connections: u64,
    /// Calls that wait to be sent.
    pub queued: u64,
    /// Bytes of memory that it uses, if it says so.
    pub memory_used: Option<u64>,
    /// Most bytes of memory, if it has a bound.
    pub memory_limit: Option<u64>,
}

/// The counters in memory.
#[derive(Debug, Serialize)]
pub struct MemoryStatus {
    /// Number of counters.
    pub counters: u64,
    /// Most counters.
    pub counters_max: u64,
}

impl RuleDecisions {
    fn and(self, other: &Self) -> Self {
        Self {
            ok: self.ok.saturating_add(other.ok),
            over_limit: self.over_limit.saturating_add(other.over_limit),
            shadow: self.shadow.saturating_add(other.shadow),
        }
    }

    /// All of them.
    pub fn sum(&self) -> u64 {
        self.ok.saturating_add(self.over_limit).saturating_add(self.shadow)
    }
}

impl StatusNumbers {
    /// Reads them from the metrics.
    pub(super) fn of(families: &[MetricFamily]) -> Self {
        let calls = metrics(families, "rpc_server_call_duration_seconds");
        let mut calls_failed = 0_u64;
        for metric in
            calls.iter().filter(|metric| label(metric, "rpc_response_status_code") != "OK")
        {
            calls_failed = calls_failed.saturating_add(metric.get_histogram().get_sample_count());
        }
        let by_rule = by_rule(metrics(families, "ratelimit_decisions_total"));
        let round_trips = metrics(families, "db_client_operation_duration_seconds");
        Self {
            calls: Durations::of(&merged(calls)),
            calls_failed,
            calls_late: sum(metrics(families, "ratelimit_calls_late_total")),
            fallbacks: sum(metrics(families, "ratelimit_fallbacks_total")),
            round_trips: Durations::of(&merged(round_trips)),
            servers: servers(families),
            memory: memory(families),
            started_at: sum(metrics(families, "process_start_time_seconds")),
            decisions: by_rule.values().fold(RuleDecisions::default(), RuleDecisions::and),
            by_rule,
        }
    }
}

impl Durations {
    fn of(histogram: &Histogram) -> Self {
        let mut buckets = Vec::new();
        for bucket in histogram.get_bucket() {
            if bucket.upper_bound().is_finite() {
                buckets.push((bucket.upper_bound(), bucket.cumulative_count()));
            }
        }
        Self { count: histogram.get_sample_count(), buckets }
    }
}

fn servers(families: &[MetricFamily]) -> Vec<ServerStatus> {
    let of = |name, address: &str| find(metrics(families, name), "server", address);
    let mut servers = BTreeMap::new();
    // Its series are those of the present servers, while others also have those of the past.
    for metric in metrics(families, "ratelimit_store_connections_limit") {
        let address = label(metric, "server").to_owned();
        let connections = metrics(families, "ratelimit_store_connections").iter();
        let connections = connections.filter(|metric| label(metric, "server") == address);
        let server = ServerStatus {
            up: of("ratelimit_store_up", &address).map(|up| up > 0),
            breaker_open: of("ratelimit_store_breaker_open", &address).is_some_and(|open| open > 0),
            connections: connections.map(value).fold(0, u64::saturating_add),
            queued: of("ratelimit_store_queue_calls", &address).unwrap_or(0),
            memory_used: of("ratelimit_store_memory_used_bytes", &address),
            memory_limit: of("ratelimit_store_memory_limit_bytes", &address),
            address: address.clone(),
        };
        servers.insert(address, server);
    }
    servers.into_values().collect()
}

fn memory(families: &[MetricFamily]) -> Option<MemoryStatus> {
    let of = |name| find(metrics(families, name), "use", "store");
    let counters = of("ratelimit_memory_counters")?;
    Some(MemoryStatus { counters, counters_max: of("ratelimit_memory_counters_limit")? })
}

fn by_rule(series: &[Metric]) -> HashMap<(String, String), RuleDecisions> {
    let mut rules: HashMap<_, RuleDecisions> = HashMap::new();
    for metric in series {
        let labels = ["domain", "rule"].map(|name| label(metric, name).to_owned());
        let decisions = rules.entry(labels.into()).or_default();
        match label(metric, "code") {
            "over_limit" => decisions.over_limit = value(metric),
            "shadow" => decisions.shadow = value(metric),
            _ => decisions.ok = value(metric),
        }
    }
    rules
}

fn find(series: &[Metric], name: &str, expected: &str) -> Option<u64> {
    series.iter().find(|metric| label(metric, name) == expected).map(value)
}

fn sum(series: &[Metric]) -> u64 {
    series.iter().map(value).fold(0, u64::saturating_add)
}

/// The value of a counter or a gauge. All that are read here are whole numbers from 0 to below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
fn value(metric: &Metric) -> u64 {
    metric.get_counter().get_value().max(metric.get_gauge().get_value()).max(0.0) as u64
}
