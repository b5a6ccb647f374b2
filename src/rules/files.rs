//! Finds files in folders and reads them, within bounds.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::problem::{Problem, file_name};

/// A larger file is refused unread.
const BYTES_MAX: u64 = 8 << 20;

/// One file's text.
#[derive(Debug)]
pub(super) struct Source {
    /// See [`file_name`].
    pub(super) name: String,
    pub(super) text: String,
}

/// Files that were found, and what kept others from being found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: Vec<PathBuf>,
    pub(super) problems: Vec<Problem>,
}

/// The files themselves and, in folders, those that are `wanted`, at any depth and in the order of their
/// paths. Names that start with a dot are skipped, since Kubernetes and editors keep copies there.
///
/// A folder without any is a problem; `none` says so.
pub(super) fn find(paths: &[PathBuf], wanted: fn(&Path) -> bool, none: &str) -> Found {
    let mut all = Found::default();
    for path in paths {
        let mut found = Found::default();
        find_below(path, wanted, &mut found);
        if found.files.is_empty() && found.problems.is_empty() {
            found.problems.push(Problem::of_file(path, none));
        }
        all.files.append(&mut found.files);
        all.problems.append(&mut found.problems);
    }
    all
}

fn find_below(path: &Path, wanted: fn(&Path) -> bool, found: &mut Found) {
    let folder = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => read_folder(path, wanted, &[], found),
        Ok(_) => {
            found.files.push(path.to_owned());
            Ok(())
        }
        Err(error) => Err(error),
    };
    if let Err(error) = folder {
        found.problems.push(Problem::of_file(path, error.to_string()));
    }
}

/// `above` are the folders on the way here: a link may lead back to one.
fn read_folder(
    folder: &Path,
    wanted: fn(&Path) -> bool,
    above: &[PathBuf],
    found: &mut Found,
) -> io::Result<()> {
    let above = &[above, &[fs::canonicalize(folder)?]].concat();
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    for path in paths {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden {
            continue;
        }
        // One that cannot be read hides no other.
        if let Err(error) = read_entry(&path, wanted, above, found) {
            found.problems.push(Problem::of_file(&path, error.to_string()));
        }
    }
    Ok(())
}

fn read_entry(
    path: &Path,
    wanted: fn(&Path) -> bool,
    above: &[PathBuf],
    found: &mut Found,
) -> io::Result<()> {
    if !fs::metadata(path)?.is_dir() {
        if wanted(path) {
            found.files.push(path.to_owned());
        }
        return Ok(());
    }
    if above.contains(&fs::canonicalize(path)?) {
        found.problems.push(Problem::of_file(path, "a link to one of its parent folders"));
        return Ok(());
    }
    read_folder(path, wanted, above, found)
}

pub(super) fn read(path: &Path) -> Result<Source, Problem> {
    let of_file = |error: io::Error| Problem::of_file(path, error.to_string());
    let metadata = fs::metadata(path).map_err(of_file)?;
    if !metadata.is_file() {
        return Err(Problem::of_file(path, "not a regular file"));
    }
    if metadata.len() > BYTES_MAX {
        let message = format!("{} bytes exceed {BYTES_MAX} (8 MiB)", metadata.len());
        return Err(Problem::of_file(path, message));
    }
    let bytes = fs::read(path).map_err(of_file)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source { name: file_name(path), text }),
        Err(_) => Err(Problem::of_file(path, "not UTF-8 text")),
    }
}

/// Not the tests beside them.
pub(super) fn is_rules(path: &Path) -> bool {
    is_yaml(path) && !is_tests(path)
}

/// `rules.test.yaml` or `rules.test.yml`.
pub(super) fn is_tests(path: &Path) -> bool {
    let stem = path.file_stem().unwrap_or_default();
    is_yaml(path) && stem.as_encoded_bytes().ends_with(b".test")
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}
