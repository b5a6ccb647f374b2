//! `tollkeeper check`: the server's own verdict on rule files, before the server has them.

use std::{path::PathBuf, process::ExitCode};

use serde_json::{Value, json};

use super::{complain, say};
use crate::rules::{self, LoadOptions, Problem};

#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// Files and folders of rules
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Exit with 1 on warnings as well
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
}

/// What the check has found.
struct Verdict {
    rules: usize,
    domains: usize,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    is_good: bool,
}

pub(super) fn main(flags: &Flags) -> ExitCode {
    let verdict = check(flags);
    let text = match flags.format {
        Format::Text => verdict.text(),
        Format::Json => format!("{:#}\n", verdict.json()),
    };
    say(&text, if verdict.is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(flags: &Flags) -> Verdict {
    match rules::load(&flags.paths, LoadOptions::default()) {
        Ok(loaded) => {
            let domains = loaded.rules.domains();
            Verdict {
                rules: domains.iter().map(|domain| domain.rules().len()).sum(),
                domains: domains.len(),
                problems: Vec::new(),
                is_good: !flags.strict || loaded.warnings.is_empty(),
                warnings: loaded.warnings,
            }
        }
        Err(problems) => {
            Verdict { rules: 0, domains: 0, problems, warnings: Vec::new(), is_good: false }
        }
    }
}

impl Verdict {
    /// Problems and warnings go to stderr.
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

fn in_json(problem: &Problem) -> Value {
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
