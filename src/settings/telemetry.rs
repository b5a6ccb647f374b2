//! Log lines, metrics and traces: tollkeeper's settings. Those of OpenTelemetry's standard variables are in `otel`.

use tracing::level_filters::LevelFilter;

use super::{
    form::{OneOf, Ratio},
    otel,
    reader::SettingReader,
    row::Setting,
};
use crate::telemetry::{Log, LogFormat, TelemetryOptions};

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
        let environment = reader.environment;
        let export = otel::read(environment, &mut reader.problems, &mut reader.warnings);
        Self { log: Log { level, format }, near_limit_ratio, export }
    }
}
