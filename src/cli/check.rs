//! `tollkeeper check`: checks rule files with the server's own code.

use std::{path::PathBuf, process::ExitCode};

use serde_json::{Value, json};

use super::output::{complain, say};
use crate::{
    rules::{self, LoadOptions},
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
    /// Format of the report
    #[arg(long, value_enum, default_value_t)]
    format: CheckFormat,
    /// Exit with 1 on warnings as well
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum CheckFormat {
    #[default]
    Text,
    Json,
}

/// The result of the check.
struct CheckReport {
    rules: usize,
    domains: usize,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    is_good: bool,
}

pub(super) fn main(flags: &CheckFlags) -> ExitCode {
    let report = check(flags);
    let text = match flags.format {
        CheckFormat::Text => report.text(),
        CheckFormat::Json => format!("{:#}\n", report.json()),
    };
    say(&text, if report.is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(flags: &CheckFlags) -> CheckReport {
    match rules::load(&flags.paths, &flags.rules_overlay, LoadOptions::default()) {
        Ok(loaded) => {
            let domains = loaded.rules.domains();
            CheckReport {
                rules: domains.iter().map(|domain| domain.rules().len()).sum(),
                domains: domains.len(),
                problems: Vec::new(),
                is_good: !flags.strict || loaded.warnings.is_empty(),
                warnings: loaded.warnings,
            }
        }
        Err(problems) => {
            CheckReport { rules: 0, domains: 0, problems, warnings: Vec::new(), is_good: false }
        }
    }
}

impl CheckReport {
    /// The text for stdout. Writes problems and warnings to stderr.
    fn text(&self) -> String {
        for problem in &self.problems {
            complain(problem);
        }
        for warning in &self.warnings {
            complain(format_args!("warning: {warning}"));
        }
        if !self.is_good {
            return String::new();
        }
        format!("ok: {} in {}\n", counted(self.rules, "rule"), counted(self.domains, "domain"))
    }

    fn json(&self) -> Value {
        json!({
            "ok": self.is_good,
            "rules": self.rules,
            "domains": self.domains,
            "problems": self.problems.iter().map(in_json).collect::<Vec<_>>(),
            "warnings": self.warnings.iter().map(in_json).collect::<Vec<_>>(),
        })
    }
}

/// A problem as every JSON report has it.
pub(super) fn in_json(problem: &Problem) -> Value {
    json!({
        "file": problem.file,
        "line": problem.location.map(|(line, _)| line),
        "column": problem.location.map(|(_, column)| column),
        "message": problem.message,
    })
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
