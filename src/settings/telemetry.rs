//! Log lines, metrics and traces: tollkeeper's settings. OpenTelemetry's standard variables are in `otel`.

use super::{
    otel,
    reader::{
        Setting, SettingReader,
        form::{Custom, OneOf, Ratio},
    },
};
use crate::{
    telemetry::{Log, LogFilter, LogFormat, MetricsCompat, TelemetryOptions},
    top_keys::TopKeyNames,
};

/// Log lines, metrics and traces.
#[derive(Debug, Clone)]
pub struct TelemetrySettings {
    /// Log lines.
    pub log: Log,
    /// Part of a limit beyond which hits count as near it, 0 to 1.
    pub near_limit_ratio: f64,
    /// What `/top` shows.
    pub top_keys: TopKeyNames,
    /// Which telemetry is sent to a collector.
    pub export: TelemetryOptions,
}

const FILTER: Custom<LogFilter> = Custom { name: "FILTER", read: filter };

fn filter(text: &str) -> Result<LogFilter, String> {
    text.parse().map_err(|problem| format!("invalid value `{text}`: {problem}"))
}

const FORMATS: OneOf<LogFormat> = OneOf(&[("text", LogFormat::Text), ("json", LogFormat::Json)]);

const COMPAT: OneOf<MetricsCompat> =
    OneOf(&[("none", MetricsCompat::Off), ("envoyproxy", MetricsCompat::Envoyproxy)]);

const TOP_KEYS: OneOf<TopKeyNames> = OneOf(&[
    ("digests", TopKeyNames::Digests),
    ("values", TopKeyNames::Values),
    ("off", TopKeyNames::Off),
]);

impl TelemetrySettings {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let filter = reader.read(&Setting {
            flag: "log-level",
            form: FILTER,
            default: "info",
            help: "Least severe level that is logged (error, warn, info, debug, off), also by target: info,TARGET=debug",
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
            help: "Fraction of a limit above which metrics count hits as near it",
        });
        let compat = reader.read(&Setting {
            flag: "metrics-compat",
            form: COMPAT,
            default: "none",
            help: "Additional names of metrics on /metrics: envoyproxy/ratelimit's, for its dashboards",
        });
        let top_keys = reader.read(&Setting {
            flag: "top-keys",
            form: TOP_KEYS,
            default: "digests",
            help: "How the admin address shows the hottest keys: by digests of their values, or by the values themselves",
        });
        let environment = reader.environment.with(&reader.translated.otel);
        let mut problems = Vec::new();
        let export = otel::read(&environment, &mut problems, &mut reader.warnings);
        reader.add_problems(problems);
        let mut export = TelemetryOptions { compat, ..export };
        // The last of several values counts.
        export.resource.extend(reader.translated.resource.iter().cloned());
        Self { log: Log { filter, format }, near_limit_ratio, top_keys, export }
    }
}
