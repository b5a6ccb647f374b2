//! The metrics under the names of envoyproxy/ratelimit, for its dashboards. They are made from ours at each scrape, so a
//! call costs nothing more.

mod stats;
pub(super) mod statsd;

pub(super) use self::stats::stats;

use std::collections::BTreeMap;

use prometheus::proto::{Counter, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use crate::{
    limiter::metrics::{DURATION, HITS},
    rules::metrics::RELOADS,
    telemetry::{Families, MetricsCompat, Telemetry, float, label, value},
};

/// The number of levels of a rule's path that are labels; further ones are left out, and their rules are summed.
const LEVELS: usize = 2;

const METHOD: (&str, &str) = ("grpc_method", "ShouldRateLimit");

/// What is counted for each rule, and the values of `standing` that are part of it. Hits near a limit are within it too,
/// and hits over a shadow limit are over it.
const KINDS: [(&str, &str, &[&str]); 5] = [
    ("total_hits", "hits", &["within", "near", "over", "shadow"]),
    ("within_limit", "hits within the limit", &["within", "near"]),
    ("near_limit", "hits near the limit", &["near"]),
    ("over_limit", "hits over the limit", &["over", "shadow"]),
    ("shadow_mode", "hits over the limit of a rule in shadow mode", &["shadow"]),
];

type Series = BTreeMap<Vec<(String, String)>, u64>;

pub(super) fn scrape(telemetry: &Telemetry) -> Result<String, prometheus::Error> {
    let mut families = telemetry.families();
    if telemetry.compat() == MetricsCompat::Envoyproxy {
        let mut theirs = envoyproxy(&families);
        // A family without series cannot be written as text.
        theirs.retain(|family| !family.get_metric().is_empty());
        families.0.extend(theirs);
    }
    families.text()
}

fn envoyproxy(ours: &Families) -> Vec<MetricFamily> {
    let mut families = Vec::new();
    for (name, help, standings) in KINDS {
        let series = hits(ours.metrics(&HITS), standings);
        families.push(counter(&format!("ratelimit_service_rate_limit_{name}"), help, series));
    }
    let name = "ratelimit_service_should_rate_limit_error";
    families.push(counter(name, "calls without a decision", errors(ours)));
    let durations = ours.merged(&DURATION);
    let total = Series::from([(labels(&[METHOD]), durations.get_sample_count())]);
    families.push(counter("ratelimit_service_total_requests", "calls", total));
    families.push(histogram("ratelimit_service_response_time_seconds", durations));
    for (name, count) in loads(ours) {
        let series = Series::from([(Vec::new(), count)]);
        families.push(counter(&format!("ratelimit_service_{name}"), "loads of rules", series));
    }
    families
}

/// The hits of these standings, by domain and the first levels of the rule's path.
fn hits(metrics: &[Metric], standings: &[&str]) -> Series {
    let mut series = Series::new();
    for metric in metrics {
        let mut labels = labels(&[("domain", &cleaned(label(metric, "domain")))]);
        for (part, number) in label(metric, "rule").split('|').zip(1..=LEVELS) {
            labels.push((format!("key{number}"), level(part)));
        }
        let hits = series.entry(labels).or_default();
        if standings.contains(&label(metric, "standing")) {
            *hits += value(metric);
        }
    }
    series
}

/// A level of a rule's path, `key` or `key=value`, as `key` or `key_value`.
fn level(part: &str) -> String {
    cleaned(&part.replacen('=', "_", 1))
}

/// The loads of rules that succeeded and that failed. The rules at the start are counted too.
fn loads(ours: &Families) -> [(&'static str, u64); 2] {
    let reloads = |outcome| ours.find(&RELOADS, "outcome", outcome).unwrap_or(0);
    [("config_load_success", 1 + reloads("good")), ("config_load_error", reloads("bad"))]
}

/// The calls that were answered with an error: by the store, or by the service.
fn errors(ours: &Families) -> Series {
    let mut series: Series =
        ["redis_error", "service_error"].map(|kind| (labels(&[("err_type", kind)]), 0)).into();
    for metric in ours.metrics(&DURATION) {
        let kind = match label(metric, "rpc_response_status_code") {
            "OK" => continue,
            "UNAVAILABLE" => "redis_error",
            _ => "service_error",
        };
        let count = metric.get_histogram().get_sample_count();
        *series.entry(labels(&[("err_type", kind)])).or_default() += count;
    }
    series
}

/// A name as statsd takes it: `:` and `|` separate there, and the dots of an IPv4 address would.
fn cleaned(name: &str) -> String {
    let name = name.replace([':', '|'], "_");
    let mut cleaned = String::with_capacity(name.len());
    let mut rest = name.as_str();
    while let Some(next) = rest.chars().next() {
        let number_before =
            cleaned.ends_with(|before: char| before.is_ascii_digit() || before == '.');
        match ipv4_length(rest).filter(|_| !number_before) {
            Some(length) => {
                let (address, others) = rest.split_at(length);
                cleaned += &address.replace('.', "_");
                rest = others;
            }
            None => {
                cleaned.push(next);
                rest = rest.get(next.len_utf8()..).unwrap_or_default();
            }
        }
    }
    cleaned
}

/// The length of the IPv4 address with which a text begins.
fn ipv4_length(text: &str) -> Option<usize> {
    let end = text.find(|next: char| !next.is_ascii_digit() && next != '.').unwrap_or(text.len());
    let address = text.get(..end)?.trim_end_matches('.');
    address.parse::<std::net::Ipv4Addr>().ok().map(|_| address.len())
}

fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn counter(name: &str, help: &str, series: Series) -> MetricFamily {
    let mut metrics = Vec::with_capacity(series.len());
    for (labels, value) in series {
        let (mut metric, mut counter) = (labelled(labels), Counter::default());
        counter.set_value(float(value));
        metric.set_counter(counter);
        metrics.push(metric);
    }
    family(name, help, MetricType::COUNTER, metrics)
}

fn histogram(name: &str, histogram: Histogram) -> MetricFamily {
    let mut metric = labelled(labels(&[METHOD]));
    metric.set_histogram(histogram);
    family(name, "duration of calls", MetricType::HISTOGRAM, vec![metric])
}

fn labelled(labels: Vec<(String, String)>) -> Metric {
    let mut pairs = Vec::with_capacity(labels.len());
    for (name, value) in labels {
        let mut pair = LabelPair::default();
        pair.set_name(name);
        pair.set_value(value);
        pairs.push(pair);
    }
    let mut metric = Metric::default();
    metric.set_label(pairs);
    metric
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(format!("as of envoyproxy/ratelimit: {help}"));
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned_as_for_statsd() {
        for (name, expected) in [
            ("user", "user"),
            ("a:b|c", "a_b_c"),
            ("masked_remote_address_0.0.0.0/0", "masked_remote_address_0_0_0_0/0"),
            ("from 10.1.2.3 to 10.1.2.4.", "from 10_1_2_3 to 10_1_2_4."),
            ("example.com", "example.com"),
            ("1.2.3", "1.2.3"),
            ("1.2.3.4.5", "1.2.3.4.5"),
            ("999.1.1.1", "999.1.1.1"),
            ("é.1.2.3.4", "é.1.2.3.4"),
            ("", ""),
        ] {
            assert_eq!(cleaned(name), expected, "{name}");
        }
    }
}
