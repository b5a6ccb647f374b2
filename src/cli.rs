//! The command line: one file for each command.

mod admin;
mod bench;
mod call;
mod check;
mod counter;
mod explain;
mod schema;
mod serve;
mod test;

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use crate::settings::{Environment, ServeFlags};

/// A rate-limit service for Envoy, gateways and microservices.
///
/// Without a command it serves: from memory, by the shipped example rules.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the service
    #[command(args_override_self = true)]
    Serve(Box<ServeFlags>),
    /// Checks rule files; exit 1 if there is a problem
    Check(check::Flags),
    /// Asks a service for one decision; exit 0 if OK, 3 if over the limit, 1 on an error
    Call(call::Flags),
    /// Asks a service for many decisions and measures them; exit 1 if none was made
    Bench(bench::Flags),
    /// Explains which rules a call would match, and why; charges nothing. Exit 1 if a name is unknown
    Explain(explain::Flags),
    /// Prints the JSON Schema of rule files, or of test files, for editors
    Schema(schema::Flags),
    /// Runs tests of rules, written in YAML, on simulated time; exit 1 if one fails
    Test(test::Flags),
    /// Shows the counters of one descriptor, or resets them
    #[command(subcommand)]
    Counter(counter::Action),
}

/// Writes to stdout, and ends with `code`; or with 1, where nobody can read it.
fn say(text: &str, code: ExitCode) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => code,
        // Who closed it knows.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            complain(format_args!("stdout: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to stderr. Where that fails nobody is left to tell, and the exit code still tells;
/// `eprintln!` would panic.
fn complain(problem: impl fmt::Display) {
    drop(writeln!(io::stderr(), "{problem}"));
}

/// Bad usage: the same code as clap's own.
const USAGE: u8 = 2;

/// Runs the program.
pub fn main() -> ExitCode {
    let environment = Environment::of_process();
    match Arguments::parse().command {
        None => serve::main(ServeFlags::default(), &environment),
        Some(Command::Serve(flags)) => serve::main(*flags, &environment),
        Some(Command::Check(flags)) => check::main(&flags),
        Some(Command::Call(flags)) => call::main(&flags, &environment),
        Some(Command::Bench(flags)) => bench::main(&flags, &environment),
        Some(Command::Explain(flags)) => explain::main(&flags),
        Some(Command::Test(flags)) => test::main(&flags),
        Some(Command::Schema(flags)) => schema::main(&flags),
        Some(Command::Counter(action)) => counter::main(&action, &environment),
    }
}
