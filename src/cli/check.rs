//! `tollkeeper check`: the server's own verdict on rule files, before the server has them.

use std::{path::PathBuf, process::ExitCode};

use super::{complain, say};
use crate::rules::{self, Basis};

#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// Files and folders of rules
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn main(flags: &Flags) -> ExitCode {
    match rules::load(&flags.paths, Basis::default()) {
        Ok(loaded) => {
            let domains = loaded.rules.domains();
            let count: usize = domains.iter().map(|domain| domain.rules().len()).sum();
            loaded.warnings.iter().for_each(|warning| complain(format_args!("warning: {warning}")));
            let (rules, domains) = (counted(count, "rule"), counted(domains.len(), "domain"));
            say(&format!("ok: {rules} in {domains}\n"), ExitCode::SUCCESS)
        }
        Err(problems) => {
            for problem in problems {
                complain(problem);
            }
            ExitCode::FAILURE
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
