//! Invariants of ARCHITECTURE.md that the source text shows. clippy.toml checks others.

mod imports;

use crate::support::{dependencies, prelude::*};

/// The folders of the sources of all crates of the service: the one at the top, and those in crates/.
fn folders() -> Vec<String> {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let names = crates.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut folders: Vec<String> = names.map(|name| format!("crates/{name}/src")).collect();
    folders.sort();
    folders.push("src".to_owned());
    folders
}

/// Every source file of the service.
fn all_sources() -> Vec<(String, String)> {
    folders().iter().flat_map(|folder| sources(folder)).collect()
}

/// Every source file below `folder`: its path in the repository, and its code without unit tests.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join(folder), &mut files);
    files.retain(|file| !file.ends_with("tests.rs"));
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
fn only_in(allowed: &[&str], words: &[&str]) {
    let is_other = |name: &str| !allowed.iter().any(|allowed| name.starts_with(allowed));
    nowhere_in(all_sources().into_iter().filter(|(name, _)| is_other(name)).collect(), words);
}

#[track_caller]
fn nowhere_in(sources: Vec<(String, String)>, words: &[&str]) {
    assert!(!sources.is_empty());
    for (name, code) in sources {
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for word in words {
                assert!(!line.contains(word), "{name} names `{word}`: {line}");
            }
        }
    }
}

/// Its manifest has no other crate that could.
#[test]
fn the_engine_reads_no_clock_and_does_no_io() {
    let words = ["Instant", "SystemTime", "std::env", "std::fs", "std::io", "std::net", "thread"];
    nowhere_in(sources("crates/engine/src"), &words);
}

#[test]
fn generated_types_are_used_only_by_the_wire_code_and_clients() {
    let users = [
        "src/rls.rs",
        "src/recording/call.rs",
        "src/cli/recorded.rs",
        "crates/rules/src/xds.rs",
        "src/cli/call.rs",
        "crates/bench/src/calls.rs",
    ];
    only_in(&users, &["tollkeeper_proto"]);
}

#[test]
fn only_the_settings_read_the_environment() {
    only_in(&["src/settings/reader/environment.rs"], &["env::var"]);
}

#[test]
fn the_limiter_names_no_json_and_no_clock() {
    let limiter = sources("src").into_iter().filter(|(name, _)| name == "src/limiter.rs");
    nowhere_in(limiter.collect(), &["serde", "json", "system_clock"]);
}

#[test]
fn every_instrument_is_built_from_its_definition() {
    let words = ["_counter(\"", "_gauge(\"", "_histogram(\"", ".u64_", ".i64_", ".f64_"];
    only_in(&["crates/base/src/telemetry/instrument.rs"], &words);
}

#[test]
fn only_one_file_spells_keys() {
    only_in(&["crates/engine/src/key.rs"], &["tk1:"]);
}

#[test]
fn every_dependency_has_its_reason_in_architecture_md() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, defended) = page.split_once("## Dependencies").unwrap();
    let defended = defended.replace(
        "opentelemetry, -sdk, -otlp, -prometheus",
        "opentelemetry opentelemetry_sdk opentelemetry-otlp opentelemetry-prometheus",
    );
    let names = dependencies(&["", "dev-", "build-"]);
    assert!(names.len() > 20, "{names:?}");
    // Our own crates are in the map.
    for name in names.iter().filter(|name| !name.starts_with("tollkeeper-")) {
        assert!(defended.contains(name), "{name} has no sentence in ARCHITECTURE.md");
    }
}

#[test]
fn architecture_md_names_files_that_exist() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let files = [all_sources(), sources("tests")].concat();
    let named: Vec<&str> = page.split('`').filter(|word| word.ends_with(".rs")).collect();
    assert!(named.len() > 20, "{} files are named", named.len());
    for name in named {
        let ending = format!("/{name}");
        // It leaves out where crates have their sources: `engine/key.rs` is crates/engine/src/key.rs.
        let exists = files.iter().any(|(file, _)| {
            let file = file
                .strip_prefix("crates/")
                .map_or_else(|| file.clone(), |file| file.replacen("/src/", "/", 1));
            format!("/{file}").ends_with(&ending)
        });
        assert!(exists, "{name} does not exist");
    }
}
