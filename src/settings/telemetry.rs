//! Log lines, metrics and traces: tollkeeper's settings, and those of OpenTelemetry's standard variables
//! that its SDK leaves to the program.

use tracing::level_filters::LevelFilter;

use super::{
    form::{OneOf, Ratio},
    reader::{Environment, SettingReader},
    row::Setting,
};
use crate::telemetry::{Log, LogFormat, MetricsCompat, TelemetryOptions};

/// Log lines, metrics and traces.
#[derive(Debug, Clone)]
pub struct TelemetrySettings {
    /// Log lines.
    pub log: Log,
    /// Part of a limit beyond which hits count as near it, 0 to 1.
    pub near_limit_ratio: f64,
    /// Which telemetry is sent to a collector.
    pub export: TelemetryOptions,
}

const LEVELS: OneOf<LevelFilter> = OneOf(&[
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("off", LevelFilter::OFF),
]);

const FORMATS: OneOf<LogFormat> = OneOf(&[("text", LogFormat::Text), ("json", LogFormat::Json)]);

const COMPAT: OneOf<MetricsCompat> =
    OneOf(&[("none", MetricsCompat::Off), ("envoyproxy", MetricsCompat::Envoyproxy)]);

impl TelemetrySettings {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let level = reader.read(&Setting {
            flag: "log-level",
            form: LEVELS,
            default: "info",
            help: "Least severe level that is logged",
        });
        let format = reader.read(&Setting {
            flag: "log-format",
            form: FORMATS,
            default: "text",
            help: "Format of the log and of the ready line on stdout",
        });
        let near_limit_ratio = reader.read(&Setting {
            flag: "near-limit-ratio",
            form: Ratio,
            default: "0.8",
            help: "Part of a limit beyond which metrics count hits as near it",
        });
        let compat = reader.read(&Setting {
            flag: "metrics-compat",
            form: COMPAT,
            default: "none",
            help: "Other names that metrics also have on /metrics: those of envoyproxy/ratelimit, for its dashboards",
        });
        let export = TelemetryOptions { compat, ..read_export(reader) };
        Self { log: Log { level, format }, near_limit_ratio, export }
    }
}

fn read_export(reader: &mut SettingReader<'_>) -> TelemetryOptions {
    let environment = reader.environment;
    let traces = Endpoint::of("TRACES", environment);
    let metrics = Endpoint::of("METRICS", environment);
    let mut problems = Vec::new();
    for endpoint in traces.iter().chain(&metrics) {
        problems.extend(endpoint.problems(environment));
    }
    // Both signals may name the same variable.
    problems.sort();
    problems.dedup();
    reader.problems.extend(problems);
    TelemetryOptions {
        export_traces: traces.map(|endpoint| endpoint.variable),
        export_metrics: metrics.map(|endpoint| endpoint.variable),
        compat: MetricsCompat::Off,
        service_name: environment.text("OTEL_SERVICE_NAME").is_none().then_some("tollkeeper"),
    }
}

/// Where the telemetry of one signal is sent.
struct Endpoint<'a> {
    signal: &'static str,
    variable: String,
    url: &'a str,
}

impl<'a> Endpoint<'a> {
    /// The endpoint of a signal, unless it is unset or the standard variables turn the signal off.
    fn of(signal: &'static str, environment: &'a Environment) -> Option<Self> {
        let disabled = environment.text("OTEL_SDK_DISABLED");
        let exporter = environment.text(&format!("OTEL_{signal}_EXPORTER"));
        if disabled.is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || exporter == Some("none")
        {
            return None;
        }
        both_forms(signal, "ENDPOINT").into_iter().find_map(|variable| {
            let url = environment.text(&variable)?;
            Some(Self { signal, variable, url })
        })
    }

    fn problems(&self, environment: &Environment) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.url.starts_with("http://") {
            let variable = &self.variable;
            problems.push(format!("{variable}: must begin with http://; TLS is not supported"));
        }
        for variable in both_forms(self.signal, "PROTOCOL") {
            if environment.text(&variable).is_some_and(|protocol| protocol != "grpc") {
                problems.push(format!("{variable}: must be grpc"));
            }
        }
        problems
    }
}

/// The variable of one signal, and the variable of all signals, over which it has precedence.
fn both_forms(signal: &str, name: &str) -> [String; 2] {
    [format!("OTEL_EXPORTER_OTLP_{signal}_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")]
}
