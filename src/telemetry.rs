//! Traces, metrics and logs. Labels come from the configuration, never from a request.
//!
//! Metrics are always available at `/metrics`. Traces, and metrics by OTLP, are exported only if the
//! standard `OTEL_EXPORTER_OTLP_*` variables name an endpoint. Spans are built in `trace`, and only of calls that are
//! sampled.

mod collector;
mod decision_line;
mod labels;
mod log_filter;
mod log_throttle;
mod matched;
mod metrics;
mod otlp;
mod provider;
mod trace;

pub(crate) use decision_line::log_decision;
pub use log_filter::LogFilter;
pub(crate) use log_throttle::LogThrottle;
pub use metrics::{
    CallMetrics, EdgeMetrics, FileMetrics, ListenerMetrics, MemoryMetrics, RuleMetrics,
    StoreMetrics,
};
pub(crate) use metrics::{RefusedConnection, is_server_error, redis_error_type, status_name};
pub use otlp::{OtlpEndpoint, OtlpProtocol};
pub use provider::{Log, LogFormat, Telemetry, TelemetryOptions};
pub(crate) use trace::{CallSpan, StoreSpan, Wait, current, in_call, in_store_span, with_call};
pub use trace::{ParentUse, Propagator, RootSampling, Sampling, SpanLimits, Tracer};
