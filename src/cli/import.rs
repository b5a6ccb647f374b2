//! `tollkeeper import`: translates the limits of other services into rules.

use std::{collections::HashSet, path::PathBuf, process::ExitCode};

use serde_json::json;

use super::output::{Ended, OutputFlag, complain, failure, say, usage};
use crate::import::limitador::{self, LimitadorOptions};

#[derive(Debug, clap::Subcommand)]
pub(super) enum ImportFrom {
    /// Translate the limits file of limitador (Kuadrant); exit 1 if there is a limit that rules cannot express
    Limitador(ImportFlags),
}

#[derive(Debug, clap::Args)]
pub(super) struct ImportFlags {
    /// Limits file of limitador; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Namespace whose limits are translated; needed if the file has several
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Order of keys in the descriptors that Envoy sends, such as method,user_id; by default as limits name them
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    order: Vec<String>,
    /// Print the rules even if some limits cannot be expressed, with those limits as comments, and exit 0
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    output: OutputFlag,
}

pub(super) fn main(from: ImportFrom) -> Ended {
    let ImportFrom::Limitador(ImportFlags { file, namespace, order, partial, output }) = from;
    check_order(&order).map_err(|problem| usage(format_args!("--order: {problem}")))?;
    let rules = match limitador::import(&file, &LimitadorOptions { namespace, order }) {
        Ok(rules) => rules,
        Err(problems) => {
            problems.iter().for_each(complain);
            return Ok(ExitCode::FAILURE);
        }
    };
    let is_shown = rules.refused.is_empty() || partial;
    if output.is_json() {
        let text = is_shown.then_some(&rules.text);
        let [refused, warnings] = [&rules.refused, &rules.warnings]
            .map(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>());
        let json = json!({ "rules": text, "refused": refused, "warnings": warnings });
        let code = if is_shown { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        return Ok(say(&output.write(String::new, &json), code));
    }
    rules.refused.iter().for_each(complain);
    for warning in &rules.warnings {
        complain(format_args!("warning: {warning}"));
    }
    if is_shown {
        return Ok(say(&rules.text, ExitCode::SUCCESS));
    }
    Err(failure("no rules are printed; with --partial, the rules for the other limits are"))
}

fn check_order(keys: &[String]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for key in keys {
        if key.is_empty() {
            return Err("a key is empty".to_owned());
        }
        if !seen.insert(key) {
            return Err(format!("`{key}` is given twice"));
        }
    }
    Ok(())
}
