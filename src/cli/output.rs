//! What commands print, and how they end.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use crate::text::printable::printable_lines;

/// The exit code for bad usage, as clap's own.
pub(super) const USAGE: u8 = 2;

/// The format of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    Text,
    Json,
}

/// Writes to stdout, and returns `code`, or 1 if the text cannot be written. Control characters from
/// arguments and from a service's answer are escaped.
pub(super) fn say(text: &str, code: ExitCode) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(printable_lines(text).as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => code,
        // The reader closed it on purpose.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            complain(format_args!("cannot write to stdout: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to stderr, if possible; `eprintln!` would panic.
pub(super) fn complain(problem: impl fmt::Display) {
    drop(writeln!(io::stderr(), "{}", printable_lines(&problem.to_string())));
}
