//! What is wrong with a file, and where.

use std::{fmt, path::Path};

use super::yaml::Location;
use crate::printable::printable;

/// Something wrong with the rules, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, as it was named; no control characters.
    pub file: String,
    /// Line and column, from 1; `None` if it is about the file itself.
    pub location: Option<(usize, usize)>,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl Problem {
    pub(super) fn at(file: &str, location: Location, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), location: Some(location), message: message.into() }
    }

    pub(super) fn of_file(path: &Path, message: impl Into<String>) -> Self {
        Self { file: file_name(path), location: None, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, location, message } = self;
        // What a file holds adds no line to a log.
        let message = printable(message.as_bytes());
        match location {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {message}"),
            None => write!(f, "{file}: {message}"),
        }
    }
}

/// The path as it was given, in a form that any log line can hold.
pub(crate) fn file_name(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes())
}

/// What a look at files has found: problems refuse them, warnings do not.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}
