//! Source code uses the settled words: a phrase or a name that was replaced does not come back. `prose` checks the documents.

use crate::support::prelude::*;

/// Where the words count: files, and folders with all that is below them.
const PLACES: &[&str] = &[
    "clients/conformance",
    "clients/go",
    "clients/java/client/src",
    "clients/java/spring-boot-starter/src",
    "clients/python/src",
    "clients/python/tests",
    "clients/rust",
    "clients/typescript/examples",
    "clients/typescript/src",
    "clients/typescript/test",
    "crates",
    "docs",
    "examples/clients",
    "helm/files/alerts.yaml",
    "src",
];

/// The files that are code. Vale reads the others.
const ENDINGS: &[&str] = &["rs", "lua", "go", "py", "js", "ts", "java", "yaml"];

/// The phrases that must not occur, in lower case, and what to write instead: one list for code and documents.
fn settled() -> Vec<(String, String)> {
    let list = fs::read_to_string(root().join("docs/site/styles/Tollkeeper/Words.yml")).unwrap();
    let list = documents(&list).remove(0);
    let phrases = list["swap"].as_object().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    phrases.map(|(phrase, instead)| (phrase.replace(r"\s+", " "), text(instead))).collect()
}

/// Names that must not occur in the sources of the service, and what to write instead.
const NAMES: &[(&str, &str)] = &[
    ("Judgement", "Verdict"),
    ("judgement", "verdict"),
    ("CachedVerdict", "CachedFit"),
    ("PartsOutcome", "PartsVerdict"),
    ("RedisOutcome", "ScriptVerdict"),
    ("Look", "Check"),
    ("ExhaustedLooks", "ExhaustedChecks"),
    ("OnStoreFailure", "FailureMode"),
    ("without_counter", "by_failure_mode"),
    ("incumbent", "envoyproxy_ratelimit"),
    ("Incumbent", "EnvoyproxyRatelimit"),
    ("passed_over", "skipped"),
    ("counters_unreadable", "counters_corrupt"),
];

/// The files of a place.
fn files(place: &Path) -> Vec<PathBuf> {
    if place.is_dir() {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        return entries.iter().flat_map(|entry| files(entry)).collect();
    }
    let ending = place.extension().and_then(|ending| ending.to_str());
    if ending.is_some_and(|ending| ENDINGS.contains(&ending)) { vec![place.into()] } else { vec![] }
}

/// A word in lower case, without the marks of lists, comments and emphasis around it.
struct Word {
    text: String,
    line: usize,
    /// Whether punctuation follows, so that no phrase goes on behind it.
    ends: bool,
}

/// The words of a text.
fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    for (index, content) in text.lines().enumerate() {
        for word in content.split(|char: char| char.is_whitespace() || "|()[]".contains(char)) {
            let is_mark = |char: char| !char.is_alphanumeric() && !"-_/".contains(char);
            let word = word.trim_start_matches(is_mark);
            let text = word.trim_end_matches(is_mark);
            if text.contains(char::is_alphanumeric) {
                let ends = word[text.len()..].contains(['.', ',', ':', ';', '!', '?']);
                words.push(Word { text: text.to_lowercase(), line: index + 1, ends });
            }
        }
    }
    words
}

/// The lines and the phrases in a text that were replaced.
fn replaced(text: &str, settled: &[(String, String)]) -> Vec<String> {
    let words = words(text);
    let mut found = Vec::new();
    for (phrase, instead) in settled {
        let expected: Vec<&str> = phrase.split(' ').collect();
        for part in words.windows(expected.len()) {
            let is_same = part.iter().map(|word| word.text.as_str()).eq(expected.iter().copied());
            if is_same && part.iter().rev().skip(1).all(|word| !word.ends) {
                found.push(format!("{}: `{phrase}`: write {instead}", part[0].line));
            }
        }
    }
    found
}

#[test]
fn code_has_no_phrase_that_was_replaced() {
    let settled = settled();
    assert!(settled.len() > 25, "{settled:?}");
    let mut found = Vec::new();
    for place in PLACES {
        let files = files(&root().join(place));
        assert!(!files.is_empty(), "{place} has no files");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(root()).unwrap().display();
            found.extend(replaced(&text, &settled).iter().map(|line| format!("{name}:{line}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_source_has_a_name_that_was_replaced() {
    let mut found = Vec::new();
    for file in ["src", "crates"].iter().flat_map(|folder| files(&root().join(folder))) {
        let text = fs::read_to_string(&file).unwrap();
        for name in text.split(|char: char| !char.is_alphanumeric() && char != '_') {
            if let Some((_, instead)) = NAMES.iter().find(|(old, _)| *old == name) {
                found.push(format!("{}: `{name}`: write {instead}", file.display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_phrase_is_found_across_lines_and_not_within_other_words() {
    let settled = settled();
    for (text, lines) in [
        ("One. Those\nof the rule", vec![1]),
        ("/// It is the limit and that\n/// of the rule.", vec![1]),
        ("What it\n**told**, and why", vec![2]),
        ("`--a-look`, a look-up, untold, told-you", vec![]),
        ("Use those. Of the rest, none", vec![]),
    ] {
        let found: Vec<usize> = replaced(text, &settled)
            .iter()
            .map(|found| found.split_once(':').unwrap().0.parse().unwrap())
            .collect();
        assert_eq!(found, lines, "{text}");
    }
}
