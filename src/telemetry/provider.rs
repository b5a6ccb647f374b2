//! The exporters of spans, metrics and log lines.

use std::{
    fmt,
    io::{self, IsTerminal as _},
    sync::Arc,
    time::Duration,
};

use opentelemetry::{
    Context,
    metrics::{Meter, MeterProvider as _},
    propagation::{Extractor, TextMapPropagator as _},
    trace::TracerProvider as _,
};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    metrics::{Instrument, SdkMeterProvider, Stream},
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use prometheus::{Registry, TextEncoder};
use tokio::{task::spawn_blocking, time};
use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, filter::filter_fn, layer::SubscriberExt as _, registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use super::{
    collector::{Collector, Reported, Signal},
    compat::{self, MetricsCompat},
    metrics,
};

/// The most series of an instrument that counts by rule. The SDK's default of 2,000 would merge all further rules into
/// one series. It reserves memory for as many, so the other instruments keep the default.
const SERIES_MAX: usize = 200_000;

fn series_of_rules(instrument: &Instrument) -> Option<Stream> {
    if !metrics::instruments().any(|row| row.name == instrument.name() && row.is_by_rule()) {
        return None;
    }
    // Only a limit of 0 is an error.
    Stream::builder().with_cardinality_limit(SERIES_MAX).build().ok()
}

/// How long a collector that does not answer may delay the exit.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

/// Which exporters to start.
#[derive(Debug, Clone)]
pub struct TelemetryOptions {
    /// Export spans by OTLP, to the endpoint in this environment variable.
    pub export_traces: Option<String>,
    /// Export metrics by OTLP, besides `/metrics`, to the endpoint in this environment variable.
    pub export_metrics: Option<String>,
    /// `service.name`, unless the standard variables set it.
    pub service_name: Option<&'static str>,
    /// Other names that metrics also have on `/metrics`.
    pub compat: MetricsCompat,
}

/// The level and format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// The least severe level that is written.
    pub level: LevelFilter,
    /// The format of a line.
    pub format: LogFormat,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// The running telemetry. It must be created in a tokio runtime.
pub struct Telemetry {
    registry: Registry,
    compat: MetricsCompat,
    meters: SdkMeterProvider,
    traces: Option<SdkTracerProvider>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Telemetry {
    /// Starts the exporters in `options`.
    ///
    /// # Errors
    /// If an exporter cannot be built from the standard variables.
    pub fn start(options: &TelemetryOptions) -> Result<Self, Box<dyn std::error::Error>> {
        let mut resource = Resource::builder();
        if let Some(name) = options.service_name {
            resource = resource.with_service_name(name);
        }
        let resource = resource.build();

        let registry = Registry::new();
        let prometheus = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()?;
        let mut meters =
            SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(prometheus);
        meters = meters.with_view(series_of_rules);
        let trace_collector = options.export_traces.as_deref().map(Collector::new);
        if let Some(variable) = &options.export_metrics {
            let collector = match &trace_collector {
                // An outage of one endpoint is logged once.
                Some(shared) if options.export_traces == options.export_metrics => {
                    Arc::clone(shared)
                }
                _ => Collector::new(variable),
            };
            let exporter = MetricExporter::builder().with_tonic().build()?;
            let signal = Signal::Metrics;
            meters = meters.with_periodic_exporter(Reported { exporter, signal, collector });
        }
        let traces = match trace_collector {
            Some(collector) => {
                let exporter = SpanExporter::builder().with_tonic().build()?;
                let reported = Reported { exporter, signal: Signal::Traces, collector };
                let traces = SdkTracerProvider::builder().with_resource(resource);
                Some(traces.with_batch_exporter(reported).build())
            }
            None => None,
        };
        let compat = options.compat;
        let telemetry = Self { registry, compat, meters: meters.build(), traces };
        metrics::build_info(&telemetry.meter());
        metrics::observe_process(&telemetry.meter());
        Ok(telemetry)
    }

    /// Sends log lines to stderr and, if traces are exported, spans to the exporter, for the whole
    /// process. A second call has no effect.
    pub fn install(&self, log: Log) {
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        // On a terminal the layer uses colours, unless NO_COLOR is set.
        let lines = if io::stderr().is_terminal() { lines } else { lines.with_ansi(false) };
        let lines = match log.format {
            LogFormat::Json => lines.json().boxed(),
            LogFormat::Text => lines.boxed(),
        };
        let level = log.level;
        let filter = filter_fn(move |metadata| is_line(metadata, level)).with_max_level_hint(level);
        let lines = lines.with_filter(filter);
        let subscriber = tracing_subscriber::registry().with(lines);
        // Without an exporter no layer may accept spans: creating and discarding them would cost more than a
        // decision.
        let installed = match self.tracer() {
            Some(tracer) => subscriber.with(span_layer(tracer)).try_init(),
            None => subscriber.try_init(),
        };
        drop(installed);
    }

    fn tracer(&self) -> Option<SdkTracer> {
        self.traces.as_ref().map(|traces| traces.tracer("tollkeeper"))
    }

    /// The source of instruments.
    pub fn meter(&self) -> Meter {
        self.meters.meter("tollkeeper")
    }

    /// All metrics, in the text format of Prometheus.
    pub fn scrape(&self) -> String {
        let mut families = self.registry.gather();
        match self.compat {
            MetricsCompat::Off => {}
            MetricsCompat::Envoyproxy => families.extend(compat::envoyproxy(&families)),
        }
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }

    /// Exports what is left, within [`FLUSH_WITHIN`].
    pub async fn flush(&self) {
        let (meters, traces) = (self.meters.clone(), self.traces.clone());
        // Both block, and the SDK ignores the time limit for metrics.
        let metrics = spawn_blocking(move || meters.shutdown());
        let traces = spawn_blocking(move || traces.map(|traces| traces.shutdown()));
        let sent = async { (metrics.await, traces.await) };
        // If the collector does not answer, the data are lost.
        drop(time::timeout(FLUSH_WITHIN, sent).await);
    }
}

fn is_line(metadata: &Metadata<'_>, level: LevelFilter) -> bool {
    // A peer can cause any number of warnings of h2.
    let is_caused_by_peer =
        metadata.target().starts_with("h2::") && *metadata.level() != Level::ERROR;
    metadata.is_event() && *metadata.level() <= level && !is_caused_by_peer
}

fn is_own_span(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("tollkeeper")
}

fn span_layer<S>(tracer: SdkTracer) -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(filter_fn(is_own_span).with_max_level_hint(LevelFilter::INFO))
}

/// The caller's span, from the W3C trace headers of a request.
pub fn remote_parent(headers: &http::HeaderMap) -> Context {
    TraceContextPropagator::new().extract(&HeaderExtractor(headers))
}

struct HeaderExtractor<'a>(&'a http::HeaderMap);

/// A longer trace header is as if absent, which W3C allows from here on. A client may write megabytes into
/// its `tracestate`, and every span of the call would hold and export them.
const TRACE_HEADER_BYTES_MAX: usize = 512;

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        (value.len() <= TRACE_HEADER_BYTES_MAX).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
