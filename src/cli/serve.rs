//! `tollkeeper serve`: settings and rules are checked together, then the service runs.

use std::process::ExitCode;

use super::{USAGE, complain};
use crate::{
    app,
    rules::{self, Basis, InForce},
    settings::{Environment, ServeFlags, Settings},
};

pub(super) fn main(flags: ServeFlags, environment: &Environment) -> ExitCode {
    let (settings, rules) = match prepare(flags, environment) {
        Ok(prepared) => prepared,
        Err(problems) => {
            for problem in problems {
                complain(problem);
            }
            return ExitCode::from(USAGE);
        }
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(format_args!("tollkeeper: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(app::run(settings, rules));
    // What still blocks a thread, such as a flush that was cut short, is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("tollkeeper: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// One start shows every mistake, in the settings and in the rules.
fn prepare(
    flags: ServeFlags,
    environment: &Environment,
) -> Result<(Settings, InForce), Vec<String>> {
    let paths = Settings::rule_paths(&flags, environment);
    let settings = Settings::resolve(flags, environment);
    let basis = settings.as_ref().map_or_else(|_| Basis::default(), |it| it.basis);
    let rules = rules::load(&paths, basis);
    match (settings, rules) {
        (Ok(settings), Ok(rules)) => Ok((settings, rules)),
        (settings, rules) => {
            let mut problems = settings.err().unwrap_or_default();
            problems.extend(rules.err().unwrap_or_default().iter().map(ToString::to_string));
            Err(problems)
        }
    }
}
