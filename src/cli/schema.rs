//! `tollkeeper schema`: the JSON Schemas of our YAML files.

use std::process::ExitCode;

use super::output::say;
use crate::rules;

#[derive(Debug, clap::Args)]
pub(super) struct SchemaFlags {
    /// Print the schema of test files (*.test.yaml) instead of the schema of rule files
    #[arg(long)]
    tests: bool,
}

pub(super) fn main(flags: &SchemaFlags) -> ExitCode {
    let schema = if flags.tests { super::test::schema() } else { rules::schema_of_rules() };
    say(&format!("{schema:#}\n"), ExitCode::SUCCESS)
}
