//! Traces, metrics and logs. Labels come from the configuration, never from a request.
//!
//! Metrics are always available at `/metrics`. Traces, and metrics by OTLP, are exported only if the
//! standard `OTEL_EXPORTER_OTLP_*` variables name an endpoint.

mod collector;
mod compat;
mod instrument;
mod labels;
mod log_throttle;
mod metrics;
mod provider;

pub use compat::MetricsCompat;
pub use instrument::{InstrumentKind, InstrumentRow, InstrumentUnit};
pub(crate) use log_throttle::LogThrottle;
pub use metrics::{
    CallMetrics, EdgeMetrics, FileMetrics, ListenerMetrics, MemoryMetrics, MemoryReport,
    RuleMetrics, ServerReport, ServerUsage, StoreMetrics, instruments, observe_memory,
    observe_servers,
};
pub(crate) use metrics::{
    CallsInProgress, RefusedConnection, in_span, is_server_error, redis_error_type, status_name,
    store_span,
};
pub use provider::{Log, LogFormat, Telemetry, TelemetryOptions, remote_parent};
