//! The command line: one file per command.

mod address;
mod admin;
mod audit;
mod bench;
mod call;
mod candidate;
mod channel;
mod check;
mod counter;
mod explain;
mod findings;
mod healthcheck;
mod import;
mod init;
mod manual;
mod output;
mod overrides;
mod record;
mod recorded;
mod replay;
mod schema;
mod serve;
mod simulated;
mod status;
mod test;
mod tls;
mod top;
mod version;

use std::{env, path::Path, process::ExitCode};

use clap::{
    CommandFactory as _, Error, Parser, Subcommand,
    builder::StyledStr,
    error::{ContextKind, ContextValue},
};

use self::{
    output::{Ended, Failed},
    serve::ServeFlags,
};
use crate::settings::{ENVOYPROXY_RATELIMIT_PROGRAM, Environment};

/// A rate-limit service for Envoy, gateways and microservices.
///
/// Without a command it runs the service, with counters in memory and the shipped example rules.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service
    #[command(args_override_self = true)]
    Serve(ServeFlags),
    /// Check rule files; exit 1 if there is a problem
    Check(check::CheckFlags),
    /// Request one decision from a service; exit 0 if OK, 3 if over the limit, 1 on an error
    Call(call::CallFlags),
    /// Query the gRPC health of a service; exit 0 if it is serving, 1 if not
    Healthcheck(healthcheck::HealthcheckFlags),
    /// Measure a service's throughput and latency; exit 1 if it made no decision
    Bench(bench::BenchFlags),
    /// Explain which rules a call would match, and why; charges nothing. Exit 1 if a name is unknown
    Explain(explain::ExplainFlags),
    /// Print the JSON Schema of rule files, or of test files, for editors
    Schema(schema::SchemaFlags),
    /// Run tests of rules, written in YAML, on simulated time; exit 1 if one fails
    Test(test::TestFlags),
    /// Show recorded calls
    #[command(subcommand)]
    Record(record::RecordAction),
    /// Replay recorded calls with other rules on simulated time, and show which verdicts change
    Replay(replay::ReplayFlags),
    /// Translate the limits of another service into rules
    #[command(subcommand)]
    Import(import::ImportFrom),
    /// Show counters, list them by patterns, reset or set them
    #[command(subcommand)]
    Counter(counter::Action),
    /// Change limits temporarily; list and undo such overrides
    #[command(subcommand, name = "override")]
    Override(overrides::OverrideAction),
    /// Show what a candidate for the rules would change; put it in force, or end its trial
    #[command(subcommand)]
    Candidate(candidate::CandidateAction),
    /// Show who changed what on the admin address, the newest first
    Audit(audit::AuditFlags),
    /// Show the state of the replicas of a service; exit 1 unless all are green
    Status(status::StatusFlags),
    /// Show the busiest keys, the most denied keys, and the keys nearest to their limit
    Top(top::TopFlags),
    /// Write rules, a test of them, a compose file and a workflow that checks them into a new folder
    Init(init::InitFlags),
    /// Print the version, the commit and the compiler of this program
    Version(version::VersionFlags),
    /// Print a script that completes commands and flags in a shell
    Completions(manual::CompletionFlags),
    /// Print the manual page of the program or of a command
    Man(manual::ManFlags),
}

pub fn main() -> ExitCode {
    let environment = Environment::of_process();
    let run = |command, environment: &Environment| {
        run(command, environment).unwrap_or_else(Failed::report)
    };
    if !is_run_as_envoyproxy_ratelimit() || environment.has_no_compat() {
        return run(Arguments::read().command, &environment);
    }
    let environment = environment.of_envoyproxy_ratelimit();
    // envoyproxy/ratelimit has no arguments, and control planes may start it with some.
    match env::args_os().nth(1) {
        None => run(None, &environment),
        Some(word) if word == "healthcheck" => run(Arguments::read().command, &environment),
        Some(_) => serve::main_without_arguments(&environment).unwrap_or_else(Failed::report),
    }
}

/// Commands that people try, and what they mean.
const OTHER_NAMES: [(&str, &str); 7] = [
    ("reset", "`tollkeeper counter reset`"),
    ("list", "`tollkeeper counter list`"),
    ("validate", "`tollkeeper check`"),
    ("lint", "`tollkeeper check`"),
    ("rules", "`tollkeeper check`, or `tollkeeper serve --rules`"),
    ("run", "`tollkeeper serve`"),
    ("start", "`tollkeeper serve`"),
];

/// Services whose limits people try to import, and what they do in place of it.
const OTHER_SERVICES: [(&str, &str); 2] = [
    ("ratelimit", "rule files of envoyproxy/ratelimit work unchanged; run `tollkeeper check`"),
    ("gubernator", "rules take the place of its limits, as docs/gubernator.md shows"),
];

impl Arguments {
    fn read() -> Self {
        Self::try_parse().unwrap_or_else(|error| with_our_hint(error).exit())
    }
}

/// The error with our hint for a name that people try, and without clap's to write `--` before an unknown flag: behind it,
/// the flag would be taken for a descriptor or a file.
fn with_our_hint(mut error: Error) -> Error {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value, use"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let of = |table: &[(&str, &'static str)]| {
        table.iter().find(|(other, _)| other == name).map(|(_, meant)| *meant)
    };
    let meant = of(&OTHER_NAMES).map(|meant| format!("did you mean {meant}?"));
    if let Some(hint) = meant.or_else(|| of(&OTHER_SERVICES).map(str::to_owned)) {
        error.remove(ContextKind::SuggestedSubcommand);
        let hint = StyledStr::from(hint);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint]));
    }
    error
}

fn run(command: Option<Command>, environment: &Environment) -> Ended {
    match command {
        None => serve::main(&ServeFlags::default(), environment),
        Some(Command::Serve(flags)) => serve::main(&flags, environment),
        Some(Command::Check(flags)) => Ok(check::main(&flags, environment)),
        Some(Command::Call(flags)) => call::main(&flags, environment),
        Some(Command::Healthcheck(flags)) => healthcheck::main(&flags, environment),
        Some(Command::Bench(flags)) => bench::main(&flags, environment),
        Some(Command::Explain(flags)) => explain::main(&flags, environment),
        Some(Command::Test(flags)) => Ok(test::main(&flags, environment)),
        Some(Command::Schema(flags)) => Ok(schema::main(&flags)),
        Some(Command::Record(action)) => record::main(action),
        Some(Command::Replay(flags)) => replay::main(&flags, environment),
        Some(Command::Import(from)) => import::main(from),
        Some(Command::Counter(action)) => counter::main(&action, environment),
        Some(Command::Override(action)) => overrides::main(&action, environment),
        Some(Command::Candidate(action)) => candidate::main(&action, environment),
        Some(Command::Audit(flags)) => audit::main(&flags, environment),
        Some(Command::Status(flags)) => status::main(&flags, environment),
        Some(Command::Top(flags)) => top::main(&flags, environment),
        Some(Command::Init(flags)) => init::main(&flags),
        Some(Command::Version(flags)) => Ok(version::main(&flags)),
        Some(Command::Completions(flags)) => Ok(manual::completions(&flags, Arguments::command())),
        Some(Command::Man(flags)) => manual::man(&flags, Arguments::command()),
    }
}

/// Whether the program is run by the name of envoyproxy/ratelimit's.
fn is_run_as_envoyproxy_ratelimit() -> bool {
    let name = env::args_os().next();
    let name = name.as_deref().map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| name == ENVOYPROXY_RATELIMIT_PROGRAM)
}
