//! `tollkeeper version`: what this program was built from.

use std::process::ExitCode;

use serde_json::json;

use super::output::{OutputFlag, say};
use crate::VERSION;

/// The commit, if the build knew it.
#[expect(clippy::disallowed_macros, reason = "build.rs sets it")]
const COMMIT: Option<&str> = option_env!("TOLLKEEPER_COMMIT");

/// The compiler, as it names itself.
#[expect(clippy::disallowed_macros, reason = "build.rs sets it")]
const RUSTC: Option<&str> = option_env!("TOLLKEEPER_RUSTC");

#[derive(Debug, clap::Args)]
pub(super) struct VersionFlags {
    #[command(flatten)]
    output: OutputFlag,
}

pub(super) fn main(flags: &VersionFlags) -> ExitCode {
    let text = || {
        let mut text = format!("tollkeeper {VERSION}\n");
        for (name, value) in [("commit", COMMIT), ("compiler", RUSTC)] {
            text += &value.map(|value| format!("{name}: {value}\n")).unwrap_or_default();
        }
        text
    };
    let json = json!({ "version": VERSION, "commit": COMMIT, "rustc": RUSTC });
    say(&flags.output.write(text, &json), ExitCode::SUCCESS)
}
