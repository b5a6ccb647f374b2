//! Metrics of the edge: connections, and panics.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter, UpDownCounter},
};

use crate::{telemetry::instruments, text::named::named};

instruments! {
    pub(super) struct EdgeInstruments {
        open: UpDownCounter<i64> => CONNECTIONS = Gauge("ratelimit.connections", ["listener"],
            "open connections of `grpc`, `http` and `admin`");
        refused: Counter<u64> => CONNECTIONS_REFUSED = Counter(
            "ratelimit.connections.refused", ["listener", "reason"],
            "connections refused: `full` (`--max-connections` have calls), `silent` (closed for another), `accept` (too many open files, or another error), `tls` (the handshake failed)"
        );
        panics: Counter<u64> => PANICS = Counter("ratelimit.panics", [],
            "panics, each a bug; the log names the source line");
    }

    CALLS_OPEN = Gauge("ratelimit.calls.open", [],
        "gRPC calls in progress, also of clients that left");
}

#[derive(Debug, Clone)]
pub struct EdgeMetrics {
    pub(super) of: EdgeInstruments,
    /// The sum of `open`.
    connections: Arc<AtomicUsize>,
}

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum RefusedConnection {
        /// The system did not hand it over: too many open files, for example.
        Accept = "accept",
        /// As many as allowed have calls.
        Full = "full",
        /// Its client has sent nothing, as many others, and a further one came.
        Silent = "silent",
        /// Its TLS handshake failed, or was not finished in time.
        Tls = "tls",
    }
}

impl EdgeMetrics {
    pub fn new(meter: &Meter) -> Self {
        Self { of: EdgeInstruments::of_meter(meter), connections: Arc::default() }
    }

    pub fn of_listener(&self, name: &'static str) -> ListenerMetrics {
        let metrics = ListenerMetrics { edge: self.clone(), name };
        for reason in RefusedConnection::ALL {
            metrics.count_refused(reason, 0);
        }
        metrics.edge.of.open.add(0, &[metrics.label()]);
        metrics
    }

    pub fn has_connections(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > 0
    }
}

#[derive(Debug, Clone)]
pub struct ListenerMetrics {
    edge: EdgeMetrics,
    name: &'static str,
}

impl ListenerMetrics {
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Counts a connection as open until the result is dropped.
    pub(crate) fn opened(&self) -> OpenConnection {
        self.edge.of.open.add(1, &[self.label()]);
        self.edge.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }

    pub(crate) fn refused(&self, reason: RefusedConnection) {
        self.count_refused(reason, 1);
    }

    fn count_refused(&self, reason: RefusedConnection, count: u64) {
        self.edge.of.refused.add(count, &[self.label(), KeyValue::new("reason", reason.name())]);
    }

    fn label(&self) -> KeyValue {
        KeyValue::new("listener", self.name)
    }
}

#[derive(Debug)]
pub(crate) struct OpenConnection(pub(crate) ListenerMetrics);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.edge.of.open.add(-1, &[self.0.label()]);
        self.0.edge.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
