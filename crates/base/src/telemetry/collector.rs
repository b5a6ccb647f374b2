//! Exporters that log outages of their collector: one line when an outage begins, and one when it ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    logs::{LogBatch, LogExporter},
    metrics::{Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{SpanData, SpanExporter},
};

use super::export_failure::ExportFailure;
use crate::process::clock::system_clock;

#[derive(Debug)]
pub(super) struct Collector {
    /// The environment variable that holds the endpoint. Its value may hold a secret.
    variable: String,
    /// One bit for each signal whose last export failed.
    failing: AtomicU8,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Signal {
    Traces = 1,
    Metrics = 2,
    Logs = 4,
}

impl Signal {
    /// What a collector of this signal gets. Traces and metrics may have the same one.
    const fn data(self) -> &'static str {
        match self {
            Self::Traces | Self::Metrics => "traces and metrics",
            Self::Logs => "log records of notices",
        }
    }
}

impl Collector {
    /// The collector whose endpoint is in the environment variable `variable`.
    pub(super) fn new(variable: &str) -> Arc<Self> {
        Arc::new(Self { variable: variable.to_owned(), failing: AtomicU8::new(0) })
    }
}

/// An exporter of one signal that logs the outages of its collector.
#[derive(Debug)]
pub(super) struct Reported<E> {
    pub(super) exporter: E,
    pub(super) signal: Signal,
    pub(super) collector: Arc<Collector>,
    pub(super) failure: ExportFailure,
}

impl<E> Reported<E> {
    async fn report(&self, exported: impl Future<Output = OTelSdkResult>) -> OTelSdkResult {
        let began = Instant::now();
        let outcome = match system_clock().as_millis() {
            // The exporter would panic, which ends its thread.
            0 => Err(OTelSdkError::InternalFailure("the clock is before 1970".to_owned())),
            1.. => exported.await,
        };
        let took = began.elapsed();
        let Collector { variable, failing } = &*self.collector;
        let (bit, data) = (self.signal as u8, self.signal.data());
        match &outcome {
            Ok(()) => {
                if failing.fetch_and(!bit, Ordering::Relaxed) == bit {
                    tracing::info!(variable, "the OTLP collector accepts {data} again");
                }
            }
            Err(OTelSdkError::AlreadyShutdown) => {}
            Err(error) => {
                if failing.fetch_or(bit, Ordering::Relaxed) == 0 {
                    // It holds a status code or our own error, never text of the collector.
                    let error = self.failure.cause(error, took).await;
                    tracing::warn!(
                        variable,
                        %error,
                        "the OTLP collector is not reachable or refuses data; {data} are lost"
                    );
                }
            }
        }
        outcome
    }
}

impl<E: SpanExporter> SpanExporter for Reported<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.report(self.exporter.export(batch)).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Reported<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.report(self.exporter.export(metrics)).await
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

impl<E: LogExporter> LogExporter for Reported<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        self.report(self.exporter.export(batch)).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
