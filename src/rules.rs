//! Where rules come from: files and folders of YAML, checked as a whole.
//!
//! Nothing outside this folder knows YAML.

pub mod cases;
mod compile;
mod json_schema;
mod schema;
mod watch;
mod yaml;

pub use json_schema::json_schema;
pub use watch::{InForce, Loaded, Rules, Watched, watch};

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::{
    engine::{rule::Defaults, rule_set::RuleSet},
    printable::printable,
};

/// The rules that ship with the program, in force when no others are named.
const EXAMPLE: &str = include_str!("../examples/rules.yaml");

/// A larger file is refused unread.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// What the settings say of all rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct Basis {
    /// What limits do that do not say it themselves.
    pub defaults: Defaults,
    /// Which algorithms the store can run.
    pub algorithms: Algorithms,
}

/// Which algorithms a store can run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Algorithms {
    /// Every one.
    #[default]
    All,
    /// `fixed_window` alone: the store runs no scripts.
    FixedWindow,
}

/// Something wrong with the rules, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, as it was named; no control characters.
    pub file: String,
    /// Line and column, from 1; `None` if it is about the file itself.
    pub place: Option<(usize, usize)>,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place, message } = self;
        // What a file holds adds no line to a log.
        let message = printable(message.as_bytes());
        match place {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {message}"),
            None => write!(f, "{file}: {message}"),
        }
    }
}

/// One file's text.
#[derive(Debug)]
struct Source {
    name: String,
    text: String,
}

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
        read.problems.iter().for_each(|problem| add(&problem.to_string()));
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
/// Of a folder, every `.yaml` and `.yml` file at any depth counts, in the order of their paths;
/// names that begin with a dot are passed over, since Kubernetes and editors keep copies there, and
/// so are tests, `*.test.yaml`.
///
/// # Errors
/// Every problem of every file, ordered by place.
pub fn load(paths: &[PathBuf], basis: Basis) -> Result<InForce, Vec<Problem>> {
    let read = read_all(paths);
    let version = Version::of(&read);
    compile_all(read, basis).map(|compiled| InForce::now(compiled, version))
}

fn read_all(paths: &[PathBuf]) -> Read {
    let mut all = Read::default();
    if paths.is_empty() {
        let (name, text) = ("examples/rules.yaml".to_owned(), EXAMPLE.to_owned());
        all.sources.push(Source { name, text });
    }
    for path in paths {
        if let Err(error) = read(path, &mut all) {
            all.problems.push(about_file(path, &error.to_string()));
        }
    }
    all
}

/// Rules that are good, and what is told of them.
struct Compiled {
    rules: RuleSet,
    files: Vec<String>,
    warnings: Vec<Problem>,
}

fn compile_all(read: Read, basis: Basis) -> Result<Compiled, Vec<Problem>> {
    let Read { sources, mut problems } = read;
    let files: Vec<_> =
        sources.iter().filter_map(|source| schema::read(source, &mut problems)).collect();
    let (rules, warnings) = compile::compile(files, basis, &mut problems);
    if problems.is_empty() {
        let files = sources.into_iter().map(|source| source.name).collect();
        return Ok(Compiled { rules, files, warnings });
    }
    problems.sort();
    Err(problems)
}

fn read(path: &Path, all: &mut Read) -> io::Result<()> {
    if !fs::metadata(path)?.is_dir() {
        return read_file(path, all);
    }
    let found = |all: &Read| all.sources.len() + all.problems.len();
    let before = found(all);
    read_folder(path, &[], all)?;
    if found(all) == before {
        all.problems.push(about_file(path, "no .yaml or .yml file in this folder"));
    }
    Ok(())
}

/// `above` are the folders on the way here: a link may lead back to one.
fn read_folder(folder: &Path, above: &[PathBuf], all: &mut Read) -> io::Result<()> {
    let above = &[above, &[fs::canonicalize(folder)?]].concat();
    let mut paths =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden {
            continue;
        }
        // One that cannot be read hides no other.
        if let Err(error) = read_entry(&path, above, all) {
            all.problems.push(about_file(&path, &error.to_string()));
        }
    }
    Ok(())
}

fn read_entry(path: &Path, above: &[PathBuf], all: &mut Read) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        if above.contains(&fs::canonicalize(path)?) {
            all.problems.push(about_file(path, "a link to a folder that it is in"));
            return Ok(());
        }
        return read_folder(path, above, all);
    }
    match is_rules(path) {
        true => read_file(path, all),
        false => Ok(()),
    }
}

/// Not the tests that stand beside them: `rules.test.yaml`.
fn is_rules(path: &Path) -> bool {
    let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    is_yaml && !path.file_stem().is_some_and(|stem| stem.as_encoded_bytes().ends_with(b".test"))
}

fn read_file(path: &Path, all: &mut Read) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        all.problems.push(about_file(path, "not a regular file"));
    } else if metadata.len() > FILE_BYTES_MAX {
        let bytes = metadata.len();
        all.problems.push(about_file(path, &format!("{bytes} bytes exceed {FILE_BYTES_MAX}")));
    } else {
        match String::from_utf8(fs::read(path)?) {
            Ok(text) => all.sources.push(Source { name: file_name(path), text }),
            Err(_) => all.problems.push(about_file(path, "not UTF-8 text")),
        }
    }
    Ok(())
}

fn about_file(path: &Path, message: &str) -> Problem {
    Problem { file: file_name(path), place: None, message: message.to_owned() }
}

/// The path as it was given, in a form that any log line can hold.
pub(crate) fn file_name(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes())
}
