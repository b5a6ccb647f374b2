//! Finds files in folders and reads them, within bounds.

use std::{
    collections::HashSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{Problem, file_name, problem::STANDARD_INPUT};

const BYTES_MAX: u64 = 8 << 20;

#[derive(Debug)]
pub struct Source {
    /// As [`file_name`] gives it.
    pub name: String,
    pub text: String,
}

/// The files that were found, the unwanted files of folders, and the problems of the paths that could not be
/// read.
#[derive(Debug, Default)]
pub struct FoundFiles {
    pub files: Vec<PathBuf>,
    pub skipped: Vec<PathBuf>,
    pub problems: Vec<Problem>,
}

/// Finds files: standard input, each path that is a file and, in each folder, at any depth and in the order of
/// their paths, the files that are `wanted`. Names that start with a dot are skipped, since Kubernetes and editors
/// keep copies there.
///
/// A folder without such a file is a problem, with the message `none`, and so is a file that is found twice.
pub fn find(paths: &[PathBuf], wanted: fn(&Path) -> bool, none: &str) -> FoundFiles {
    let mut all = FoundFiles::default();
    for path in paths {
        let mut found = FoundFiles::default();
        find_below(path, wanted, &mut found);
        if found.files.is_empty() && found.problems.is_empty() {
            found.problems.push(Problem::of_file(path, none));
        }
        all.files.append(&mut found.files);
        all.skipped.append(&mut found.skipped);
        all.problems.append(&mut found.problems);
    }
    let mut seen = HashSet::new();
    all.files.retain(|path| {
        let is_first = seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
        if !is_first {
            all.problems.push(Problem::of_file(path, "given twice"));
        }
        is_first
    });
    all
}

fn find_below(path: &Path, wanted: fn(&Path) -> bool, found: &mut FoundFiles) {
    if path == Path::new(STANDARD_INPUT) {
        found.files.push(path.to_owned());
        return;
    }
    let folder = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => read_folder(path, wanted, &[], found),
        Ok(_) => {
            found.files.push(path.to_owned());
            Ok(())
        }
        Err(error) => Err(error),
    };
    if let Err(error) = folder {
        found.problems.push(unreadable(path, &error));
    }
}

/// `above` are the folders on the path to this one: a link may lead back to one of them.
fn read_folder(
    folder: &Path,
    wanted: fn(&Path) -> bool,
    above: &[PathBuf],
    found: &mut FoundFiles,
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
        // Go on after an entry that cannot be read.
        if let Err(error) = read_entry(&path, wanted, above, found) {
            found.problems.push(unreadable(&path, &error));
        }
    }
    Ok(())
}

fn read_entry(
    path: &Path,
    wanted: fn(&Path) -> bool,
    above: &[PathBuf],
    found: &mut FoundFiles,
) -> io::Result<()> {
    if !fs::metadata(path)?.is_dir() {
        let found = if wanted(path) { &mut found.files } else { &mut found.skipped };
        found.push(path.to_owned());
        return Ok(());
    }
    if above.contains(&fs::canonicalize(path)?) {
        found.problems.push(Problem::of_file(path, "a link to one of its parent folders"));
        return Ok(());
    }
    read_folder(path, wanted, above, found)
}

pub fn read(path: &Path) -> Result<Source, Problem> {
    let mut bytes = Vec::new();
    let read = open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    let size = read.map_err(|error| unreadable(path, &error))?;
    if size as u64 > BYTES_MAX {
        let message =
            "more than 8388608 bytes (8 MiB); split a rule file into several of the same domain";
        return Err(Problem::of_file(path, message));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source { name: file_name(path), text }),
        Err(_) => Err(Problem::of_file(path, "not UTF-8 text")),
    }
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path == Path::new(STANDARD_INPUT) {
        return Ok(Box::new(io::stdin()));
    }
    // A pipe could block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(Box::new(fs::File::open(path)?))
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    Problem::of_file(path, error.to_string())
}

/// A YAML file that is not a test.
pub fn is_rules(path: &Path) -> bool {
    is_yaml(path) && !is_tests(path)
}

/// `rules.test.yaml` or `rules.test.yml`.
pub fn is_tests(path: &Path) -> bool {
    let stem = path.file_stem().unwrap_or_default();
    is_yaml(path) && stem.as_encoded_bytes().ends_with(b".test")
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}
