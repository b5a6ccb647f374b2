//! The exporters of spans, metrics and log records, and the log.

use std::{
    fmt, fs,
    io::{self, IsTerminal as _},
    sync::{Arc, OnceLock},
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    logs::LoggerProvider as _,
    metrics::{Meter, MeterProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    logs::{self, BatchLogProcessor, SdkLoggerProvider},
    metrics::{Instrument, PeriodicReader, SdkMeterProvider, Stream},
    resource::{
        EnvResourceDetector, ResourceDetector, SdkProvidedResourceDetector,
        TelemetryResourceDetector,
    },
    trace::{self, BatchSpanProcessor, SpanProcessor as _},
};
use prometheus::Registry;
use tokio::{task::spawn_blocking, time};
use tracing_subscriber::{
    Layer as _, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _,
};

use super::{
    LogFilter,
    collector::{Collector, Reported, Signal},
    families::Families,
    instrument::InstrumentRow,
    log_records::LogRecords,
    metrics,
    otlp::OtlpEndpoint,
    trace::{Propagator, Sampling, SpanLimits, Tracer},
};
use crate::process::pause::random;

/// The most series of an instrument that counts by rule. The SDK's default of 2,000 would merge all further rules into
/// one series. It reserves memory for as many, so the other instruments keep the default.
const SERIES_MAX: usize = 200_000;

/// How long a collector that does not answer may delay the exit.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub struct TelemetryOptions {
    pub export_traces: Option<OtlpEndpoint>,
    /// Where metrics are sent by OTLP, besides `/metrics`.
    pub export_metrics: Option<OtlpEndpoint>,
    /// Where log records of notices are sent.
    pub export_logs: Option<OtlpEndpoint>,
    /// What describes this service, besides what the standard variables set.
    pub resource: Vec<(&'static str, String)>,
    pub sampling: Sampling,
    pub propagators: Vec<Propagator>,
    pub limits: SpanLimits,
    /// Other names that metrics also have on `/metrics`.
    pub compat: MetricsCompat,
}

/// Which other names metrics also have on `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsCompat {
    Off,
    Envoyproxy,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// The log lines that are written, until the filter is changed.
    pub filter: LogFilter,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// The running telemetry. It must be created in a tokio runtime.
pub struct Telemetry {
    registry: Registry,
    compat: MetricsCompat,
    meters: SdkMeterProvider,
    tracer: Option<Arc<Tracer>>,
    log_records: Option<SdkLoggerProvider>,
    /// The filter of log lines, if they are ours.
    log_filter: OnceLock<reload::Handle<LogFilter, tracing_subscriber::Registry>>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// What describes this process in all that it exports. What the standard variables set replaces the rest: replicas differ by
/// their instance, or a collector would take their metrics for one series.
/// <https://opentelemetry.io/docs/specs/semconv/resource/service>
fn resource(options: &TelemetryOptions) -> Resource {
    let mut own = vec![
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new(
            "service.instance.id",
            [(); 4].map(|()| format!("{:08x}", random())).concat(),
        ),
    ];
    if let Ok(host) = fs::read_to_string("/proc/sys/kernel/hostname") {
        own.push(KeyValue::new("host.name", host.trim_end().to_owned()));
    }
    let given = options.resource.iter().map(|(key, value)| KeyValue::new(*key, value.clone()));
    let detectors: [Box<dyn ResourceDetector>; 3] = [
        Box::new(SdkProvidedResourceDetector),
        Box::new(TelemetryResourceDetector),
        Box::new(EnvResourceDetector::new()),
    ];
    let resource = Resource::builder_empty().with_attributes(own).with_detectors(&detectors);
    resource.with_attributes(given).build()
}

impl Telemetry {
    /// Starts the exporters in `options`, for these instruments.
    pub fn start(
        options: &TelemetryOptions,
        instruments: impl Iterator<Item = &'static InstrumentRow>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let resource = resource(options);

        let registry = Registry::new();
        let prometheus = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()?;
        let mut meters =
            SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(prometheus);
        let by_rule = instruments.filter(|row| row.attributes.contains(&"rule"));
        let by_rule: Vec<&str> = by_rule.map(|row| row.name).collect();
        meters = meters.with_view(move |instrument: &Instrument| {
            let series = Stream::builder().with_cardinality_limit(SERIES_MAX);
            // Only a limit of 0 is an error.
            by_rule.contains(&instrument.name()).then(|| series.build().ok())?
        });
        let mut trace_collector = None;
        let mut tracer = None;
        if let Some(endpoint) = &options.export_traces {
            let collector = Collector::new(&endpoint.variable);
            trace_collector = Some(Arc::clone(&collector));
            let failure = endpoint.failure();
            let exporter = endpoint.span_exporter(&failure)?;
            let reported = Reported { exporter, signal: Signal::Traces, collector, failure };
            let batches = trace::BatchConfigBuilder::default()
                .with_scheduled_delay(endpoint.batches.delay)
                .with_max_queue_size(endpoint.batches.waiting_max)
                .with_max_export_batch_size(endpoint.batches.size_max);
            let processor = BatchSpanProcessor::builder(reported);
            let mut processor = processor.with_batch_config(batches.build()).build();
            processor.set_resource(&resource);
            let TelemetryOptions { sampling, propagators, limits, .. } = options.clone();
            tracer = Some(Arc::new(Tracer::new(processor, sampling, propagators, limits)));
        }
        if let Some(endpoint) = &options.export_metrics {
            let of_traces = options.export_traces.as_ref().map(|traces| &traces.variable);
            let collector = match trace_collector {
                // An outage of one endpoint is logged once.
                Some(shared) if of_traces == Some(&endpoint.variable) => shared,
                _ => Collector::new(&endpoint.variable),
            };
            let failure = endpoint.failure();
            let exporter = endpoint.metric_exporter(&failure)?;
            let reported = Reported { exporter, signal: Signal::Metrics, collector, failure };
            let reader = PeriodicReader::builder(reported).with_interval(endpoint.batches.delay);
            meters = meters.with_reader(reader.build());
        }
        let mut log_records = None;
        if let Some(endpoint) = &options.export_logs {
            // A collector without a pipeline for logs refuses only them.
            let collector = Collector::new(&endpoint.variable);
            let failure = endpoint.failure();
            let exporter = endpoint.log_exporter(&failure)?;
            let reported = Reported { exporter, signal: Signal::Logs, collector, failure };
            let batches = logs::BatchConfigBuilder::default()
                .with_scheduled_delay(endpoint.batches.delay)
                .with_max_queue_size(endpoint.batches.waiting_max)
                .with_max_export_batch_size(endpoint.batches.size_max);
            let processor = BatchLogProcessor::builder(reported);
            let processor = processor.with_batch_config(batches.build()).build();
            let provider = SdkLoggerProvider::builder().with_resource(resource);
            log_records = Some(provider.with_log_processor(processor).build());
        }
        let (compat, meters) = (options.compat, meters.build());
        let log_filter = OnceLock::new();
        let telemetry = Self { registry, compat, meters, tracer, log_records, log_filter };
        metrics::build_info(&telemetry.meter());
        metrics::observe_process(&telemetry.meter());
        Ok(telemetry)
    }

    /// Sends log lines to stderr, for the whole process. A second call has no effect.
    pub fn install(&self, log: &Log) {
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        // On a terminal the layer uses colours, unless NO_COLOR is set.
        let lines = if io::stderr().is_terminal() { lines } else { lines.with_ansi(false) };
        let lines = match log.format {
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
            LogFormat::Text => lines.boxed(),
        };
        let (filter, handle) = reload::Layer::new(log.filter.clone());
        let lines = lines.with_filter(filter);
        if tracing_subscriber::registry().with(lines).try_init().is_ok() {
            drop(self.log_filter.set(handle));
        }
    }

    /// Which log lines are written; `None` if this process has another log.
    pub fn log_filter(&self) -> Option<LogFilter> {
        self.log_filter.get()?.clone_current()
    }

    /// Changes which log lines are written. Without our own log it has no effect.
    pub fn set_log_filter(&self, filter: LogFilter) {
        if let Some(handle) = self.log_filter.get() {
            // It fails only if the log is gone.
            drop(handle.reload(filter));
        }
    }

    /// What begins and exports spans, if they are exported.
    pub fn tracer(&self) -> Option<Arc<Tracer>> {
        self.tracer.clone()
    }

    /// What exports events, if they are exported.
    pub fn log_records(&self) -> Option<LogRecords> {
        self.log_records.as_ref().map(|provider| LogRecords(provider.logger("tollkeeper")))
    }

    pub fn meter(&self) -> Meter {
        self.meters.meter("tollkeeper")
    }

    pub fn families(&self) -> Families {
        Families(self.registry.gather())
    }

    pub const fn compat(&self) -> MetricsCompat {
        self.compat
    }

    /// Exports what is left, within [`FLUSH_WITHIN`].
    pub async fn flush(&self) {
        let (meters, tracer, logs) = (self.meters.clone(), self.tracer(), self.log_records.clone());
        // They block, and the SDK ignores the time limit for metrics.
        let metrics = spawn_blocking(move || meters.shutdown());
        let traces = spawn_blocking(move || tracer.map(|tracer| tracer.shutdown()));
        let logs = spawn_blocking(move || logs.map(|logs| logs.shutdown()));
        let sent = async { (metrics.await, traces.await, logs.await) };
        // If the collector does not answer, the data are lost.
        drop(time::timeout(FLUSH_WITHIN, sent).await);
    }
}
