//! The results of all tests.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::cases::Case;
use crate::{
    cli::{findings, output::pretty_json},
    text::counted,
    yaml::{self, Problem},
};

#[derive(Debug, Default)]
pub(in crate::cli) struct TestReport {
    pub(in crate::cli) tests: Vec<CaseReport>,
    pub(in crate::cli) problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
pub(in crate::cli) struct CaseReport {
    pub(super) file: String,
    pub(super) name: String,
    /// Location of the test: `file:line:column`.
    pub(super) location: String,
    /// `passed` or `failed`.
    pub(super) status: &'static str,
    /// Lines with what was expected and what happened; absent if the test passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
}

impl CaseReport {
    pub(in crate::cli) fn passed(file: &str, name: &str) -> Self {
        let (file, name, location) = (file.to_owned(), name.to_owned(), String::new());
        Self { file, name, location, status: "passed", failure: None }
    }

    pub(super) fn new(file: &Path, case: &Case, result: Result<(), String>) -> Self {
        Self {
            file: yaml::file_name(file),
            name: case.name.clone(),
            location: case.location.clone(),
            status: if result.is_ok() { "passed" } else { "failed" },
            failure: result.err(),
        }
    }
}

impl TestReport {
    pub(super) fn failures(&self) -> Vec<Problem> {
        let failed = self.tests.iter().filter_map(|test| Some((test, test.failure.as_ref()?)));
        let problem = |(test, failure): (&CaseReport, &String)| {
            let mut numbers = test.location.rsplitn(3, ':').map(|part| part.parse().ok());
            let (column, line) = (numbers.next().flatten(), numbers.next().flatten());
            let message = format!("{}: {failure}", test.name);
            Problem { file: test.file.clone(), location: line.zip(column), message }
        };
        failed.map(problem).collect()
    }

    pub(super) fn add_problems(&mut self, problems: Vec<Problem>) {
        self.problems.extend(problems);
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
        text + &self.summary() + "\n"
    }

    fn summary(&self) -> String {
        let (failed, tests) = (self.failed(), self.tests.len());
        let ran = format!("{} passed, {failed} failed", tests - failed);
        if self.problems.is_empty() {
            return ran;
        }
        let problems = counted(self.problems.len(), "problem");
        if tests == 0 { format!("no tests run: {problems}") } else { format!("{ran}, {problems}") }
    }

    pub(super) fn json(&self) -> String {
        let (failed, tests) = (self.failed(), self.tests.len());
        let problems: Vec<Value> = self.problems.iter().map(findings::in_json).collect();
        let report = serde_json::json!({
            "passed": tests - failed,
            "failed": failed,
            "tests": self.tests,
            "problems": problems,
        });
        pretty_json(&report)
    }
}
