//! What commands print, and how they end.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
    process::ExitCode,
};

use serde::Serialize;

use crate::text::printable::{is_unseen, printable, printable_lines};

/// Why a command fails: lines for stderr, and the exit code.
pub(super) struct Failed {
    problems: Vec<String>,
    code: ExitCode,
}

/// What becomes of a command.
pub(super) type Ended = Result<ExitCode, Failed>;

impl Failed {
    /// The failure for bad usage has clap's exit code for it.
    pub(super) fn usage(problems: Vec<String>) -> Self {
        Self { problems, code: ExitCode::from(2) }
    }

    /// The failure of a command for these problems.
    pub(super) fn problems(problems: Vec<String>) -> Self {
        Self { problems, code: ExitCode::FAILURE }
    }

    pub(super) fn report(self) -> ExitCode {
        self.problems.iter().for_each(complain);
        self.code
    }
}

/// The failure of a command that was used badly.
pub(super) fn usage(problem: impl fmt::Display) -> Failed {
    Failed::usage(vec![problem.to_string()])
}

/// The failure of a command that was used well.
pub(super) fn failure(problem: impl fmt::Display) -> Failed {
    Failed::problems(vec![problem.to_string()])
}

/// The format of a command's output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
}

/// The flag that chooses a format.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(super) struct OutputFlag {
    /// Format of the output
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum, default_value_t)]
    format: Format,
    /// The former name of `-o json`
    #[arg(long, hide = true)]
    json: bool,
}

impl OutputFlag {
    pub(super) fn is_json(self) -> bool {
        self.json || self.format == Format::Json
    }

    /// The result in this format.
    pub(super) fn write(self, text: impl FnOnce() -> String, json: &impl Serialize) -> String {
        if !self.is_json() {
            return text();
        }
        pretty_json(json)
    }
}

/// A value as JSON of several lines.
pub(super) fn pretty_json(value: &impl Serialize) -> String {
    printable_json(&serde_json::to_string_pretty(value).unwrap_or_default()) + "\n"
}

/// JSON whose [unseen characters](is_unseen), which stand in its strings, are escaped as JSON has it.
pub(super) fn printable_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !is_unseen(character) {
            text.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

/// Text in a cell of a table in Markdown.
pub(super) fn cell(text: &str) -> String {
    format!("`{}`", printable(text.as_bytes()).replace('|', "\\|").replace('`', "'"))
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

/// Writes a line with escape sequences to stderr, if possible. It holds no other control characters.
pub(super) fn complain_in_color(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

/// Writes a line to stderr, if possible; `eprintln!` would panic.
pub(super) fn complain(problem: impl fmt::Display) {
    drop(writeln!(io::stderr(), "{}", printable_lines(&problem.to_string())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_printed_without_unseen_characters_and_reads_back_as_it_was() {
        let written = serde_json::json!({ "a\u{202e}": ["b\u{e0041}c", "d\n\u{7f}\u{85}", "ü"] });
        let shown = printable_json(&serde_json::to_string_pretty(&written).unwrap());
        assert_eq!(printable_lines(&shown), shown);
        assert!(shown.contains("b\\udb40\\udc41c"), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), written);
    }
}
