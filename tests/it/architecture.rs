//! The invariants of ARCHITECTURE.md that the text of the code shows. clippy.toml has others.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::support::root;

/// Every source file below `folder`, by its path in the repository, without its unit tests.
fn sources(folder: &str) -> Vec<(String, String)> {
    fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => collect(&path, files),
                false => files.push(path),
            }
        }
    }
    let mut files = Vec::new();
    collect(&root().join(folder), &mut files);
    let read = |file: &PathBuf| {
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned();
        (name, code)
    };
    files.iter().filter(|file| file.extension().is_some_and(|it| it == "rs")).map(read).collect()
}

/// Fails where a file outside `allowed` has one of `words` in a line that is no comment.
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
}

#[test]
fn only_the_rules_parse_yaml() {
    only_in("src", &["src/rules"], &["saphyr"]);
}

#[test]
fn the_limiter_names_no_json_and_no_clock() {
    let others: Vec<String> = sources("src").into_iter().map(|(name, _)| name).collect();
    let others: Vec<&str> =
        others.iter().map(String::as_str).filter(|name| *name != "src/limiter.rs").collect();
    only_in("src", &others, &["serde", "json", "system_clock"]);
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
