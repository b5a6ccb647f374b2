//! Telemetry: metrics, traces and log lines.

mod collector_causes;
mod export;
mod logs;
mod metrics;
mod traces;
