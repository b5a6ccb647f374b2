//! `tollkeeper check`: checks rule files with the server's own code.

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    process::ExitCode,
};

use serde_json::{Value, json};

use super::{
    findings::{self, Finding, ReportFormat},
    output::{complain, complain_in_color, pretty_json, say},
    test::{
        junit,
        report::{CaseReport, TestReport},
    },
};
use crate::{
    rules::{self, LoadOptions},
    settings::{self, Environment},
    text::counted,
    yaml::Problem,
};

#[derive(Debug, clap::Args)]
pub(super) struct CheckFlags {
    /// Files and folders of rules; `-` is standard input
    #[arg(required_unless_present = "rules_overlay", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// File or folder that is laid over the rules; may be repeated. Without rules, only its form is checked
    #[arg(long, value_name = "PATH")]
    rules_overlay: Vec<PathBuf>,
    #[command(flatten)]
    report: findings::ReportFlag,
    /// Exit with 1 on warnings as well
    #[arg(long)]
    strict: bool,
}

#[derive(Default)]
struct CheckReport {
    rules: usize,
    domains: usize,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    is_good: bool,
}

pub(super) fn main(flags: &CheckFlags, environment: &Environment) -> ExitCode {
    let report = check(flags, settings::rule_options(environment));
    let text = match flags.report.format(environment) {
        ReportFormat::Text => report.text(environment.wants_color()),
        ReportFormat::Json => pretty_json(&report.json()),
        ReportFormat::Github => findings::github(&report.findings()) + &report.outcome(),
        ReportFormat::Sarif => findings::sarif(&report.findings()),
        ReportFormat::Junit => junit::xml(&report.in_cases()),
    };
    say(&text, if report.is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(flags: &CheckFlags, options: LoadOptions) -> CheckReport {
    match rules::load(&flags.paths, &flags.rules_overlay, options) {
        Ok(loaded) => {
            let ((domains, rules), warnings) = (loaded.rules.counts(), loaded.warnings);
            let is_good = !flags.strict || warnings.is_empty();
            CheckReport { rules, domains, warnings, is_good, ..CheckReport::default() }
        }
        Err(problems) => CheckReport { problems, ..CheckReport::default() },
    }
}

impl CheckReport {
    /// The text for stdout. Writes problems and warnings to stderr, on a terminal with their lines.
    fn text(&self, in_color: bool) -> String {
        let is_terminal = io::stderr().is_terminal();
        for finding in self.findings() {
            if is_terminal {
                complain_in_color(&findings::snippet(&finding, in_color));
            } else {
                complain(finding);
            }
        }
        self.outcome()
    }

    fn outcome(&self) -> String {
        if self.is_good {
            format!("ok: {}\n", summary(self.rules, self.domains))
        } else {
            String::new()
        }
    }

    fn findings(&self) -> Vec<Finding<'_>> {
        let problems = self.problems.iter().map(Finding::Problem);
        problems.chain(self.warnings.iter().map(Finding::Warning)).collect()
    }

    /// As a test that passes, or the problems.
    fn in_cases(&self) -> TestReport {
        if self.is_good {
            let tests = vec![CaseReport::passed("rules", "the rules are valid")];
            return TestReport { tests, problems: Vec::new() };
        }
        let problems = self.problems.iter().chain(&self.warnings).cloned().collect();
        TestReport { tests: Vec::new(), problems }
    }

    fn json(&self) -> Value {
        json!({
            "ok": self.is_good,
            "rules": self.rules,
            "domains": self.domains,
            "problems": self.problems.iter().map(findings::in_json).collect::<Vec<_>>(),
            "warnings": self.warnings.iter().map(findings::in_json).collect::<Vec<_>>(),
        })
    }
}

/// `4 rules in 1 domain`.
pub(super) fn summary(rules: usize, domains: usize) -> String {
    format!("{} in {}", counted(rules, "rule"), counted(domains, "domain"))
}
