//! The table of medians.

use std::{collections::BTreeMap, fs, process::Command};

use crate::{
    scenarios::{Backend, SCENARIOS, Scenario},
    trial::Sample,
};

/// How tables look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Markdown,
}

/// All samples.
#[derive(Debug, Default)]
pub(crate) struct Table(BTreeMap<(&'static str, Backend), Vec<Sample>>);

impl Table {
    pub(crate) fn add(&mut self, scenario: &Scenario, backend: Backend, sample: Sample) {
        self.0.entry((scenario.name, backend)).or_default().push(sample);
    }

    /// One sample for each round; none, where it was not measured.
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

    /// How many decisions a second the backend has made at its best, on keys like those of `half`.
    pub(crate) fn maximum(&self, backend: Backend) -> Option<f64> {
        let of = |name| self.median(name, backend, |it| it.per_second);
        of("spread 64").into_iter().chain(of("spread 256")).reduce(f64::max)
    }

    pub(crate) fn show(&self, form: Form) -> String {
        let heads =
            ["service us", "Redis us", "a second", "p50 us", "p99 us", "p99.9 us", "failed %"];
        let mut lines = vec![line(form, ["scenario", "backend"], heads.map(str::to_owned))];
        lines.extend(rule(form, heads.len()));
        for scenario in SCENARIOS {
            for backend in scenario.backends {
                let cell = |digits: usize, number: fn(&Sample) -> f64| {
                    let median = self.median(scenario.name, *backend, number);
                    median.map_or_else(|| "-".to_owned(), |it| format!("{it:.digits$}"))
                };
                let cells = [
                    cell(2, |it| it.service_us),
                    cell(2, |it| it.redis_us),
                    cell(0, |it| it.per_second),
                    cell(0, |it| it.p50_us),
                    cell(0, |it| it.p99_us),
                    cell(0, |it| it.p999_us),
                    cell(1, |it| it.failed),
                ];
                if !self.samples(scenario.name, *backend).is_empty() {
                    lines.push(line(form, [scenario.name, &backend.to_string()], cells));
                }
            }
        }
        lines.concat()
    }
}

/// One line of a table: words on the left, numbers on the right.
pub(crate) fn line<const WORDS: usize, const NUMBERS: usize>(
    form: Form,
    words: [&str; WORDS],
    numbers: [String; NUMBERS],
) -> String {
    match form {
        Form::Text => {
            let words: String = words.iter().map(|word| format!("{word:<14} ")).collect();
            let numbers: String = numbers.iter().map(|it| format!("{it:>12}")).collect();
            format!("{}\n", (words + &numbers).trim_end())
        }
        Form::Markdown => {
            let numbers = numbers.iter().map(|number| number.trim());
            let cells: Vec<&str> = words.into_iter().chain(numbers).collect();
            format!("| {} |\n", cells.join(" | "))
        }
    }
}

/// What Markdown wants below the head.
fn rule(form: Form, numbers: usize) -> Option<String> {
    (form == Form::Markdown).then(|| format!("| --- | --- |{}\n", " ---: |".repeat(numbers)))
}

/// On what it was measured.
pub(crate) fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let first_words = |program: &str, words: usize| {
        let output = Command::new(program).arg("--version").output();
        let text = output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
        text.unwrap_or_default().split(' ').take(words).collect::<Vec<_>>().join(" ")
    };
    format!(
        "{model}, {cores} cores; Linux {}; {}; {}; tollkeeper {}",
        kernel.trim_end(),
        first_words("redis-server", 3),
        first_words("rustc", 2),
        env!("CARGO_PKG_VERSION"),
    )
}
