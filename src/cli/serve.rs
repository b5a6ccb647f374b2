//! `tollkeeper serve`: checks settings and rules together, and runs the service.

mod flags;

use flags::CheckScope;
pub(super) use flags::ServeFlags;

use std::{fmt, io, process::ExitCode};

use super::{
    check::summary,
    output::{Ended, Failed, complain, failure, say},
};
use crate::{
    app,
    rules::{self, InForce, xds},
    settings::{
        self, Environment, Given, Resolved, RuleSettings, RuleSource, Settings, TypedFlags,
    },
    yaml::{self, Problem},
};

/// The error of the system for a file that does not exist, `ENOENT`.
const NO_SUCH_FILE: i32 = 2;

/// Said of arguments under the name of envoyproxy/ratelimit's program. It repeats none, since one may be a secret.
const ARGUMENTS_IGNORED: &str = "command line arguments have no effect, since this program is run \
    by the name ratelimit, which has none: set environment variables instead, such as TOLLKEEPER_STORE for --store, or \
    run it by the name tollkeeper";

pub(super) fn main(flags: &ServeFlags, environment: &Environment) -> Ended {
    let prepared = prepare(&flags.settings, environment, flags.check);
    match prepared {
        Ok((settings, rules)) if flags.check.is_some() => Ok(checked(&settings, &rules)),
        _ => start(prepared),
    }
}

/// Reports what would start, with its warnings.
fn checked(settings: &Settings, rules: &InForce) -> ExitCode {
    let warnings = rules.warnings.iter().map(ToString::to_string);
    for warning in settings.warnings.iter().cloned().chain(warnings) {
        complain(format_args!("warning: {warning}"));
    }
    let (domains, rules) = rules.rules.counts();
    say(&format!("ok: the settings, and {}\n", summary(rules, domains)), ExitCode::SUCCESS)
}

/// Runs the service by its environment alone, and logs that its arguments are ignored.
pub(super) fn main_without_arguments(environment: &Environment) -> Ended {
    let mut prepared = prepare(&TypedFlags::new(), environment, None);
    let lines = match &mut prepared {
        Ok((settings, _)) => &mut settings.warnings,
        Err(problems) => problems,
    };
    lines.push(ARGUMENTS_IGNORED.to_owned());
    start(prepared)
}

fn start(prepared: Result<(Settings, InForce), Vec<String>>) -> Ended {
    let (settings, rules) = prepared.map_err(Failed::usage)?;
    let failed = |error: &dyn fmt::Display| failure(format_args!("tollkeeper: {error}"));
    let runtime = tokio::runtime::Runtime::new().map_err(|error| failed(&error))?;
    let ended = runtime.block_on(app::run(settings, rules));
    // Does not wait for blocked threads, such as one that still flushes telemetry.
    runtime.shutdown_background();
    ended.map(|()| ExitCode::SUCCESS).map_err(|error| failed(&error))
}

/// Checks settings and rules together, so that one start reports every problem of both.
fn prepare(
    flags: &TypedFlags,
    environment: &Environment,
    check: Option<CheckScope>,
) -> Result<(Settings, InForce), Vec<String>> {
    let Resolved { mut settings, mut problems, before_rules } =
        settings::resolve(flags, environment);
    if check == Some(CheckScope::Elsewhere) {
        let absent = io::Error::from_raw_os_error(NO_SUCH_FILE).to_string();
        settings.warnings.extend(problems.extract_if(.., |problem| problem.ends_with(&absent)));
    }
    let RuleSettings { source, overlays, options, .. } = &settings.rules;
    let loaded = match &source.value {
        RuleSource::Files(paths) => rules::load(paths, overlays, *options),
        RuleSource::ControlPlane(_) => xds::none_yet(overlays, *options),
    };
    // A service starts without a candidate that has a problem.
    let candidate = &settings.rules.candidate.paths;
    if check.is_some()
        && !candidate.is_empty()
        && let Err(more) = rules::load(candidate, overlays, *options)
    {
        problems.extend(more.iter().map(|problem| format!("--candidate: {problem}")));
    }
    match loaded {
        Ok(rules) if problems.is_empty() => Ok((settings, rules)),
        Ok(_) => Err(problems),
        Err(more) => {
            let (of_paths, of_content): (Vec<_>, Vec<_>) =
                more.iter().partition(|problem| problem.location.is_none());
            let named = |problem| named(problem, source);
            problems.extend(of_content.into_iter().map(named));
            let before_rules = before_rules.min(problems.len());
            problems.splice(before_rules..before_rules, of_paths.into_iter().map(named));
            Err(problems)
        }
    }
}

/// A problem with rules. One with a path that no flag has named, such as that it does not exist, names what did.
fn named(problem: &Problem, source: &Given<RuleSource>) -> String {
    let text = problem.to_string();
    let Given { value: RuleSource::Files(paths), name } = source else { return text };
    let is_path = problem.location.is_none()
        && paths.iter().any(|path| problem.file == yaml::file_name(path));
    if is_path && !name.starts_with("--") { format!("{name}: {text}") } else { text }
}
