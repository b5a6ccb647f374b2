//! OpenTelemetry's standard variables. Each works, or a warning names it: platforms set them for all of their pods, and
//! the specification wants values that are not known ignored. They count only if something is exported.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Uri};

use super::reader::{environment::Environment, form::invalid};
use crate::{
    net::tls::client::{TlsAdvice, TlsClient, TlsFiles},
    telemetry::{
        Batches, MetricsCompat, OtlpEndpoint, OtlpProtocol, ParentUse, Propagator, RootSampling,
        Sampling, SpanLimits, TelemetryOptions,
    },
};

enum Allowed {
    Anything,
    Among(&'static [&'static str]),
    /// Several of these, separated by commas.
    Several(&'static [&'static str]),
    /// A whole number in this range.
    Number(u64, u64),
    /// `name=value` pairs, separated by commas.
    Pairs,
    /// Headers as such pairs, with percent-encoded values, which may be secrets.
    Headers,
}

use Allowed::{Among, Anything, Headers, Number, Pairs, Several};

const SAMPLERS: &[&str] = &[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

const PROPAGATORS: &[&str] = &["tracecontext", "baggage", "b3", "b3multi", "none"];

const SPAN_LIMIT_MAX: u64 = 1000;

/// The standard variables of all signals, and of one signal.
const VARIABLES: &[(&str, Allowed)] = &[
    ("OTEL_SDK_DISABLED", Among(&["true", "false"])),
    ("OTEL_SERVICE_NAME", Anything),
    ("OTEL_RESOURCE_ATTRIBUTES", Pairs),
    ("OTEL_PROPAGATORS", Several(PROPAGATORS)),
    // With another value nothing is sent.
    ("OTEL_TRACES_EXPORTER", Several(&["otlp", "none"])),
    ("OTEL_METRICS_EXPORTER", Several(&["otlp", "none"])),
    (LOGS_EXPORTER, Several(&["otlp", "none"])),
    ("OTEL_TRACES_SAMPLER", Among(SAMPLERS)),
    ("OTEL_TRACES_SAMPLER_ARG", Anything),
    ("OTEL_BSP_SCHEDULE_DELAY", Number(1, 3_600_000)),
    ("OTEL_BSP_MAX_QUEUE_SIZE", Number(1, 100_000)),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", Number(1, 100_000)),
    ("OTEL_BLRP_SCHEDULE_DELAY", Number(1, 3_600_000)),
    ("OTEL_BLRP_MAX_QUEUE_SIZE", Number(1, 100_000)),
    ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", Number(1, 100_000)),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", Number(0, SPAN_LIMIT_MAX)),
    ("OTEL_SPAN_LINK_COUNT_LIMIT", Number(0, SPAN_LIMIT_MAX)),
    // Spans have no events.
    ("OTEL_SPAN_EVENT_COUNT_LIMIT", Number(0, u32::MAX as u64)),
    ("OTEL_METRIC_EXPORT_INTERVAL", Number(1, 3_600_000)),
    (
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
        Among(&["cumulative", "delta", "lowmemory"]),
    ),
];

/// What follows `OTEL_EXPORTER_OTLP_`, or that and a signal.
const OTLP: &[(&str, Allowed)] = &[
    ("ENDPOINT", Anything),
    ("INSECURE", Among(&["true", "false"])),
    ("PROTOCOL", Among(&["grpc", "http/protobuf"])),
    ("CERTIFICATE", Anything),
    ("CLIENT_CERTIFICATE", Anything),
    ("CLIENT_KEY", Anything),
    ("HEADERS", Headers),
    ("TIMEOUT", Number(1, 3_600_000)),
    ("COMPRESSION", Among(&["none"])),
];

const LOGS_EXPORTER: &str = "OTEL_LOGS_EXPORTER";
const LOGS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT";

const PREFIX: &str = "OTEL_";

/// The longest time for one export, unless a variable sets it.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

const TLS_ADVICE: TlsAdvice = TlsAdvice {
    files: "the TLS files of OTLP",
    trust: "set OTEL_EXPORTER_OTLP_CERTIFICATE to its CA",
    name: "connect to one of its names",
    plain: "use http:// in the endpoint",
};

pub(super) fn read(
    environment: &Environment,
    problems: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> TelemetryOptions {
    let mut reader = OtelReader { environment, problems: Vec::new(), warnings: Vec::new() };
    let mut endpoints = ["TRACES", "METRICS", "LOGS"].map(|signal| reader.endpoint(signal));
    // What is wrong with files that several signals use is logged once.
    let mut clients: Vec<Arc<TlsClient>> = Vec::new();
    for tls in endpoints.iter_mut().flatten().filter_map(|endpoint| endpoint.tls.as_mut()) {
        match clients.iter().find(|client| client.is_like(tls)) {
            Some(client) => tls.clone_from(client),
            None => clients.push(Arc::clone(tls)),
        }
    }
    let is_exported = endpoints.iter().any(Option::is_some);
    let [export_traces, export_metrics, export_logs] = endpoints;
    let options = TelemetryOptions {
        resource: match environment.text("OTEL_SERVICE_NAME") {
            Some(_) => Vec::new(),
            None => vec![("service.name", "tollkeeper".to_owned())],
        },
        sampling: reader.sampling(),
        propagators: reader.propagators(),
        limits: SpanLimits {
            attributes: reader.count("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", 128),
            links: reader.count("OTEL_SPAN_LINK_COUNT_LIMIT", 128),
        },
        export_traces,
        export_metrics,
        export_logs,
        compat: MetricsCompat::Off,
    };
    if let (Some(_), None) = (environment.text(LOGS_ENDPOINT), environment.text(LOGS_EXPORTER)) {
        warnings.push(format!("{LOGS_ENDPOINT} has no effect without {LOGS_EXPORTER}=otlp"));
    }
    if is_exported {
        for name in environment.names().filter(|name| is_standard(name)) {
            match (allowed(name), environment.text(name)) {
                (Some(allowed), Some(value)) => reader.check(name, allowed, value),
                (Some(_), None) => reader.warn(name, "not UTF-8 text"),
                (None, _) => warnings.push(format!("{name} has no effect: it is not supported")),
            }
        }
        for (found, all) in [(reader.problems, problems), (reader.warnings, &mut *warnings)] {
            // Several signals may have the same one.
            all.extend(BTreeSet::from_iter(found));
        }
    }
    options
}

/// Kubernetes injects others for a Service called `otel-…`.
fn is_standard(name: &str) -> bool {
    let parts = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"];
    let is_injected = parts.iter().any(|part| name.contains(part)) || name.ends_with("_PORT");
    name.starts_with(PREFIX) && (!is_injected || allowed(name).is_some())
}

/// What a variable may be, if it is known.
fn allowed(name: &str) -> Option<&'static Allowed> {
    if let Some((_, allowed)) = VARIABLES.iter().find(|(known, _)| *known == name) {
        return Some(allowed);
    }
    let rest = name.strip_prefix("OTEL_EXPORTER_OTLP_")?;
    let signals = ["TRACES_", "METRICS_", "LOGS_", ""];
    let rest = signals.iter().find_map(|signal| rest.strip_prefix(signal))?;
    OTLP.iter().find(|(known, _)| *known == rest).map(|(_, allowed)| allowed)
}

struct OtelReader<'a> {
    environment: &'a Environment,
    problems: Vec<String>,
    /// Of what is ignored.
    warnings: Vec<String>,
}

impl<'a> OtelReader<'a> {
    fn problem(&mut self, name: &str, problem: impl std::fmt::Display) {
        self.problems.push(format!("{name}: {problem}"));
    }

    fn warn(&mut self, name: &str, problem: impl std::fmt::Display) {
        self.warnings.push(format!("{name}: {problem}"));
    }

    fn check(&mut self, name: &str, allowed: &Allowed, value: &str) {
        let is_among = |values: &[&str], value: &str| {
            values.iter().any(|known| known.eq_ignore_ascii_case(value.trim()))
        };
        match allowed {
            Anything => {}
            Among([only]) if !is_among(&[only], value) => {
                self.warn(name, invalid(value, format_args!("{only}, or unset")));
            }
            Among(values) if !is_among(values, value) => {
                self.warn(name, invalid(value, format_args!("one of: {}", values.join(", "))));
            }
            Several(values) if !value.split(',').all(|value| is_among(values, value)) => {
                self.warn(name, invalid(value, format_args!("among: {}", values.join(", "))));
            }
            Number(min, max) if !value.parse().is_ok_and(|n: u64| (*min..=*max).contains(&n)) => {
                let range = format_args!("a whole number from {min} to {max}");
                self.warn(name, invalid(value, range));
            }
            Pairs if !value.split(',').all(|pair| pair.contains('=')) => {
                self.warn(name, "must be name=value pairs, separated by commas");
            }
            Headers if !value.split(',').all(is_header) => {
                self.warn(name, "must be name=value pairs of headers, separated by commas");
            }
            Among(_) | Several(_) | Number(..) | Pairs | Headers => {}
        }
    }

    /// The variable of one signal, else the one of all signals, with its value.
    fn first(&self, signal: &str, name: &str) -> Option<(String, &'a str)> {
        let of_signal = format!("OTEL_EXPORTER_OTLP_{signal}_{name}");
        [of_signal, format!("OTEL_EXPORTER_OTLP_{name}")].into_iter().find_map(|variable| {
            let value = self.environment.text(&variable)?;
            Some((variable, value))
        })
    }

    /// The collector of a signal, unless it is unset or the standard variables turn the signal off.
    fn endpoint(&mut self, signal: &str) -> Option<OtlpEndpoint> {
        let has = |name: &str, value: &str| {
            let text = self.environment.text(name)?;
            Some(text.split(',').any(|part| part.trim().eq_ignore_ascii_case(value)))
        };
        // A collector that takes the other signals may have no pipeline for logs.
        let by_default = signal != "LOGS";
        let exports = has(&format!("OTEL_{signal}_EXPORTER"), "otlp").unwrap_or(by_default);
        if has("OTEL_SDK_DISABLED", "true") == Some(true) || !exports {
            return None;
        }
        let (variable, text) = self.first(signal, "ENDPOINT")?;
        let value = |name| self.first(signal, name).map(|(_, value)| value);
        // As they are checked.
        let word = |name| value(name).map(|text| text.trim().to_ascii_lowercase());
        let protocol = match word("PROTOCOL").as_deref() {
            Some("http/protobuf") => OtlpProtocol::HttpProtobuf,
            // Another value is ignored, with a warning.
            Some(_) | None => OtlpProtocol::Grpc,
        };
        let is_insecure = word("INSECURE").as_deref() == Some("true");
        let timeout = self.first(signal, "TIMEOUT").and_then(|(name, _)| self.number(&name));
        let file = |name| value(name).map(PathBuf::from);
        let (certificate, key) = (file("CLIENT_CERTIFICATE"), file("CLIENT_KEY"));
        let is_half = certificate.is_some() != key.is_some();
        let url = url(text, protocol, is_insecure).unwrap_or_default();
        let (ca, identity) = (file("CERTIFICATE"), certificate.zip(key));
        let files = TlsFiles { ca, identity, ..TlsFiles::default() };
        let endpoint = OtlpEndpoint {
            tls: (url.scheme_str() == Some("https")).then(|| tls(files, protocol)),
            url,
            protocol,
            timeout: timeout.map_or(TIMEOUT_DEFAULT, Duration::from_millis),
            batches: self.batches(signal),
            variable,
        };
        let given = endpoint.variable.clone();
        if endpoint.url.host().is_none() {
            self.problem(&given, "must be a URL with http:// or https:// and a host");
        }
        if endpoint.url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            let instead = "set OTEL_EXPORTER_OTLP_HEADERS";
            self.warn(&given, format_args!("its user and password are not sent: {instead}"));
        }
        if is_half {
            let name = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE";
            self.problem(name, "must be set together with OTEL_EXPORTER_OTLP_CLIENT_KEY");
        }
        if let Some(Err(problem)) = endpoint.tls.as_ref().map(|tls| tls.check()) {
            self.problem(&format!("TLS for {given}"), problem);
        }
        Some(endpoint)
    }

    fn sampling(&mut self) -> Sampling {
        let Some(sampler) = self.environment.text("OTEL_TRACES_SAMPLER") else {
            return Sampling::default();
        };
        let sampler = sampler.trim().to_ascii_lowercase();
        if !SAMPLERS.contains(&&*sampler) {
            return Sampling::default();
        }
        let (parent, root) = match sampler.strip_prefix("parentbased_") {
            Some(root) => (ParentUse::Followed, root),
            None => (ParentUse::Ignored, &*sampler),
        };
        let root = match root {
            "always_off" => RootSampling::Nothing,
            "traceidratio" => RootSampling::Ratio(self.ratio()),
            _ => RootSampling::All,
        };
        Sampling { parent, root }
    }

    fn ratio(&mut self) -> f64 {
        const NAME: &str = "OTEL_TRACES_SAMPLER_ARG";
        let Some(text) = self.environment.text(NAME) else { return 1.0 };
        match text.parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            _ => {
                self.warn(NAME, invalid(text, "a number from 0 to 1"));
                1.0
            }
        }
    }

    /// Without the variable, all that are known.
    fn propagators(&self) -> Vec<Propagator> {
        let Some(text) = self.environment.text("OTEL_PROPAGATORS") else {
            return vec![Propagator::TraceContext, Propagator::B3];
        };
        let mut propagators = Vec::new();
        for name in text.split(',') {
            match &*name.trim().to_ascii_lowercase() {
                "tracecontext" => propagators.push(Propagator::TraceContext),
                "b3" | "b3multi" => propagators.push(Propagator::B3),
                // Baggage is nothing that a span shows.
                _ => {}
            }
        }
        propagators
    }

    /// The batches of a signal, with the standard defaults.
    fn batches(&self, signal: &str) -> Batches {
        let (delay, default_ms) = match signal {
            "TRACES" => ("OTEL_BSP_SCHEDULE_DELAY", 5_000),
            "LOGS" => ("OTEL_BLRP_SCHEDULE_DELAY", 1_000),
            _ => ("OTEL_METRIC_EXPORT_INTERVAL", 60_000),
        };
        let processor = if signal == "LOGS" { "OTEL_BLRP" } else { "OTEL_BSP" };
        Batches {
            delay: Duration::from_millis(self.number(delay).unwrap_or(default_ms)),
            waiting_max: self.count(&format!("{processor}_MAX_QUEUE_SIZE"), 2048),
            size_max: self.count(&format!("{processor}_MAX_EXPORT_BATCH_SIZE"), 512),
        }
    }

    fn count(&self, name: &str, default: u64) -> usize {
        usize::try_from(self.number(name).unwrap_or(default)).unwrap_or(usize::MAX)
    }

    /// The number in a variable; one that is out of its range is ignored, with a warning.
    fn number(&self, name: &str) -> Option<u64> {
        let Some(Number(min, max)) = allowed(name) else { return None };
        let number = self.environment.text(name)?.parse().ok()?;
        (*min..=*max).contains(&number).then_some(number)
    }
}

/// An endpoint. One of gRPC may lack `http://` or `https://`.
fn url(text: &str, protocol: OtlpProtocol, is_insecure: bool) -> Option<Uri> {
    let text = match (protocol, text.contains("://"), is_insecure) {
        (OtlpProtocol::Grpc, false, true) => format!("http://{text}"),
        (OtlpProtocol::Grpc, false, false) => format!("https://{text}"),
        _ => text.to_owned(),
    };
    let url: Uri = text.parse().ok()?;
    matches!(url.scheme_str(), Some("http" | "https")).then_some(url)
}

fn tls(files: TlsFiles, protocol: OtlpProtocol) -> Arc<TlsClient> {
    let protocol: &'static [u8] = match protocol {
        OtlpProtocol::Grpc => b"h2",
        OtlpProtocol::HttpProtobuf => b"http/1.1",
    };
    Arc::new(TlsClient::new(files, None, &TLS_ADVICE).speaking(protocol))
}

/// Whether this is a header's name and its value.
fn is_header(text: &str) -> bool {
    let Some((name, value)) = text.split_once('=') else { return false };
    HeaderName::try_from(name.trim()).is_ok() && HeaderValue::try_from(value.trim()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");

    /// The options, the problems and the warnings of these variables.
    fn read_all(variables: &[(&str, &str)]) -> (TelemetryOptions, Vec<String>, Vec<String>) {
        let (mut problems, mut warnings) = (Vec::new(), Vec::new());
        let environment = Environment::new(variables.iter().copied());
        let options = read(&environment, &mut problems, &mut warnings);
        (options, problems, warnings)
    }

    #[track_caller]
    fn ignored(name: &str, value: &str, problem: &str) {
        let (_, problems, warnings) = read_all(&[ENDPOINT, (name, value)]);
        assert_eq!(problems, [""; 0], "{name}={value}");
        assert_eq!(warnings, [format!("{name}: {problem}")], "{name}={value}");
    }

    #[track_caller]
    fn good(variables: &[(&str, &str)]) -> TelemetryOptions {
        let (options, problems, warnings) = read_all(&[&[ENDPOINT], variables].concat());
        assert_eq!((problems, warnings), (vec![], vec![]), "{variables:?}");
        options
    }

    #[test]
    fn every_standard_variable_works_or_is_ignored_with_a_warning() {
        for (name, value, allowed) in [
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", &*format!("one of: {}", SAMPLERS.join(", "))),
            ("OTEL_TRACES_SAMPLER_ARG", "2", "a number from 0 to 1"),
            ("OTEL_PROPAGATORS", "b3,jaeger", &format!("among: {}", PROPAGATORS.join(", "))),
            ("OTEL_TRACES_EXPORTER", "zipkin", "among: otlp, none"),
            ("OTEL_LOGS_EXPORTER", "console", "among: otlp, none"),
            ("OTEL_BLRP_SCHEDULE_DELAY", "soon", "a whole number from 1 to 3600000"),
            ("OTEL_BSP_SCHEDULE_DELAY", "soon", "a whole number from 1 to 3600000"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "one of: grpc, http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip", "none, or unset"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "a whole number from 1 to 3600000"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "3600001", "a whole number from 1 to 3600000"),
            ("OTEL_EXPORTER_OTLP_INSECURE", "yes", "one of: true, false"),
        ] {
            let others = [("OTEL_TRACES_SAMPLER", "traceidratio")];
            let others = if name.ends_with("_ARG") { &others[..] } else { &[] };
            let (options, problems, warnings) =
                read_all(&[&[ENDPOINT, (name, value)], others].concat());
            let expected = format!("{name}: invalid value `{value}`: must be {allowed}");
            assert_eq!((problems, warnings), (vec![], vec![expected]));
            if others.is_empty() {
                assert_eq!(options.sampling, Sampling::default(), "{name}");
            }
            let sends_traces = options.export_traces.is_some();
            assert_eq!(sends_traces, name != "OTEL_TRACES_EXPORTER", "{name}");
            assert!(options.export_metrics.is_some_and(|one| one.timeout == TIMEOUT_DEFAULT));
            assert!(options.export_logs.is_none(), "{name}");
        }
    }

    #[test]
    fn bad_headers_are_ignored_and_endpoints_refused_without_their_values() {
        let headers = "must be name=value pairs of headers, separated by commas";
        for value in ["s3cret", "a=b,s3cret", "a b=s3cret", "a=s3c\nret"] {
            ignored("OTEL_EXPORTER_OTLP_HEADERS", value, headers);
        }
        let endpoint = "must be a URL with http:// or https:// and a host";
        for value in ["ftp://s3cret", "http://", "http://s3 cret", "unix:///s3cret"] {
            let name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
            let (_, problems, _) = read_all(&[ENDPOINT, (name, value)]);
            assert_eq!(problems, [format!("{name}: {endpoint}")], "{value}");
        }
    }

    #[test]
    fn a_user_in_an_endpoint_is_ignored_with_one_warning() {
        let (_, problems, warnings) = read_all(&[(ENDPOINT.0, "http://me:s3cret@127.0.0.1:4317")]);
        let headers = "set OTEL_EXPORTER_OTLP_HEADERS";
        let warning = format!("{}: its user and password are not sent: {headers}", ENDPOINT.0);
        assert_eq!((problems, warnings), (vec![], vec![warning]));
    }

    #[test]
    fn a_variable_that_is_not_standard_is_a_warning_unless_kubernetes_injected_it() {
        let (_, problems, warnings) = read_all(&[
            ENDPOINT,
            ("OTEL_BLRP_EXPORT_TIMEOUT", "1000"),
            ("OTEL_COLLECTOR_SERVICE_HOST", "10.0.0.1"),
            ("OTEL_COLLECTOR_PORT_4317_TCP_ADDR", "10.0.0.1"),
            ("OTEL_COLLECTOR_PORT", "tcp://10.0.0.1:4317"),
        ]);
        let warning = "OTEL_BLRP_EXPORT_TIMEOUT has no effect: it is not supported";
        assert_eq!((problems, warnings), (vec![], vec![warning.to_owned()]));
    }

    #[test]
    fn notices_are_exported_if_it_is_asked_for_and_an_endpoint_alone_is_a_warning() {
        let (own, asked) = ((LOGS_ENDPOINT, "http://logs:4318"), (LOGS_EXPORTER, "OTLP"));
        assert!(good(&[]).export_logs.is_none());
        assert!(good(&[own, (LOGS_EXPORTER, "none")]).export_logs.is_none());
        assert_eq!(good(&[asked]).export_logs.expect("notices").variable, ENDPOINT.0);
        let protocol = ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf");
        let options = good(&[asked, own, protocol]);
        assert_eq!(options.export_metrics.expect("metrics").protocol, OtlpProtocol::Grpc);
        let logs = options.export_logs.expect("notices");
        assert_eq!((&*logs.variable, logs.protocol), (own.0, OtlpProtocol::HttpProtobuf));
        let (options, problems, warnings) = read_all(&[own]);
        assert!(options.export_logs.is_none() && problems.is_empty());
        let warning =
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT has no effect without OTEL_LOGS_EXPORTER=otlp";
        assert_eq!(warnings, [warning]);
        assert_eq!(read_all(&[own, asked, ("OTEL_SDK_DISABLED", "true")]).2, [""; 0]);
    }

    #[test]
    fn nothing_is_checked_if_nothing_is_exported() {
        let bad = ("OTEL_TRACES_SAMPLER", "xray");
        assert_eq!(read_all(&[bad]).1, [""; 0]);
        assert_eq!(read_all(&[bad, ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")]).1, [""; 0]);
    }

    #[test]
    fn samplers_propagators_and_limits_are_read() {
        let sampler = |name, argument| {
            let argument = ("OTEL_TRACES_SAMPLER_ARG", argument);
            good(&[("OTEL_TRACES_SAMPLER", name), argument]).sampling
        };
        assert_eq!(good(&[]).sampling, Sampling::default());
        let ratio = Sampling { parent: ParentUse::Ignored, root: RootSampling::Ratio(0.01) };
        assert_eq!(sampler("traceidratio", "0.01"), ratio);
        let nothing = Sampling { parent: ParentUse::Followed, root: RootSampling::Nothing };
        assert_eq!(sampler("parentbased_always_off", ""), nothing);
        let propagators = |text| good(&[("OTEL_PROPAGATORS", text)]).propagators;
        assert_eq!(propagators("none"), []);
        assert_eq!(propagators("baggage, b3"), [Propagator::B3]);
        let options = good(&[("OTEL_SPAN_LINK_COUNT_LIMIT", "3")]);
        assert_eq!(options.limits, SpanLimits { attributes: 128, links: 3 });
    }

    #[test]
    fn a_number_out_of_its_range_leaves_the_batches_of_each_signal_as_they_are() {
        let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
        let batches = |delay, waiting_max, size_max| Batches { delay, waiting_max, size_max };
        let set = |value: &str| {
            let names = [
                "BSP_SCHEDULE_DELAY",
                "BSP_MAX_QUEUE_SIZE",
                "BSP_MAX_EXPORT_BATCH_SIZE",
                "BLRP_SCHEDULE_DELAY",
                "BLRP_MAX_QUEUE_SIZE",
                "BLRP_MAX_EXPORT_BATCH_SIZE",
                "METRIC_EXPORT_INTERVAL",
            ];
            let names = names.map(|name| format!("OTEL_{name}"));
            let mut variables = vec![ENDPOINT, (LOGS_EXPORTER, "otlp")];
            variables.extend(names.iter().map(|name| (&**name, value)));
            let (options, _, warnings) = read_all(&variables);
            let TelemetryOptions { export_traces, export_metrics, export_logs, .. } = options;
            let endpoints = [export_traces, export_metrics, export_logs];
            (endpoints.map(|endpoint| endpoint.expect("it is exported").batches), warnings.len())
        };
        let ([traces, metrics, logs], warnings) = set("7");
        assert_eq!((traces, logs, warnings), (batches(ms(7), 7, 7), batches(ms(7), 7, 7), 0));
        assert_eq!(metrics.delay, ms(7));
        for value in ["0", "1000000000000", "-1"] {
            let ([traces, metrics, logs], warnings) = set(value);
            assert_eq!(
                (traces, logs),
                (batches(seconds(5), 2048, 512), batches(seconds(1), 2048, 512))
            );
            assert_eq!((metrics.delay, warnings), (seconds(60), 7), "{value}");
        }
    }

    #[test]
    fn a_signals_own_variables_have_precedence_over_those_of_all_signals() {
        let options = good(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/v1/traces"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "500"),
        ]);
        let (traces, metrics) =
            (options.export_traces.expect("traces"), options.export_metrics.expect("metrics"));
        assert_eq!(traces.variable, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        assert_eq!(traces.protocol, OtlpProtocol::HttpProtobuf);
        assert_eq!(traces.timeout, TIMEOUT_DEFAULT);
        assert_eq!(metrics.variable, ENDPOINT.0);
        assert_eq!(metrics.protocol, OtlpProtocol::Grpc);
        assert_eq!(metrics.timeout, Duration::from_millis(500));
    }

    #[test]
    fn words_count_in_any_case_and_between_blanks_where_they_are_no_warning() {
        let options = good(&[
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", " HTTP/Protobuf"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "127.0.0.1:4317"),
            ("OTEL_EXPORTER_OTLP_METRICS_INSECURE", "True "),
        ]);
        let (traces, metrics) =
            (options.export_traces.expect("traces"), options.export_metrics.expect("metrics"));
        assert_eq!(traces.protocol, OtlpProtocol::HttpProtobuf);
        assert_eq!(metrics.url.scheme_str(), Some("http"));
    }

    #[test]
    fn a_grpc_endpoint_without_a_scheme_is_secure_unless_it_is_said_to_be_insecure() {
        assert_eq!(url("h:1", OtlpProtocol::Grpc, true).expect("a URL").scheme_str(), Some("http"));
        let secure = url("h:1", OtlpProtocol::Grpc, false).expect("a URL");
        assert_eq!(secure.scheme_str(), Some("https"));
        assert_eq!(url("h:1", OtlpProtocol::HttpProtobuf, true), None);
    }
}
