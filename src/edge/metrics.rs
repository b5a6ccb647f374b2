//! Metrics of the edge: connections, and panics.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter, UpDownCounter},
};
use parking_lot::Mutex;

use crate::{process::calls::CallTracker, telemetry::instruments, text::named::named};

instruments! {
    pub(super) struct EdgeInstruments {
        open: UpDownCounter<i64> => CONNECTIONS = Gauge("ratelimit.connections", ["listener"],
            "open connections of `grpc`, `http` and `admin`");
        refused: Counter<u64> => CONNECTIONS_REFUSED = Counter(
            "ratelimit.connections.refused", ["listener", "reason"],
            "connections refused: `full` (`--max-connections` have calls), `silent` (closed for another), `accept` (too many open files, or another error)"
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
pub(crate) struct OpenConnection(ListenerMetrics);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.edge.of.open.add(-1, &[self.0.label()]);
        self.0.edge.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The calls of all connections. Each connection counts its own, so that a call costs nothing here.
#[derive(Clone, Default)]
pub(crate) struct CallsInProgress(Arc<Mutex<ConnectedCalls>>);

#[derive(Default)]
struct ConnectedCalls {
    next: u64,
    calls: HashMap<u64, CallTracker>,
}

impl fmt::Debug for CallsInProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallsInProgress").finish_non_exhaustive()
    }
}

impl CallsInProgress {
    /// Observes the calls of the connections that are [added](Self::add).
    pub(crate) fn observe(meter: &Meter) -> Self {
        let connected = Self::default();
        let observed = Self(Arc::clone(&connected.0));
        CALLS_OPEN.observe(meter, move |observe| {
            let calls: usize = observed.0.lock().calls.values().map(CallTracker::in_progress).sum();
            observe(u32::try_from(calls).map_or(f64::INFINITY, f64::from), &[]);
        });
        connected
    }

    /// Counts the calls of a connection until the result is dropped.
    pub(crate) fn add(&self, calls: CallTracker) -> CountedCalls {
        let mut connected = self.0.lock();
        let id = connected.next;
        connected.next += 1;
        connected.calls.insert(id, calls);
        CountedCalls { all: self.clone(), id }
    }
}

/// The calls of one connection, as the metrics count them.
#[derive(Debug)]
pub(crate) struct CountedCalls {
    all: CallsInProgress,
    id: u64,
}

impl Drop for CountedCalls {
    fn drop(&mut self) {
        self.all.0.lock().calls.remove(&self.id);
    }
}
