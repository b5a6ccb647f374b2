//! Log lines, metrics, and traces, which the standard variables of OpenTelemetry describe here.

use super::{Translator, go};

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"];

/// The variables that have an effect only if spans are exported.
const OF_SPANS: [&str; 5] = [
    "TRACING_EXPORTER_PROTOCOL",
    "TRACING_SERVICE_NAME",
    "TRACING_SERVICE_NAMESPACE",
    "TRACING_SERVICE_INSTANCE_ID",
    "TRACING_SAMPLING_RATE",
];

impl Translator<'_> {
    pub(super) fn telemetry(&mut self) {
        let level = self.text("LOG_LEVEL").unwrap_or("warn").to_ascii_lowercase();
        let level = match &*level {
            "panic" | "fatal" => "error",
            "warning" => "warn",
            "trace" => "debug",
            level => level,
        };
        self.set("log-level", &["LOG_LEVEL"], level);
        if let Some(format) = self.text("LOG_FORMAT") {
            self.set("log-format", &["LOG_FORMAT"], format.to_ascii_lowercase());
        }
        if let Some(ratio) = self.ratio("near-limit-ratio", "NEAR_LIMIT_RATIO") {
            self.set("near-limit-ratio", &["NEAR_LIMIT_RATIO"], ratio);
        }
        if self.is_on("USE_STATSD") {
            let host = self.text("STATSD_HOST").unwrap_or("localhost");
            let port = self.text("STATSD_PORT").unwrap_or("8125");
            let variables = ["STATSD_HOST", "STATSD_PORT", "USE_STATSD"];
            self.set("statsd-addr", &variables, format!("{host}:{port}"));
        } else {
            self.warn_all(&["STATSD_HOST", "STATSD_PORT"], "USE_STATSD is not true");
        }
        // It sends spans alone, so a collector may have no pipeline for metrics.
        if self.lacks(&["OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"]) {
            self.set_otel("OTEL_METRICS_EXPORTER", "none");
        }
        if self.is_on("TRACING_ENABLED") {
            self.spans();
        } else {
            self.warn_all(&OF_SPANS, "TRACING_ENABLED is not true");
            if self.lacks(&["OTEL_TRACES_EXPORTER"]) {
                self.set_otel("OTEL_TRACES_EXPORTER", "none");
            }
        }
    }

    fn spans(&mut self) {
        let protocol = self.text("TRACING_EXPORTER_PROTOCOL");
        let is_grpc = protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case("grpc"));
        if protocol.is_some() || self.lacks(&PROTOCOLS) {
            self.set_otel(PROTOCOLS[1], if is_grpc { "grpc" } else { "http/protobuf" });
        }
        if self.lacks(&ENDPOINTS) {
            let port = if is_grpc { "4317" } else { "4318" };
            self.set_otel(ENDPOINTS[1], &format!("http://localhost:{port}"));
        }
        if self.lacks(&["OTEL_TRACES_SAMPLER"]) {
            self.set_otel("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
            let rate = self.ratio("", "TRACING_SAMPLING_RATE");
            self.set_otel("OTEL_TRACES_SAMPLER_ARG", rate.as_deref().unwrap_or("1"));
        }
        if self.lacks(&["OTEL_SERVICE_NAME"]) {
            let name = self.text("TRACING_SERVICE_NAME").unwrap_or("RateLimit");
            self.out.resource.push(("service.name", name.to_owned()));
        }
        for (key, variable) in [
            ("service.namespace", "TRACING_SERVICE_NAMESPACE"),
            ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID"),
        ] {
            if let Some(value) = self.text(variable) {
                self.out.resource.push((key, value.to_owned()));
            }
        }
    }

    /// A number from 0 to 1.
    fn ratio(&mut self, flag: &'static str, variable: &'static str) -> Option<String> {
        let ratio = self.text(variable).and_then(go::fraction)?;
        Some(self.clamp((flag, variable), ratio, (0.0, 1.0), |ratio| ratio.to_string()))
    }

    /// Whether none of these variables is set.
    fn lacks(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.environment.text(name).is_none())
    }

    fn set_otel(&mut self, name: &str, value: &str) {
        self.out.otel.push((name.to_owned(), value.into()));
    }
}
