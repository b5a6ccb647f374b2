//! What a run does.

use std::{sync::Arc, time::Duration};

use tollkeeper_base::net::tls::client::TlsClient;

use super::calls::Calls;

#[derive(Debug, Clone)]
pub struct Load {
    /// The service, as `host:port`.
    pub addr: String,
    pub tls: Option<Arc<TlsClient>>,
    pub calls: Calls,
    pub pace: Pace,
    /// Number of connections; each thread has at least one.
    pub connections: usize,
    /// Number of threads, at least 1; each has connections of its own.
    pub threads: usize,
    /// Duration of the calls before the measurement.
    pub warmup: Duration,
    pub duration: Duration,
    /// Maximum number of measured calls; the run ends after them.
    pub calls_max: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// When an earlier call is answered, with this number of calls under way at any time.
    Closed(usize),
    /// At this number of calls per second (see [`Timetable`](super::Timetable)), whether or not earlier
    /// calls are answered.
    Open(f64),
}
