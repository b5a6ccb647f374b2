//! What is observed of the servers of the store and of the counters in memory whenever metrics are read.

use opentelemetry::{KeyValue, metrics::Meter};

use crate::telemetry::instrument::{InstrumentRow, InstrumentUnit, Observe, observe_together};

const CONNECTIONS: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.connections",
    &["server", "state"],
    "open connections to the server, `idle` or `busy`",
);
const CONNECTIONS_LIMIT: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.connections.limit",
    &["server"],
    "maximum number of connections to the server (`--store-pool-size`)",
);
const CONNECTIONS_WAITING: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.connections.waiting",
    &["server"],
    "batches waiting for a connection to the server",
);
const QUEUE: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.queue.calls",
    &["server"],
    "calls waiting to be sent to the server",
);
const CLOCK_OFFSET: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.clock.offset",
    &["server"],
    "the server's clock minus this host's, estimated from its answers; windows follow the server's clock",
)
.in_unit(InstrumentUnit::Seconds);
const MEMORY_USED: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.memory.used",
    &["server"],
    "memory that the server uses. This and the next four metrics come from INFO, which is read at each new connection and \
     every 10 s; they are absent if the Redis user may not run INFO",
)
.in_unit(InstrumentUnit::Bytes);
const MEMORY_LIMIT: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.memory.limit",
    &["server"],
    "the server's `maxmemory`; absent if it has none",
)
.in_unit(InstrumentUnit::Bytes);
const CLIENTS: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.clients",
    &["server"],
    "clients of any kind that are connected to the server",
);
const CLIENTS_LIMIT: InstrumentRow =
    InstrumentRow::gauge("ratelimit.store.clients.limit", &["server"], "the server's `maxclients`");
const KEYS_EVICTED: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.store.keys.evicted",
    &["server"],
    "keys that the server has evicted since its start because its memory was full; their limits started again from zero",
);
const MEMORY_COUNTERS: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.memory.counters",
    &["use"],
    "counters in memory, including expired ones that are not yet removed, for `--store memory://` (`store`) or for \
     `on_store_failure: local` (`fallback`)",
);
const MEMORY_COUNTERS_LIMIT: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.memory.counters.limit",
    &["use"],
    "maximum number of counters in memory (`--memory-counters-max`)",
);
const MEMORY_SIZE: InstrumentRow =
    InstrumentRow::gauge("ratelimit.memory.size", &["use"], "memory used by these counters")
        .in_unit(InstrumentUnit::Bytes);

pub(super) const INSTRUMENTS: &[&InstrumentRow] = &[
    &CONNECTIONS,
    &CONNECTIONS_LIMIT,
    &CONNECTIONS_WAITING,
    &QUEUE,
    &CLOCK_OFFSET,
    &MEMORY_USED,
    &MEMORY_LIMIT,
    &CLIENTS,
    &CLIENTS_LIMIT,
    &KEYS_EVICTED,
    &MEMORY_COUNTERS,
    &MEMORY_COUNTERS_LIMIT,
    &MEMORY_SIZE,
];

/// What is known of one server of the store now.
#[derive(Debug, Clone, Default)]
pub struct ServerReport {
    /// Its address, from the settings or from a server that they name.
    pub address: String,
    /// Open connections to it.
    pub connections: u64,
    /// Those that nobody uses.
    pub idle: u64,
    /// Maximum number of connections to it.
    pub connections_max: u64,
    /// Batches that wait for a connection.
    pub waiting: u64,
    /// Calls that wait to be sent.
    pub queued: u64,
    /// Its clock minus ours, in milliseconds.
    pub clock_offset_ms: i64,
    /// What it says of itself, if it was asked.
    pub usage: Option<ServerUsage>,
}

/// What a server says of its own use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerUsage {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Most bytes of memory; `None` if there is no bound.
    pub memory_max: Option<u64>,
    /// Connected clients.
    pub clients: Option<u64>,
    /// Most clients.
    pub clients_max: Option<u64>,
    /// Keys that were evicted since its start.
    pub evicted: Option<u64>,
}

/// What counters in memory take now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// Number of counters.
    pub counters: usize,
    /// Most counters.
    pub counters_max: usize,
    /// Bytes that they take.
    pub bytes: usize,
}

/// Observes the servers in each report.
pub fn observe_servers(
    meter: &Meter,
    report: impl Fn() -> Vec<ServerReport> + Send + Sync + 'static,
) {
    observe_together(
        meter,
        report,
        &[
            (&CONNECTIONS, |servers, observe| connections(servers, observe)),
            (&CONNECTIONS_LIMIT, |servers, observe| {
                by_server(servers, observe, |server| Some(number(server.connections_max)));
            }),
            (&CONNECTIONS_WAITING, |servers, observe| {
                by_server(servers, observe, |server| Some(number(server.waiting)));
            }),
            (&QUEUE, |servers, observe| {
                by_server(servers, observe, |server| Some(number(server.queued)));
            }),
            (&CLOCK_OFFSET, |servers, observe| {
                by_server(servers, observe, |server| Some(signed(server.clock_offset_ms) / 1000.0));
            }),
            (&MEMORY_USED, |servers, observe| {
                by_server(servers, observe, |server| server.usage?.memory.map(number));
            }),
            (&MEMORY_LIMIT, |servers, observe| {
                by_server(servers, observe, |server| server.usage?.memory_max.map(number));
            }),
            (&CLIENTS, |servers, observe| {
                by_server(servers, observe, |server| server.usage?.clients.map(number));
            }),
            (&CLIENTS_LIMIT, |servers, observe| {
                by_server(servers, observe, |server| server.usage?.clients_max.map(number));
            }),
            (&KEYS_EVICTED, |servers, observe| {
                by_server(servers, observe, |server| server.usage?.evicted.map(number));
            }),
        ],
    );
}

/// Observes a value of each server that has it.
fn by_server(
    servers: &[ServerReport],
    observe: Observe<'_>,
    value: fn(&ServerReport) -> Option<f64>,
) {
    for server in servers {
        if let Some(value) = value(server) {
            observe(value, &[KeyValue::new("server", server.address.clone())]);
        }
    }
}

fn connections(servers: &[ServerReport], observe: Observe<'_>) {
    for ServerReport { address, connections, idle, .. } in servers {
        for (state, count) in [("idle", *idle), ("busy", connections.saturating_sub(*idle))] {
            let server = KeyValue::new("server", address.clone());
            observe(number(count), &[server, KeyValue::new("state", state)]);
        }
    }
}

/// Observes counters in memory, which are for this use.
pub fn observe_memory(
    meter: &Meter,
    used_for: &'static str,
    report: impl Fn() -> MemoryReport + Send + Sync + 'static,
) {
    observe_together::<(&'static str, MemoryReport)>(
        meter,
        move || (used_for, report()),
        &[
            (&MEMORY_COUNTERS, |(used_for, memory), observe| {
                by_use(used_for, observe, memory.counters);
            }),
            (&MEMORY_COUNTERS_LIMIT, |(used_for, memory), observe| {
                by_use(used_for, observe, memory.counters_max);
            }),
            (&MEMORY_SIZE, |(used_for, memory), observe| by_use(used_for, observe, memory.bytes)),
        ],
    );
}

fn by_use(used_for: &'static str, observe: Observe<'_>, value: usize) {
    let value = u64::try_from(value).unwrap_or(u64::MAX);
    observe(number(value), &[KeyValue::new("use", used_for)]);
}

/// Exact: numbers of connections and bytes, below 2^53.
fn number(value: u64) -> f64 {
    value as f64
}

/// Exact: a clock's offset is below 2^53 milliseconds.
fn signed(value: i64) -> f64 {
    value as f64
}
