//! Prints a measurement as text with bars or as JSON, and the progress of a run.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use serde_json::json;

use crate::bench::{Progress, Report};

const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];

const BAR: usize = 40;

pub(super) fn text(report: &Report) -> String {
    let mut text = format!(
        "{:.0} decisions a second: {} in {:.2} s\n",
        report.per_second(),
        report.decisions(),
        report.elapsed.as_secs_f64()
    );
    let counts = [("OK", report.ok), ("OVER_LIMIT", report.over_limit)];
    let errors = report.errors.iter().map(|(code, count)| (*code, *count));
    for (name, count) in counts.into_iter().chain(errors) {
        text += &line(name, &count.to_string());
    }
    for (name, count) in [("not sent", report.not_sent), ("reconnects", report.reconnects)] {
        if count > 0 {
            text += &line(name, &count.to_string());
        }
    }
    if report.decisions() > 0 {
        text += "latency\n";
        for (name, part) in QUANTILES {
            text += &line(name, &millis(report.quantile(part)));
        }
        text += &bars(report);
    }
    text
}

fn line(name: &str, value: &str) -> String {
    format!("  {name:<18} {value:>12}\n")
}

fn millis(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

/// One bar per doubling of the latency. Its length is that bucket's part of the decisions.
fn bars(report: &Report) -> String {
    let mut bars = "distribution\n".to_owned();
    let whole = report.latency.len() as f64;
    for step in report.latency.iter_log(NANOS_FIRST, 2.0) {
        let count = step.count_since_last_iteration();
        let upper = Duration::from_nanos(step.value_iterated_to().saturating_add(1));
        let part = count as f64 / whole;
        if count > 0 {
            let bar = "#".repeat(marks(part));
            let value = format!("up to {}", millis(upper));
            let bar = format!("  {value:<18} {:>11.3}% {bar}", part * 100.0);
            bars = bars + bar.trim_end() + "\n";
        }
    }
    bars
}

/// The upper end of the first bucket, 16 µs: hardly any call over TCP is faster.
const NANOS_FIRST: u64 = 16_000;

/// The length of the bar for a part of the whole, in characters.
fn marks(part: f64) -> usize {
    (0..BAR).filter(|mark| (*mark as f64 + 0.5) / BAR as f64 <= part).count()
}

pub(super) fn json(report: &Report) -> String {
    let mut latency = serde_json::Map::new();
    for (name, part) in QUANTILES {
        let micros = report.quantile(part).as_nanos() as f64 / 1e3;
        latency.insert(name.to_owned(), json!(micros));
    }
    let object = json!({
        "calls": report.calls(),
        "ok": report.ok,
        "over_limit": report.over_limit,
        "errors": report.errors,
        "not_sent": report.not_sent,
        "reconnects": report.reconnects,
        "seconds": report.elapsed.as_secs_f64(),
        "decisions_per_second": report.per_second(),
        "latency_us": latency,
    });
    format!("{object}\n")
}

/// Overwrites the line on stderr, if possible.
pub(super) fn progress(progress: Progress) {
    let done = "#".repeat(marks(progress.part));
    drop(write!(io::stderr(), "\r[{done:<BAR$}] {} calls", progress.answered));
}

pub(super) fn no_progress() {
    drop(write!(io::stderr(), "\r{:BAR$}{:30}\r", "", ""));
}
