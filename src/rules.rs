//! Where rules come from: files and folders of YAML, checked as a whole.
//!
//! Nothing outside this folder knows YAML.

pub mod cases;
mod compile;
mod files;
mod json_schema;
mod keys;
mod options;
mod problem;
mod reader;
mod scalar;
mod schema;
mod watch;
mod yaml;

pub use json_schema::{schema_of_rules, schema_of_tests};
pub use options::{Algorithms, LoadOptions};
pub use problem::Problem;
pub(crate) use problem::file_name;
pub use watch::{InForce, Loaded, Rules, Watched, watch};

use std::{fmt, path::PathBuf};

use sha2::{Digest as _, Sha256};

use self::{files::Source, problem::Findings};
use crate::engine::rule_set::RuleSet;

/// The rules that ship with the program, in force when no others are named.
const EXAMPLE: &str = include_str!("../examples/rules.yaml");

/// Tells one content of the rules from another: the beginning of a digest of all that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    fn of(read: &Read) -> Self {
        let mut digest = Sha256::new();
        let mut add = |text: &str| {
            digest.update(text.len().to_le_bytes());
            digest.update(text);
        };
        for source in &read.sources {
            add(&source.name);
            add(&source.text);
        }
        for problem in &read.problems {
            add(&problem.to_string());
        }
        Self(digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the files hold, and what kept some from being read.
#[derive(Debug, Default)]
struct Read {
    sources: Vec<Source>,
    problems: Vec<Problem>,
}

/// Reads and checks the rules in these files and folders; without any, the shipped example.
///
/// In a folder, every `.yaml` and `.yml` file counts, but for tests (`*.test.yaml`, `*.test.yml`).
///
/// # Errors
/// Every problem of every file, ordered by location.
pub fn load(paths: &[PathBuf], options: LoadOptions) -> Result<InForce, Vec<Problem>> {
    let read = read_all(paths);
    let version = Version::of(&read);
    compile_all(read, options).map(|compiled| InForce::now(compiled, version))
}

fn read_all(paths: &[PathBuf]) -> Read {
    let mut all = Read::default();
    if paths.is_empty() {
        let (name, text) = ("examples/rules.yaml".to_owned(), EXAMPLE.to_owned());
        all.sources.push(Source { name, text });
    }
    let none = "no .yaml or .yml file in this folder";
    let mut found = files::find(paths, files::is_rules, none);
    all.problems.append(&mut found.problems);
    for path in found.files {
        match files::read(&path) {
            Ok(source) => all.sources.push(source),
            Err(problem) => all.problems.push(problem),
        }
    }
    all
}

/// Rules that are good, and the warnings about them.
struct Compiled {
    rules: RuleSet,
    files: Vec<String>,
    warnings: Vec<Problem>,
}

fn compile_all(read: Read, options: LoadOptions) -> Result<Compiled, Vec<Problem>> {
    let mut findings = Findings { problems: read.problems, warnings: Vec::new() };
    let mut files = Vec::new();
    for source in &read.sources {
        files.extend(schema::read(source, &mut findings));
    }
    let rules = compile::compile(files, options, &mut findings);
    let Findings { mut problems, mut warnings } = findings;
    // What is read through several aliases is found as often.
    for list in [&mut problems, &mut warnings] {
        list.sort();
        list.dedup();
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let files = read.sources.into_iter().map(|source| source.name).collect();
    Ok(Compiled { rules, files, warnings })
}
