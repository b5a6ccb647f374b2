//! Where rules come from: files and folders of YAML, checked as a whole.
//!
//! Nothing outside this folder knows YAML.

mod compile;
mod schema;
mod yaml;

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use crate::engine::{rule::WhenDenied, rule_set::RuleSet};

/// The rules that ship with the program, in force when no others are named.
const EXAMPLE: &str = include_str!("../examples/rules.yaml");

/// A larger file is refused unread.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Something wrong with the rules, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, as it was named.
    pub file: String,
    /// Line and column, from 1; `None` if it is about the file itself.
    pub place: Option<(usize, usize)>,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place, message } = self;
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

/// Reads and checks the rules in these files and folders; without any, the shipped example.
///
/// Of a folder, every `.yaml` and `.yml` file at any depth counts, in the order of their paths;
/// names that begin with a dot are passed over, since Kubernetes and editors keep copies there.
///
/// `when_denied` is for rules that do not say it themselves.
///
/// # Errors
/// Every problem of every file, ordered by place.
pub fn load(paths: &[PathBuf], when_denied: WhenDenied) -> Result<RuleSet, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut sources = Vec::new();
    if paths.is_empty() {
        sources.push(Source { name: "examples/rules.yaml".to_owned(), text: EXAMPLE.to_owned() });
    }
    for path in paths {
        if let Err(error) = read(path, &mut sources, &mut problems) {
            problems.push(about_file(path, &error.to_string()));
        }
    }
    let files: Vec<_> =
        sources.iter().filter_map(|source| schema::read(source, &mut problems)).collect();
    let rules = compile::compile(files, when_denied, &mut problems);
    if problems.is_empty() {
        return Ok(rules);
    }
    problems.sort();
    Err(problems)
}

fn read(path: &Path, sources: &mut Vec<Source>, problems: &mut Vec<Problem>) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        let before = sources.len();
        read_folder(path, sources, problems)?;
        if sources.len() == before {
            problems.push(about_file(path, "no .yaml or .yml file in this folder"));
        }
        return Ok(());
    }
    read_file(path, sources, problems)
}

fn read_folder(
    folder: &Path,
    sources: &mut Vec<Source>,
    problems: &mut Vec<Problem>,
) -> io::Result<()> {
    let mut paths =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden {
            continue;
        }
        if fs::metadata(&path)?.is_dir() {
            read_folder(&path, sources, problems)?;
        } else if path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
            read_file(&path, sources, problems)?;
        }
    }
    Ok(())
}

fn read_file(
    path: &Path,
    sources: &mut Vec<Source>,
    problems: &mut Vec<Problem>,
) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        problems.push(about_file(path, "not a regular file"));
    } else if metadata.len() > FILE_BYTES_MAX {
        let bytes = metadata.len();
        problems.push(about_file(path, &format!("{bytes} bytes exceed {FILE_BYTES_MAX}")));
    } else {
        match String::from_utf8(fs::read(path)?) {
            Ok(text) => sources.push(Source { name: path.display().to_string(), text }),
            Err(_) => problems.push(about_file(path, "not UTF-8 text")),
        }
    }
    Ok(())
}

fn about_file(path: &Path, message: &str) -> Problem {
    Problem { file: path.display().to_string(), place: None, message: message.to_owned() }
}
