//! Loads rules: reads the files, checks them together, and gives them a version. A control plane's resources
//! are checked by the same code.

use std::{fmt, path::PathBuf, time::SystemTime};

use sha2::{Digest as _, Sha256};

use super::{
    compile,
    options::LoadOptions,
    written::{self, File},
};
use crate::{
    engine::rule_set::RuleSet,
    yaml::{
        Problem,
        files::{self, Source},
        first_lines,
        problem::Findings,
    },
};

/// The rules that ship with the program. They are in force if no others are named.
const EXAMPLE: &str = include_str!("../../examples/rules.yaml");

/// One set of rules, and when it was loaded.
#[derive(Debug)]
pub struct InForce {
    /// The rules.
    pub rules: RuleSet,
    /// The version of their content.
    pub version: Version,
    /// When they were loaded.
    pub since: SystemTime,
    /// The files, or the resources of a control plane, that they come from.
    pub files: Vec<String>,
    /// Probable mistakes in them.
    pub warnings: Vec<Problem>,
}

impl InForce {
    /// Logs the warnings.
    pub fn warn(&self) {
        for warning in first_lines(&self.warnings) {
            tracing::warn!("{warning}");
        }
    }
}

/// Identifies the content of files or resources: the first 6 bytes of a digest of all that was read, in hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    /// The version of content that consists of these parts.
    pub(super) fn of(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            // The length keeps two parts from having the digest of one.
            digest.update(part.as_ref().len().to_le_bytes());
            digest.update(part);
        }
        Self(digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The content of the rule files, the problems of those that could not be read, and warnings about those that look like
/// something else.
#[derive(Debug, Default)]
pub(super) struct RuleFiles {
    pub(super) sources: Vec<Source>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

impl RuleFiles {
    /// Reads these files and folders; without any, the shipped example.
    pub(super) fn read(paths: &[PathBuf]) -> Self {
        let mut read = Self::default();
        if paths.is_empty() {
            let (name, text) = ("examples/rules.yaml".to_owned(), EXAMPLE.to_owned());
            read.sources.push(Source { name, text });
        }
        let none = "no .yaml or .yml file in this folder";
        let mut found = files::find(paths, files::is_rules, none);
        read.problems.append(&mut found.problems);
        for path in found.skipped.into_iter().filter(|path| !files::is_tests(path)) {
            let message = "not read: the name of a rule file ends in .yaml or .yml";
            read.warnings.push(Problem::of_file(&path, message));
        }
        for path in found.files {
            match files::read(&path) {
                Ok(source) => read.sources.push(source),
                Err(problem) => read.problems.push(problem),
            }
        }
        read
    }

    pub(super) fn version(&self) -> Version {
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        let mut parts = Vec::new();
        for source in &self.sources {
            parts.extend([source.name.as_str(), &source.text]);
        }
        parts.extend(problems.iter().map(String::as_str));
        Version::of(parts)
    }
}

/// Reads and checks the rules in these files and folders; without any, the shipped example.
///
/// In a folder, every `.yaml` and `.yml` file is read, except tests (`*.test.yaml`, `*.test.yml`).
///
/// # Errors
/// Every problem of every file, ordered by location.
pub fn load(paths: &[PathBuf], options: LoadOptions) -> Result<InForce, Vec<Problem>> {
    compile_files(RuleFiles::read(paths), options)
}

/// Checks rules that were written in one text; `name` is used for the file's in locations.
///
/// # Errors
/// Every problem of the text, ordered by location.
pub fn parse(name: &str, text: &str, options: LoadOptions) -> Result<InForce, Vec<Problem>> {
    let source = Source { name: name.to_owned(), text: text.to_owned() };
    compile_files(RuleFiles { sources: vec![source], ..RuleFiles::default() }, options)
}

/// Checks the files, and compiles their rules.
///
/// # Errors
/// As [`load`].
pub(super) fn compile_files(
    read: RuleFiles,
    options: LoadOptions,
) -> Result<InForce, Vec<Problem>> {
    let version = read.version();
    let mut findings = Findings { problems: read.problems, warnings: read.warnings };
    let mut files = Vec::new();
    for source in &read.sources {
        files.extend(written::read(source, &mut findings));
    }
    let names = read.sources.into_iter().map(|source| source.name).collect();
    compile_all(files, names, version, options, findings)
}

/// Compiles what was read from files or resources with these names.
///
/// # Errors
/// As [`load`].
#[expect(clippy::disallowed_methods, reason = "for /rules, which shows when the rules were loaded")]
pub(super) fn compile_all(
    files: Vec<File>,
    names: Vec<String>,
    version: Version,
    options: LoadOptions,
    mut findings: Findings,
) -> Result<InForce, Vec<Problem>> {
    let rules = compile::compile(files, options, &mut findings);
    let Findings { mut problems, mut warnings } = findings;
    // A problem in an anchor's content is found again at each of its aliases.
    for list in [&mut problems, &mut warnings] {
        list.sort();
        list.dedup();
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(InForce { rules, version, since: SystemTime::now(), files: names, warnings })
}
