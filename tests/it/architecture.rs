//! Invariants of ARCHITECTURE.md that the source text shows. clippy.toml checks others.

mod imports;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::support::root;

/// Every source file below `folder`: its path in the repository, and its code without unit tests.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join(folder), &mut files);
    files.sort();
    let mut sources = Vec::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned();
        sources.push((name, code));
    }
    sources
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Fails if a file that is not in `allowed` has one of `words` outside of comment lines.
#[track_caller]
fn only_in(folder: &str, allowed: &[&str], words: &[&str]) {
    let sources = sources(folder);
    assert!(!sources.is_empty(), "no sources in {folder}");
    for (name, code) in sources {
        if allowed.iter().any(|allowed| name.starts_with(allowed)) {
            continue;
        }
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for word in words {
                assert!(!line.contains(word), "{name} names `{word}`: {line}");
            }
        }
    }
}

#[test]
fn the_engine_names_no_io_no_wire_and_no_clock() {
    let words = [
        "tokio",
        "tonic",
        "redis",
        "serde",
        "opentelemetry",
        "tracing",
        "Instant",
        "SystemTime",
        "crate::store",
        "crate::rls",
        "crate::rules",
        "crate::telemetry",
        "crate::settings",
    ];
    only_in("src/engine", &[], &words);
}

#[test]
fn generated_types_are_used_only_by_the_wire_code_and_clients() {
    only_in("src", &["src/rls", "src/cli/call.rs", "src/bench/calls.rs"], &["pb::Rate", "rls::pb"]);
    only_in("src", &["src/rules/xds"], &["xds::pb", "DiscoveryRe", "RateLimitConfig"]);
}

#[test]
fn only_the_settings_read_the_environment() {
    only_in("src", &["src/settings/reader/environment.rs"], &["env::var"]);
}

#[test]
fn only_src_yaml_names_the_yaml_parser() {
    only_in("src", &["src/yaml"], &["saphyr"]);
}

/// Most files and folders side by side, where no reason is given for more.
const ENTRIES_MAX: usize = 12;

/// The folders with more, and why.
const LARGE_FOLDERS: [(&str, &str); 3] = [
    ("src", "lib.rs lists them in reading order"),
    ("src/cli", "one file for each command"),
    ("src/engine", "the decision is one thing; its files are the words of the glossary"),
];

#[test]
fn no_folder_has_more_than_12_entries_without_a_reason() {
    let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, _) in sources("src") {
        let names: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
        for depth in 1..names.len() {
            let folder = folders.entry(names[..depth].join("/")).or_default();
            folder.insert(names[depth].to_owned());
        }
    }
    assert!(folders.len() > 20, "{} folders were found", folders.len());
    folders.retain(|_, entries| entries.len() > ENTRIES_MAX);
    let large: Vec<&str> = folders.keys().map(String::as_str).collect();
    assert_eq!(large, LARGE_FOLDERS.map(|(folder, _)| folder), "entries:\n{folders:#?}");
}

#[test]
fn the_limiter_names_no_json_and_no_clock() {
    let others: Vec<String> = sources("src").into_iter().map(|(name, _)| name).collect();
    let others: Vec<&str> =
        others.iter().map(String::as_str).filter(|name| *name != "src/limiter.rs").collect();
    only_in("src", &others, &["serde", "json", "system_clock"]);
}

#[test]
fn every_instrument_is_built_from_its_definition() {
    let words = ["_counter(\"", "_gauge(\"", "_histogram(\"", ".u64_", ".i64_", ".f64_"];
    only_in("src", &["src/telemetry/instrument.rs"], &words);
}

#[test]
fn only_one_file_spells_keys() {
    only_in("src", &["src/engine/key.rs"], &["tk1:"]);
}

#[test]
fn every_dependency_has_its_reason_in_architecture_md() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, defended) = page.split_once("## Dependencies").unwrap();
    let defended = defended.replace(
        "opentelemetry, -sdk, -otlp, -prometheus",
        "opentelemetry opentelemetry_sdk opentelemetry-otlp opentelemetry-prometheus",
    );
    let sections = manifest.split("\n[").filter(|section| {
        section.lines().next().unwrap().trim_end_matches(']').ends_with("dependencies")
    });
    let mut count = 0;
    for line in sections.flat_map(|section| section.lines().skip(1)) {
        if let Some((name, _)) = line.split_once(" = ") {
            count += 1;
            assert!(defended.contains(name), "{name} has no sentence in ARCHITECTURE.md");
        }
    }
    assert!(count > 20, "{count} dependencies found");
}

#[test]
fn architecture_md_names_files_that_exist() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let files = [sources("src"), sources("tests")].concat();
    let named: Vec<&str> = page.split('`').filter(|word| word.ends_with(".rs")).collect();
    assert!(named.len() > 20, "{} files are named", named.len());
    for name in named {
        let ending = format!("/{name}");
        let exists = files.iter().any(|(file, _)| format!("/{file}").ends_with(&ending));
        assert!(exists, "{name} does not exist");
    }
}

/// The name that a line defines as a struct, enum, trait or type alias. Indented aliases are the associated
/// types of traits.
fn defined_type(line: &str) -> Option<&str> {
    let mut words =
        line.split_whitespace().skip_while(|word| word.starts_with("pub") || word.ends_with(')'));
    let kind = words.next()?;
    let is_definition = ["struct", "enum", "trait"].contains(&kind)
        || (kind == "type" && !line.starts_with(char::is_whitespace));
    let name = words.next().filter(|_| is_definition)?;
    name.split(|character: char| !character.is_alphanumeric()).next()
}

#[test]
fn every_type_name_is_defined_once() {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, code) in sources("src") {
        for name in code.lines().filter_map(defined_type) {
            files.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    assert!(files.len() > 100, "{} types were found", files.len());
    let several = files.iter().filter(|(_, files)| files.len() > 1);
    let several: Vec<String> =
        several.map(|(name, files)| format!("{name}: {}", files.join(", "))).collect();
    assert!(several.is_empty(), "type names with several definitions:\n{}", several.join("\n"));
}
