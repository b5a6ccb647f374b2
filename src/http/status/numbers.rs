//! The numbers of the status page, from the series that `/metrics` shows too. Counts grow from the start of the process; the
//! page makes rates of them.

use std::collections::{BTreeMap, HashMap};

use prometheus::proto::{Histogram, Metric};
use serde::{Serialize, Serializer};

use crate::{
    engine::rule::FailureMode,
    limiter::metrics::{CALLS_LATE, DECISIONS, DURATION, FALLBACKS, rule_series::ended},
    store::{
        memory::metrics::{MEMORY_COUNTERS, MEMORY_COUNTERS_LIMIT},
        metrics::{BREAKER_OPEN, ROUND_TRIPS, UP},
        report::{CONNECTIONS, CONNECTIONS_LIMIT, MEMORY_LIMIT, MEMORY_USED, QUEUE},
    },
    telemetry::{Families, START_TIME, label, value},
};

#[derive(Debug, Serialize)]
pub(super) struct StatusNumbers {
    pub(super) calls: Durations,
    /// Calls that failed because of the service. Invalid or forbidden requests do not count.
    pub(super) calls_failed: u64,
    /// Calls that were decided after their caller had given up.
    pub(super) calls_late: u64,
    /// Charges that `on_store_failure` decided, by its modes, in the order of [`FailureMode::ALL`].
    #[serde(serialize_with = "by_mode")]
    pub(super) fallbacks: [u64; 4],
    pub(super) round_trips: Durations,
    /// The servers of the store; none for memory.
    pub(super) servers: Vec<ServerStatus>,
    /// Counters in memory, for `--store memory://`.
    memory: Option<MemoryStatus>,
    /// When the process started, in Unix seconds.
    pub(super) started_at: u64,
    pub(super) decisions: RuleDecisions,
    /// The descriptors decided, by domain and by label of the rule.
    #[serde(skip)]
    pub(super) by_rule: HashMap<(String, String), RuleDecisions>,
}

#[derive(Debug, Serialize)]
pub(super) struct Durations {
    pub(super) count: u64,
    /// Upper bounds in seconds, each with the number of durations that are not longer.
    buckets: Vec<(f64, u64)>,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct RuleDecisions {
    pub(super) ok: u64,
    pub(super) over_limit: u64,
    /// They passed a limit in shadow mode, which they exceeded.
    pub(super) shadow: u64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct ServerStatus {
    pub(super) address: String,
    /// Whether it answers and takes writes; `None` until it was queried.
    pub(super) up: Option<bool>,
    pub(super) breaker_open: bool,
    connections: u64,
    queued: u64,
    /// Bytes of memory that it uses, if it reports them.
    memory_used: Option<u64>,
    /// Most bytes of memory, if it has a bound.
    memory_limit: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct MemoryStatus {
    counters: u64,
    counters_max: u64,
}

impl RuleDecisions {
    /// Of rules that were removed.
    fn ended() -> Self {
        let [ok, over_limit, shadow] =
            ["ok", "over_limit", "shadow"].map(|code| ended(&DECISIONS, code));
        Self { ok, over_limit, shadow }
    }

    fn and(self, other: &Self) -> Self {
        Self {
            ok: self.ok.saturating_add(other.ok),
            over_limit: self.over_limit.saturating_add(other.over_limit),
            shadow: self.shadow.saturating_add(other.shadow),
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.ok.saturating_add(self.over_limit).saturating_add(self.shadow)
    }
}

impl StatusNumbers {
    pub(super) fn of(families: &Families) -> Self {
        let calls = families.metrics(&DURATION).iter();
        let failed = calls.filter(|metric| !label(metric, "error_type").is_empty());
        let by_rule = by_rule(families.metrics(&DECISIONS));
        Self {
            calls: Durations::of(&families.merged(&DURATION)),
            calls_failed: failed.map(|metric| metric.get_histogram().get_sample_count()).sum(),
            calls_late: families.sum(&CALLS_LATE),
            fallbacks: FailureMode::ALL.map(|mode| {
                let series = families.metrics(&FALLBACKS).iter();
                let of_mode = series.filter(|metric| label(metric, "mode") == mode.name());
                ended(&FALLBACKS, mode.name()) + of_mode.map(value).sum::<u64>()
            }),
            round_trips: Durations::of(&families.merged(&ROUND_TRIPS)),
            servers: servers(families),
            memory: memory(families),
            started_at: families.sum(&START_TIME),
            decisions: by_rule.values().fold(RuleDecisions::ended(), RuleDecisions::and),
            by_rule,
        }
    }

    /// How many servers do not answer, take no writes, or have an open breaker.
    pub(super) fn servers_down(&self) -> u32 {
        let is_away = |server: &&ServerStatus| server.up == Some(false) || server.breaker_open;
        u32::try_from(self.servers.iter().filter(is_away).count()).unwrap_or(u32::MAX)
    }
}

pub(super) fn by_mode<T: Serialize, S: Serializer>(
    numbers: &[T; 4],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(FailureMode::ALL.map(FailureMode::name).iter().zip(numbers))
}

impl Durations {
    /// The quantile of the durations since `earlier`, in seconds, interpolated within its bucket; `None` without durations.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub(super) fn quantile_since(&self, earlier: &Self, part: f64) -> Option<f64> {
        let count = self.count.checked_sub(earlier.count).filter(|count| *count > 0)?;
        let rank = part * count as f64;
        let (mut low, mut below) = (0.0, 0.0);
        for (index, (high, upto)) in self.buckets.iter().enumerate() {
            let before = earlier.buckets.get(index).map_or(0, |(_, count)| *count);
            let upto = upto.saturating_sub(before) as f64;
            if upto >= rank {
                return Some(low + (high - low) * (rank - below) / (upto - below).max(1.0));
            }
            (low, below) = (*high, upto);
        }
        Some(low)
    }

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

fn servers(families: &Families) -> Vec<ServerStatus> {
    let of = |row, address: &str| families.find(row, "server", address);
    let mut servers = BTreeMap::new();
    // It has series of the present servers only, while others also have series of past servers.
    for metric in families.metrics(&CONNECTIONS_LIMIT) {
        let address = label(metric, "server").to_owned();
        let connections = families.metrics(&CONNECTIONS).iter();
        let connections = connections.filter(|metric| label(metric, "server") == address);
        let server = ServerStatus {
            up: of(&UP, &address).map(|up| up > 0),
            breaker_open: of(&BREAKER_OPEN, &address).is_some_and(|open| open > 0),
            connections: connections.map(value).fold(0, u64::saturating_add),
            queued: of(&QUEUE, &address).unwrap_or(0),
            memory_used: of(&MEMORY_USED, &address),
            memory_limit: of(&MEMORY_LIMIT, &address),
            address: address.clone(),
        };
        servers.insert(address, server);
    }
    servers.into_values().collect()
}

fn memory(families: &Families) -> Option<MemoryStatus> {
    let of = |row| families.find(row, "use", "store");
    let counters = of(&MEMORY_COUNTERS)?;
    Some(MemoryStatus { counters, counters_max: of(&MEMORY_COUNTERS_LIMIT)? })
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
