//! A problem of a rule file, a test file or a resource: its location and a message.

use std::{fmt, path::Path};

use tollkeeper_engine::text::printable::printable;

use super::tree::Location;

/// A problem of a file or a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, as it was named, or the resource and the descriptor; no control characters.
    pub file: String,
    /// Line and column, from 1; `None` if the problem is the file itself.
    pub location: Option<(usize, usize)>,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl Problem {
    pub fn at(file: &str, location: Location, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), location: Some(location), message: message.into() }
    }

    pub fn of_file(path: &Path, message: impl Into<String>) -> Self {
        Self { file: file_name(path), location: None, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, location, message } = self;
        // The content of a file must not add a line to a log.
        let message = printable(message.as_bytes());
        match location {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {message}"),
            None => write!(f, "{file}: {message}"),
        }
    }
}

/// Most problems of one set of rules that are logged, and that `/status` shows.
const SHOWN_MAX: usize = 20;

/// The lines of these problems: the first [`SHOWN_MAX`], and the number of the others.
pub fn first_lines(problems: &[Problem]) -> Vec<String> {
    let mut lines: Vec<_> = problems.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
    if problems.len() > SHOWN_MAX {
        lines.push(format!("{} more like these", problems.len() - SHOWN_MAX));
    }
    lines
}

/// The path that is standard input to commands that read rules, tests or limits once.
pub(super) const STANDARD_INPUT: &str = "-";

/// The path as given, with control characters escaped.
pub fn file_name(path: &Path) -> String {
    if path == Path::new(STANDARD_INPUT) {
        return "standard input".to_owned();
    }
    printable(path.as_os_str().as_encoded_bytes())
}

/// The problems and warnings of some files. Problems make the files invalid, warnings do not.
#[derive(Debug, Default)]
pub struct Findings {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}
