//! `tollkeeper check`: the server's own verdict on rule files, before the server has them.

use std::{path::PathBuf, process::ExitCode};

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
            println!("ok: {count} rules in {} domains", domains.len());
            ExitCode::SUCCESS
        }
        Err(problems) => {
            for problem in problems {
                eprintln!("{problem}");
            }
            ExitCode::FAILURE
        }
    }
}
