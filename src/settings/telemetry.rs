//! Log lines, metrics and traces: tollkeeper's settings. OpenTelemetry's standard variables are in `otel`.

use std::time::Duration;

use super::{
    notices, otel,
    reader::{
        SettingReader,
        form::{Custom, OneOf, OrOff, PATH, Ratio, Size, WholeNumber, invalid, whole_number},
        url_parts::host_and_port,
    },
};
use crate::{
    notices::Webhook,
    recording::RecordingOptions,
    telemetry::{Log, LogFilter, LogFormat, MetricsCompat, TelemetryOptions},
    top_keys::TopKeyNames,
};

#[derive(Debug, Clone)]
pub struct TelemetrySettings {
    pub log: Log,
    /// Part of a limit beyond which hits count as near it, 0 to 1.
    pub near_limit_ratio: f64,
    pub top_keys: TopKeyNames,
    /// The shortest time between two log lines about denials, if any are logged.
    pub denial_lines: Option<Duration>,
    /// One in this many windows of counters is audited; 0 audits none.
    pub audit_one_in: u64,
    /// Where notices are sent.
    pub webhook: Option<Webhook>,
    /// Where calls are recorded, if they are.
    pub recording: Option<RecordingOptions>,
    /// Host and port of statsd.
    pub statsd: Option<String>,
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

const STATSD: Custom<String> = Custom { name: "HOST:PORT", read: statsd };

fn statsd(text: &str) -> Result<String, String> {
    let address = host_and_port(text).map(|_| text.to_owned());
    address.ok_or_else(|| invalid(text, "a host and a port, such as statsd:8125"))
}

const TOP_KEYS: OneOf<TopKeyNames> = OneOf(&[
    ("digests", TopKeyNames::Digests),
    ("values", TopKeyNames::Values),
    ("off", TopKeyNames::Off),
]);

/// Whether calls are recorded only when it is asked for.
const RECORD_WHEN: OneOf<bool> = OneOf(&[("always", false), ("asked", true)]);

const RATE: Custom<Duration> = Custom { name: "RATE", read: rate };

/// Reads how often something may happen as the time between.
fn rate(text: &str) -> Result<Duration, String> {
    let between = text.split_once('/').and_then(|(times, unit)| {
        let unit = match unit {
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            _ => return None,
        };
        unit.checked_div(whole_number(times, &1, &1000).ok()?)
    });
    between.ok_or_else(|| invalid(text, "a rate from 1/h to 1000/s, such as 1/s or 10/m"))
}

impl TelemetrySettings {
    #[rustfmt::skip]
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let filter = reader.read("log-level", FILTER, "info", "Level of the log (error, warn, info, debug, off), also by target: info,TARGET=debug");
        let format = reader.read("log-format", FORMATS, "text", "Format of the log and ready line");
        let near_limit_ratio = reader.read("near-limit-ratio", Ratio, "0.8", "Fraction of a limit above which hits are near it");
        let compat = reader.read("metrics-compat", COMPAT, "none", "Also show metrics by envoyproxy/ratelimit's names");
        let statsd = reader.read("statsd-addr", OrOff(STATSD), "off", "Send metrics by envoyproxy/ratelimit's names to statsd, over TCP");
        let top_keys = reader.read("top-keys", TOP_KEYS, "digests", "How keys are shown: by digests, or by the values themselves");
        let denial_lines = reader.read("log-denials", OrOff(RATE), "off", "Maximum rate of log lines about denials, such as 1/s or 10/m");
        let audit_one_in = reader.read("audit-one-in", WholeNumber(0..=1_000_000_000), "1024", "Count the answered hits of one in this many windows of counters, and compare them with the limit; 0 is off");
        let webhook = notices::read(reader);
        let folder = reader.read("record", OrOff(PATH), "off", "Record calls into files in this folder, for `tollkeeper replay`");
        let bytes_max = reader.read("record-size", Size(1 << 20..=1 << 40), "256MiB", "Maximum size of all recorded files; the oldest are removed");
        let when_asked = reader.read("record-when", RECORD_WHEN, "always", "When calls are recorded: always, or asked: for as long as POST /recording says");
        if folder.is_none() {
            for name in ["record-size", "record-when"] {
                reader.warn_unused(name, "--record is off");
            }
        }
        let shows_values = top_keys == TopKeyNames::Values;
        let recording = folder.map(|folder| RecordingOptions { folder, bytes_max, shows_values, when_asked });
        let environment = reader.environment.with(&reader.translated.otel);
        let mut problems = Vec::new();
        let export = otel::read(&environment, &mut problems, &mut reader.warnings);
        reader.add_problems(problems);
        let mut export = TelemetryOptions { compat, ..export };
        // The last of several values counts.
        export.resource.extend(reader.translated.resource.iter().cloned());
        let log = Log { filter, format };
        Self { log, near_limit_ratio, webhook, recording, statsd, top_keys, denial_lines, audit_one_in, export }
    }
}
