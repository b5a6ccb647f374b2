//! Traces, metrics and logs. Labels come from the configuration, never from a request.
//!
//! Metrics are always available at `/metrics`. Traces, and metrics by OTLP, are exported only if the
//! standard `OTEL_EXPORTER_OTLP_*` variables name an endpoint, and log records only if `OTEL_LOGS_EXPORTER` is set too.
//! Spans are built in `trace`, and only of calls that are sampled. Each part of the program defines its own instruments.

mod collector;
mod events;
mod export_failure;
mod families;
mod instrument;
mod log_filter;
mod log_records;
mod log_throttle;
mod metrics;
mod otlp;
mod provider;
mod trace;

pub use self::{
    events::{EventKind, breaker_openings, happened, last_events},
    families::{Families, label, value},
    instrument::{Observe, Observed, Recorder, float, instruments, observe_together},
    log_filter::DECISIONS,
    log_throttle::{LogCause, due_line},
    metrics::{INSTRUMENTS, PROCESS, START_TIME},
    trace::{CallSpan, StoreSpan, Wait, current, in_call, in_span_of_caller, with_call},
};
pub use self::{
    instrument::{InstrumentKind, InstrumentRow, InstrumentUnit},
    log_filter::LogFilter,
    log_records::LogRecords,
    otlp::{Batches, OtlpEndpoint, OtlpProtocol},
    provider::{Log, LogFormat, MetricsCompat, Telemetry, TelemetryOptions},
    trace::{ParentUse, Propagator, RootSampling, Sampling, SpanLimits, Tracer},
};
