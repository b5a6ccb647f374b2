//! The results of all tests.

use std::path::Path;

use serde::Serialize;

use crate::rules::{Problem, cases::Case};

/// The results of all tests.
#[derive(Debug, Default, Serialize)]
pub(super) struct TestReport {
    pub(super) tests: Vec<CaseReport>,
    /// Problems that kept tests from running.
    pub(super) problems: Vec<String>,
}

/// The result of one test.
#[derive(Debug, Serialize)]
pub(super) struct CaseReport {
    pub(super) file: String,
    pub(super) name: String,
    /// Location of the test: `file:line:column`.
    pub(super) location: String,
    /// Lines with what was expected and what happened; absent if the test passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
}

impl CaseReport {
    pub(super) fn new(file: &Path, case: &Case, result: Result<(), String>) -> Self {
        Self {
            file: file.display().to_string(),
            name: case.name.clone(),
            location: case.location.clone(),
            failure: result.err(),
        }
    }
}

impl TestReport {
    pub(super) fn add_problems(&mut self, problems: Vec<Problem>) {
        self.problems.extend(problems.iter().map(ToString::to_string));
    }

    pub(super) fn is_good(&self) -> bool {
        self.problems.is_empty() && self.failed() == 0
    }

    pub(super) fn failed(&self) -> usize {
        self.tests.iter().filter(|test| test.failure.is_some()).count()
    }

    /// Every test with its result, file by file, and a summary. Problems go to stderr.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for of_file in self.tests.chunk_by(|one, other| one.file == other.file) {
            text += &of_file.first().map(|test| format!("{}\n", test.file)).unwrap_or_default();
            for CaseReport { name, failure, .. } in of_file {
                match failure {
                    None => text += &format!("  ok: {name}\n"),
                    Some(failure) => {
                        let indented = failure.replace('\n', "\n    ");
                        text += &format!("  FAILED: {name}\n    {indented}\n");
                    }
                }
            }
        }
        let (failed, problems) = (self.failed(), self.problems.len());
        text += &format!("{} passed, {failed} failed", self.tests.len() - failed);
        match problems {
            0 => {}
            1 => text += ", 1 problem",
            _ => text += &format!(", {problems} problems"),
        }
        text.push('\n');
        text
    }

    pub(super) fn json(&self) -> String {
        let (failed, tests) = (self.failed(), self.tests.len());
        let report = serde_json::json!({
            "passed": tests - failed,
            "failed": failed,
            "tests": self.tests,
            "problems": self.problems,
        });
        format!("{report:#}\n")
    }
}
