//! What is known of the servers of the store, and observed of them whenever metrics are read.

use opentelemetry::KeyValue;
use tollkeeper_base::telemetry::{Observe, Observed, float, instruments};

instruments! {
    CONNECTIONS = Gauge("ratelimit.store.connections", ["server", "state"],
        "open connections, `idle` or `busy`");
    CONNECTIONS_LIMIT = Gauge("ratelimit.store.connections.limit", ["server"],
        "maximum number of connections (`--store-pool-size`)");
    CONNECTIONS_WAITING = Gauge("ratelimit.store.connections.waiting", ["server"],
        "batches waiting for a connection");
    QUEUE = Gauge("ratelimit.store.queue.calls", ["server"], "calls waiting to be sent");
    CLOCK_OFFSET = Gauge("ratelimit.store.clock.offset", ["server"],
        "the server's clock, which windows follow, minus this host's") in Seconds;
    MEMORY_USED = Gauge("ratelimit.store.memory.used", ["server"],
        "memory that the server uses; from INFO, like the next four: at each new connection and every 10 s, absent without that right") in Bytes;
    MEMORY_LIMIT = Gauge("ratelimit.store.memory.limit", ["server"],
        "the server's `maxmemory`; absent if it has none") in Bytes;
    CLIENTS = Gauge("ratelimit.store.clients", ["server"], "clients connected to the server");
    CLIENTS_LIMIT = Gauge("ratelimit.store.clients.limit", ["server"], "the server's `maxclients`");
    KEYS_EVICTED = Gauge("ratelimit.store.keys.evicted", ["server"],
        "keys that the server evicted since its start; their limits started again");
}

pub const OBSERVED: &[Observed<'_, Vec<ServerReport>>] = &[
    (&CONNECTIONS, connections),
    (&CONNECTIONS_LIMIT, |servers, to| each(servers, to, |server| Some(server.connections_max))),
    (&CONNECTIONS_WAITING, |servers, to| each(servers, to, |server| Some(server.waiting))),
    (&QUEUE, |servers, to| each(servers, to, |server| Some(server.queued))),
    (&CLOCK_OFFSET, clock_offsets),
    (&MEMORY_USED, |servers, to| each(servers, to, |server| server.usage?.memory)),
    (&MEMORY_LIMIT, |servers, to| each(servers, to, |server| server.usage?.memory_max)),
    (&CLIENTS, |servers, to| each(servers, to, |server| server.usage?.clients)),
    (&CLIENTS_LIMIT, |servers, to| each(servers, to, |server| server.usage?.clients_max)),
    (&KEYS_EVICTED, |servers, to| each(servers, to, |server| server.usage?.evicted)),
];

#[derive(Debug, Clone, Default)]
pub struct ServerReport {
    /// Its address, from the settings or from a server that they name.
    pub address: String,
    pub connections: u64,
    /// Open connections that are not in use.
    pub idle: u64,
    pub connections_max: u64,
    pub waiting: u64,
    pub queued: u64,
    /// Its clock minus ours, in milliseconds.
    pub clock_offset_ms: i64,
    pub usage: Option<ServerUsage>,
}

/// A server's report of its own use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerUsage {
    pub memory: Option<u64>,
    /// Most bytes of memory; `None` if the server has no such bound.
    pub memory_max: Option<u64>,
    pub clients: Option<u64>,
    pub clients_max: Option<u64>,
    /// Keys that were evicted since its start.
    pub evicted: Option<u64>,
}

fn each(servers: &[ServerReport], observe: Observe<'_>, value: fn(&ServerReport) -> Option<u64>) {
    for server in servers {
        if let Some(value) = value(server) {
            observe(float(value), &[server.label()]);
        }
    }
}

fn connections(servers: &Vec<ServerReport>, observe: Observe<'_>) {
    for server in servers {
        let busy = server.connections.saturating_sub(server.idle);
        for (state, count) in [("idle", server.idle), ("busy", busy)] {
            observe(float(count), &[server.label(), KeyValue::new("state", state)]);
        }
    }
}

fn clock_offsets(servers: &Vec<ServerReport>, observe: Observe<'_>) {
    for server in servers {
        // Exact: an offset is below 2^53 milliseconds.
        observe(server.clock_offset_ms as f64 / 1000.0, &[server.label()]);
    }
}

impl ServerReport {
    fn label(&self) -> KeyValue {
        KeyValue::new("server", self.address.clone())
    }
}
