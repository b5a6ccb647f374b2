//! The table of medians.

use std::{collections::BTreeMap, fs, process::Command};

use crate::{
    sample::Sample,
    scenarios::{Backend, SCENARIOS, Scenario},
};

/// How tables are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableStyle {
    Text,
    Markdown,
}

/// The samples of all turns.
#[derive(Debug, Default)]
pub(crate) struct Table(BTreeMap<(&'static str, Backend), Vec<Sample>>);

impl Table {
    pub(crate) fn add(&mut self, scenario: &Scenario, backend: Backend, sample: Sample) {
        self.0.entry((scenario.name, backend)).or_default().push(sample);
    }

    /// One sample for each round; empty if the backend was not measured in this scenario.
    pub(crate) fn samples(&self, scenario: &str, backend: Backend) -> &[Sample] {
        let found = self.0.iter().find(|(key, _)| **key == (scenario, backend));
        found.map_or(&[], |(_, samples)| samples)
    }

    /// The median of one number, if it was measured.
    pub(crate) fn median(
        &self,
        scenario: &str,
        backend: Backend,
        number: impl Fn(&Sample) -> f64,
    ) -> Option<f64> {
        let mut numbers: Vec<f64> = self.samples(scenario, backend).iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len() / 2).copied().filter(|number| number.is_finite())
    }

    /// The most decisions a second that the backend has made, on the same keys as `half`.
    pub(crate) fn maximum(&self, backend: Backend) -> Option<f64> {
        let medians = ["spread 64", "spread 256"]
            .map(|scenario| self.median(scenario, backend, |sample| sample.per_second));
        medians.into_iter().flatten().reduce(f64::max)
    }

    pub(crate) fn show(&self, style: TableStyle) -> String {
        let mut lines = vec![line(style, ["scenario", "backend"], HEADS.map(str::to_owned))];
        lines.extend(rule(style, HEADS.len()));
        for scenario in SCENARIOS {
            for backend in scenario.backends {
                if !self.samples(scenario.name, *backend).is_empty() {
                    let cells = COLUMNS.map(|column| self.cell(scenario.name, *backend, column));
                    lines.push(line(style, [scenario.name, &backend.to_string()], cells));
                }
            }
        }
        lines.concat()
    }

    fn cell(&self, scenario: &str, backend: Backend, (digits, number): Column) -> String {
        let median = self.median(scenario, backend, number);
        median.map_or_else(|| "-".to_owned(), |median| format!("{median:.digits$}"))
    }
}

/// The number in a column, and its digits after the point.
type Column = (usize, fn(&Sample) -> f64);

const HEADS: [&str; 7] =
    ["service us", "Redis us", "a second", "p50 us", "p99 us", "p99.9 us", "failed %"];

const COLUMNS: [Column; 7] = [
    (2, |sample| sample.service_us),
    (2, |sample| sample.redis_us),
    (0, |sample| sample.per_second),
    (0, |sample| sample.p50_us),
    (0, |sample| sample.p99_us),
    (0, |sample| sample.p999_us),
    (1, |sample| sample.failed),
];

/// One line of a table: words on the left, numbers on the right.
pub(crate) fn line<const WORDS: usize, const NUMBERS: usize>(
    style: TableStyle,
    words: [&str; WORDS],
    numbers: [String; NUMBERS],
) -> String {
    match style {
        TableStyle::Text => {
            let words: String = words.iter().map(|word| format!("{word:<24} ")).collect();
            let numbers: String = numbers.iter().map(|number| format!("{number:>12}")).collect();
            format!("{}\n", (words + &numbers).trim_end())
        }
        TableStyle::Markdown => {
            let numbers = numbers.iter().map(|number| number.trim());
            let cells: Vec<&str> = words.into_iter().chain(numbers).collect();
            format!("| {} |\n", cells.join(" | "))
        }
    }
}

/// The line that Markdown needs below the head.
fn rule(style: TableStyle, numbers: usize) -> Option<String> {
    (style == TableStyle::Markdown).then(|| format!("| --- | --- |{}\n", " ---: |".repeat(numbers)))
}

/// The machine, and the versions of what was measured.
pub(crate) fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{model}, {cores} cores; Linux {}; {}; {}; tollkeeper {}",
        kernel.trim_end(),
        version("redis-server", 3),
        version("rustc", 2),
        env!("CARGO_PKG_VERSION"),
    )
}

/// The first words that a program prints as its version.
fn version(program: &str, words: usize) -> String {
    let Ok(output) = Command::new(program).arg("--version").output() else { return String::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    text.split(' ').take(words).collect::<Vec<_>>().join(" ")
}
