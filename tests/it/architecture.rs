//! The invariants of ARCHITECTURE.md that the text of the code shows.

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
fn generated_types_stay_with_the_wire() {
    only_in("src", &["src/rls", "src/cli/call.rs", "src/bench/calls.rs"], &["pb::Rate", "rls::pb"]);
}

#[test]
fn only_the_rules_know_yaml() {
    only_in("src", &["src/rules"], &["saphyr"]);
}

#[test]
fn only_the_settings_read_the_environment() {
    only_in("src", &["src/settings.rs"], &["env::var", "std::env", "option_env!"]);
}

#[test]
fn only_one_place_spells_keys() {
    only_in("src", &["src/engine/key.rs"], &["tk1:"]);
}

#[test]
fn only_the_stores_edge_reads_the_wall_clock() {
    // And the rules, for the page that tells since when they are in force.
    only_in("src", &["src/store.rs", "src/rules/watch.rs"], &["SystemTime::now"]);
}

#[test]
fn tasks_are_spawned_only_where_they_are_awaited() {
    // A lane's drivers end with their worker, and workers with the service. The load generator is a
    // client, whose threads and runtimes end with its run.
    let allowed = [
        "src/app.rs",
        "src/workers.rs",
        "src/rls/serve.rs",
        "src/calls.rs",
        "src/http/serve.rs",
        "src/store/redis/lane/driver.rs",
        "src/bench",
    ];
    only_in("src", &allowed, &["spawn(", "spawn_on("]);
}

#[test]
fn every_dependency_is_defended() {
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
