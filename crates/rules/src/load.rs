//! Loads rules: reads the files, checks them together, and gives them a version. A control plane's resources
//! are checked by the same code.

use std::{fmt, path::PathBuf, time::SystemTime};

use sha2::{Digest as _, Sha256};
use tollkeeper_engine::rule_set::RuleSet;
use tollkeeper_yaml::{
    Problem,
    files::{self, Source},
    first_lines,
    problem::Findings,
};

use super::{
    compile,
    options::LoadOptions,
    overlay,
    written::{self, RuleTree},
};

/// The rules that ship with the program. They are in force if no others are named.
const EXAMPLE: &str = include_str!("../../../examples/rules.yaml");

#[derive(Debug)]
pub struct InForce {
    pub rules: RuleSet,
    pub version: Version,
    pub since: SystemTime,
    /// The files, or the resources of a control plane, that they come from.
    pub files: Vec<String>,
    /// Probable mistakes in them.
    pub warnings: Vec<Problem>,
}

impl InForce {
    /// Logs that these rules, which are called so, were loaded.
    pub fn log(&self, name: &str) {
        let (domains, rules) = self.rules.counts();
        tracing::info!(version = %self.version, domains, rules, "{name} loaded");
        self.warn();
    }

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
    /// The files that are laid over the others.
    pub(super) overlays: Vec<Source>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

impl RuleFiles {
    /// Reads these files and folders, and overlays; without any, the shipped example.
    pub(super) fn read(paths: &[PathBuf], overlays: &[PathBuf]) -> Self {
        let mut read = Self::read_overlays(overlays);
        if paths.is_empty() && overlays.is_empty() {
            let (name, text) = ("examples/rules.yaml".to_owned(), EXAMPLE.to_owned());
            read.sources.push(Source { name, text });
        }
        let found = read.add(paths);
        read.sources.extend(found);
        read
    }

    pub(super) fn read_overlays(paths: &[PathBuf]) -> Self {
        let mut read = Self::default();
        read.overlays = read.add(paths);
        read
    }

    fn add(&mut self, paths: &[PathBuf]) -> Vec<Source> {
        let mut sources = Vec::new();
        let none = "no .yaml or .yml file in this folder";
        let mut found = files::find(paths, files::is_rules, none);
        self.problems.append(&mut found.problems);
        for path in found.skipped.into_iter().filter(|path| !files::is_tests(path)) {
            let message = "not read: the name of a rule file ends in .yaml or .yml";
            self.warnings.push(Problem::of_file(&path, message));
        }
        for path in found.files {
            match files::read(&path) {
                Ok(source) => sources.push(source),
                Err(problem) => self.problems.push(problem),
            }
        }
        sources
    }

    pub(super) fn version(&self) -> Version {
        Version::of(self.parts())
    }

    /// What a version consists of: the names of files, not of their folders, and their texts.
    pub(super) fn parts(&self) -> Vec<String> {
        let mut parts = Vec::new();
        for source in self.sources.iter().chain(&self.overlays) {
            let name = source.name.rsplit('/').next().unwrap_or_default();
            parts.extend([name.to_owned(), source.text.clone()]);
        }
        parts.extend(self.problems.iter().map(ToString::to_string));
        parts
    }
}

/// Reads and checks the rules in these files and folders, and what is laid over them; without any, the shipped example.
///
/// In a folder, every `.yaml` and `.yml` file is read, except tests (`*.test.yaml`, `*.test.yml`).
pub fn load(
    paths: &[PathBuf],
    overlays: &[PathBuf],
    options: LoadOptions,
) -> Result<InForce, Vec<Problem>> {
    compile_files(RuleFiles::read(paths, overlays), options)
}

/// Checks rules that were written in one text; `name` is used for the file's in locations.
pub fn parse(name: &str, text: &str, options: LoadOptions) -> Result<InForce, Vec<Problem>> {
    let source = Source { name: name.to_owned(), text: text.to_owned() };
    compile_files(RuleFiles { sources: vec![source], ..RuleFiles::default() }, options)
}

pub(super) fn compile_files(
    read: RuleFiles,
    options: LoadOptions,
) -> Result<InForce, Vec<Problem>> {
    let version = read.version();
    let mut findings = Findings::default();
    let trees = written::parse(&read.sources, &mut findings);
    compile_all(trees, &read, version, options, findings)
}

/// Compiles trees with the overlays, problems and warnings of what was `read`.
#[expect(clippy::disallowed_methods, reason = "for /rules, which shows when the rules were loaded")]
pub(super) fn compile_all(
    trees: Vec<RuleTree>,
    read: &RuleFiles,
    version: Version,
    options: LoadOptions,
    mut findings: Findings,
) -> Result<InForce, Vec<Problem>> {
    findings.problems.extend_from_slice(&read.problems);
    findings.warnings.extend_from_slice(&read.warnings);
    let overlays = written::parse(&read.overlays, &mut findings);
    let names = trees.iter().chain(&overlays).map(|tree| tree.origin.name.clone()).collect();
    let files = overlay::read(trees, &overlays, &mut findings);
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
