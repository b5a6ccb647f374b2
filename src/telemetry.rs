//! Traces, metrics and logs. Labels come from the configuration, never from a request.
//!
//! Metrics are always available at `/metrics`. Traces, and metrics by OTLP, are exported only if the
//! standard `OTEL_EXPORTER_OTLP_*` variables name an endpoint. Spans are built in `trace`, and only of calls that are
//! sampled.

mod collector;
mod compat;
mod decision_line;
mod export_failure;
mod instrument;
mod labels;
mod log_filter;
mod log_throttle;
mod matched;
mod metrics;
mod otlp;
mod provider;
mod status;
mod trace;

pub use compat::MetricsCompat;
pub(crate) use decision_line::log_decision;
pub use instrument::{InstrumentKind, InstrumentRow, InstrumentUnit};
pub use log_filter::LogFilter;
pub(crate) use log_throttle::{LogCause, due_line};
pub use metrics::{
    CallMetrics, EdgeMetrics, FileMetrics, ListenerMetrics, MemoryMetrics, MemoryReport,
    RuleMetrics, ServerReport, ServerUsage, StoreMetrics, instruments, observe_control_plane,
    observe_memory, observe_servers,
};
pub(crate) use metrics::{
    CallsInProgress, CountedCalls, RefusedConnection, is_server_error, redis_error_type,
};
pub use otlp::{OtlpEndpoint, OtlpProtocol};
pub use provider::{Log, LogFormat, Telemetry, TelemetryOptions};
pub use status::{RuleDecisions, StatusNumbers};
pub(crate) use trace::{
    CallSpan, StoreSpan, Wait, current, in_call, in_span_of_caller, in_store_span, with_call,
};
pub use trace::{ParentUse, Propagator, RootSampling, Sampling, SpanLimits, Tracer};
