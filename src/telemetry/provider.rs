//! Where spans, metrics and log lines go.

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
use tracing::{Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, filter::filter_fn, layer::SubscriberExt as _, registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use super::{
    collector::{Collector, Reported, Signal},
    metrics,
};

/// The most series of one instrument. The SDK's own 2,000 would fold the rules behind them into one.
const SERIES_MAX: usize = 200_000;

fn roomy(instrument: &Instrument) -> Option<Stream> {
    let of_rules = instrument.name().starts_with("ratelimit.");
    // Only a limit of 0 is refused.
    of_rules.then(|| Stream::builder().with_cardinality_limit(SERIES_MAX).build().ok()).flatten()
}

/// How long a collector that does not answer may hold up the exit.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

/// What goes out, and what is logged.
#[derive(Debug, Clone)]
pub struct TelemetryOptions {
    /// Send spans by OTLP, to the endpoint in this environment variable.
    pub export_traces: Option<String>,
    /// Send metrics by OTLP, besides `/metrics`, to the endpoint in this environment variable.
    pub export_metrics: Option<String>,
    /// `service.name`, unless the standard variables set it.
    pub service_name: Option<&'static str>,
}

/// How log lines look, and from which level on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// The least severe level that is written.
    pub level: LevelFilter,
    /// How a line is written.
    pub format: LogFormat,
}

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// The running telemetry. It must be made inside a tokio runtime.
pub struct Telemetry {
    registry: Registry,
    meters: SdkMeterProvider,
    traces: Option<SdkTracerProvider>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Telemetry {
    /// Starts what `options` ask for.
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
        meters = meters.with_view(roomy);
        let of_traces = options.export_traces.as_deref().map(Collector::new);
        if let Some(variable) = &options.export_metrics {
            let collector = match &of_traces {
                // One endpoint has one outage.
                Some(shared) if options.export_traces == options.export_metrics => {
                    Arc::clone(shared)
                }
                _ => Collector::new(variable),
            };
            let exporter = MetricExporter::builder().with_tonic().build()?;
            let signal = Signal::Metrics;
            meters = meters.with_periodic_exporter(Reported { exporter, signal, collector });
        }
        let traces = match of_traces {
            Some(collector) => {
                let exporter = SpanExporter::builder().with_tonic().build()?;
                let reported = Reported { exporter, signal: Signal::Traces, collector };
                let traces = SdkTracerProvider::builder().with_resource(resource);
                Some(traces.with_batch_exporter(reported).build())
            }
            None => None,
        };
        let telemetry = Self { registry, meters: meters.build(), traces };
        metrics::build_info(&telemetry.meter());
        Ok(telemetry)
    }

    /// Sends log lines to stderr and, where traces are exported, spans to the exporter, for the whole
    /// process. Does nothing the second time.
    pub fn install(&self, log: Log) {
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        let lines = match io::stderr().is_terminal() {
            // Coloured, unless NO_COLOR is set: the layer sees to that.
            true => lines,
            false => lines.with_ansi(false),
        };
        let lines = match log.format {
            LogFormat::Json => lines.json().boxed(),
            LogFormat::Text => lines.boxed(),
        };
        let level = log.level;
        // A peer can make h2 warn as often as it likes.
        let is_ours = |target: &str| !target.starts_with("h2::");
        let is_line = filter_fn(move |it| {
            it.is_event()
                && *it.level() <= level
                && (is_ours(it.target()) || *it.level() == Level::ERROR)
        });
        let lines = lines.with_filter(is_line.with_max_level_hint(level));
        let subscriber = tracing_subscriber::registry().with(lines);
        // Spans are for the exporter. Without one there must be no layer that could want them: to find
        // out at each span that nobody does costs more than a decision.
        let installed = match self.tracer() {
            Some(tracer) => subscriber.with(span_layer(tracer)).try_init(),
            None => subscriber.try_init(),
        };
        drop(installed);
    }

    fn tracer(&self) -> Option<SdkTracer> {
        self.traces.as_ref().map(|traces| traces.tracer("tollkeeper"))
    }

    /// Where instruments come from.
    pub fn meter(&self) -> Meter {
        self.meters.meter("tollkeeper")
    }

    /// All metrics, in Prometheus' text format.
    pub fn scrape(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }

    /// Sends what is left, within [`FLUSH_WITHIN`].
    pub async fn flush(&self) {
        let (meters, traces) = (self.meters.clone(), self.traces.clone());
        // Both block; and the SDK waits for metrics as long as it likes, whatever it is told.
        let metrics = spawn_blocking(move || meters.shutdown());
        let traces = spawn_blocking(move || traces.map(|traces| traces.shutdown()));
        let sent = async { (metrics.await, traces.await) };
        // Where a collector does not answer there is nobody left to tell.
        drop(time::timeout(FLUSH_WITHIN, sent).await);
    }
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
        .with_filter(
            filter_fn(|it| it.is_span() && it.target().starts_with("tollkeeper"))
                .with_max_level_hint(LevelFilter::INFO),
        )
}

/// The caller's span, from the W3C trace headers of a request.
pub fn remote_parent(headers: &http::HeaderMap) -> Context {
    TraceContextPropagator::new().extract(&Headers(headers))
}

struct Headers<'a>(&'a http::HeaderMap);

/// A longer trace header is as if absent, which W3C allows from here on. A client may write megabytes into
/// its `tracestate`, and every span of the call would hold and export them.
const TRACE_HEADER_BYTES_MAX: usize = 512;

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        (value.len() <= TRACE_HEADER_BYTES_MAX).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
