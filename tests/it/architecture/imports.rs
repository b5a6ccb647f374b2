//! The import graph of src: which file uses which other one, and where the graph has cycles.

use std::collections::{BTreeMap, BTreeSet};

use super::sources;

/// Files (or folders) as module paths, such as `rules/load`, each with those that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The graph of files. A file uses another one if it names it, or an item of it, by a path that starts with
/// `crate`, `super` or `self`.
fn graph_of_files() -> Graph {
    let mut files: BTreeMap<Vec<String>, String> = BTreeMap::new();
    for (name, code) in sources("src") {
        let module = name.trim_start_matches("src/").trim_end_matches(".rs");
        match module {
            "main" => {}
            "lib" => drop(files.insert(Vec::new(), code)),
            _ => drop(files.insert(module.split('/').map(str::to_owned).collect(), code)),
        }
    }
    let mut graph = Graph::new();
    for (module, code) in &files {
        let uses = graph.entry(spell(module)).or_default();
        for path in paths(code) {
            let Some(target) = resolve(module, &path) else { continue };
            // The longest prefix that is a file; what follows is an item of it.
            let lengths = (0..=target.len()).rev();
            let mut prefixes = lengths.map(|length| &target[..length]);
            let used = prefixes.find(|prefix| files.contains_key(*prefix)).expect("lib.rs");
            if used != module {
                uses.insert(spell(used));
            }
        }
    }
    graph
}

/// The graph of the folders and files at the top of src.
fn graph_of_top_folders() -> Graph {
    let mut folders = Graph::new();
    for (module, uses) in graph_of_files() {
        let folder = top(&module);
        for used in &uses {
            if folder != "lib" && top(used) != folder && top(used) != "lib" {
                folders.entry(folder.to_owned()).or_default().insert(top(used).to_owned());
            }
        }
    }
    folders
}

fn top(module: &str) -> &str {
    module.split('/').next().unwrap()
}

fn spell(module: &[String]) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("/") }
}

/// A path from the crate's root, or `None` if it starts in another crate or in a scope.
fn resolve(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module.split_last().map_or_else(Vec::new, |(_, parent)| parent.to_vec()),
        _ => return None,
    };
    for name in &path[1..] {
        if name == "super" {
            base.pop();
        } else {
            base.push(name.clone());
        }
    }
    Some(base)
}

/// The paths of all `use` declarations, expanded, and all other paths that start with `crate` or `super`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let code: Vec<&str> =
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let tokens = tokens(&code.join("\n"));
    let mut paths = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        let previous = index.checked_sub(1).map(|previous| tokens[previous].as_str());
        match tokens[index].as_str() {
            "use" => {
                index += 1;
                expand(&tokens, &mut index, &[], &mut paths);
            }
            // `pub(in crate::rules)` is a visibility.
            "crate" | "super" if previous != Some("in") => {
                let mut path = vec![tokens[index].clone()];
                while tokens.get(index + 1).is_some_and(|next| next == "::")
                    && tokens.get(index + 2).is_some_and(|name| is_name(name))
                {
                    path.push(tokens[index + 2].clone());
                    index += 2;
                }
                // A single `crate` or `super` is a visibility, too.
                if path.len() > 1 {
                    paths.push(path);
                }
                index += 1;
            }
            _ => index += 1,
        }
    }
    paths
}

/// Expands one tree of a `use` declaration, such as `a::{b, c::d as e}`, and goes past its end.
fn expand(tokens: &[String], index: &mut usize, prefix: &[String], paths: &mut Vec<Vec<String>>) {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(*index) {
        match token.as_str() {
            "{" => {
                *index += 1;
                while tokens.get(*index).is_some_and(|token| token != "}") {
                    expand(tokens, index, &path, paths);
                    if tokens.get(*index).is_some_and(|token| token == ",") {
                        *index += 1;
                    }
                }
                *index += 1;
                return;
            }
            "as" => *index += 2,
            "::" | "*" => *index += 1,
            name if is_name(name) => {
                path.push(name.to_owned());
                *index += 1;
            }
            _ => break,
        }
    }
    if path.len() == prefix.len() {
        // Not a `use` declaration, but the word in a string.
        *index += 1;
    } else {
        paths.push(path);
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names and numbers, `::`, and all other characters one by one.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut in_word = false;
    for character in code.chars() {
        let continues = in_word && (character.is_alphanumeric() || character == '_');
        in_word = character.is_alphanumeric() || character == '_';
        match tokens.last_mut() {
            Some(last) if continues || (last == ":" && character == ':') => last.push(character),
            _ if character.is_whitespace() => {}
            _ => tokens.push(character.into()),
        }
    }
    tokens
}

/// All that `start` uses, directly or through others.
fn reachable<'graph>(graph: &'graph Graph, start: &str) -> BTreeSet<&'graph str> {
    let mut found = BTreeSet::new();
    let mut waiting: Vec<&str> = vec![start];
    while let Some(module) = waiting.pop() {
        for used in graph.get(module).into_iter().flatten() {
            if found.insert(used.as_str()) {
                waiting.push(used);
            }
        }
    }
    found
}

/// The groups whose members all use each other, directly or through others.
fn cycles(graph: &Graph) -> BTreeSet<Vec<&str>> {
    let mut cycles = BTreeSet::new();
    for module in graph.keys() {
        let others = reachable(graph, module);
        if others.contains(module.as_str()) {
            let back = |other: &&str| reachable(graph, other).contains(module.as_str());
            cycles.insert(others.iter().copied().filter(back).collect());
        }
    }
    cycles
}

#[track_caller]
fn assert_no_cycles(graph: &Graph, vertices_min: usize) {
    assert!(graph.len() >= vertices_min, "{} of src were found", graph.len());
    let cycles: Vec<String> = cycles(graph).iter().map(|cycle| cycle.join(" <-> ")).collect();
    assert!(cycles.is_empty(), "import cycles:\n{}", cycles.join("\n"));
}

#[test]
fn files_do_not_import_each_other_in_a_cycle() {
    assert_no_cycles(&graph_of_files(), 100);
}

#[test]
fn top_level_folders_do_not_import_each_other_in_a_cycle() {
    assert_no_cycles(&graph_of_top_folders(), 10);
}

#[test]
fn imports_are_expanded_and_visibilities_are_not_imports() {
    let code = "
use std::fmt;
pub(crate) use super::{files::{self, Source as Text}, yaml::*};
// use crate::comment::C;
pub(in crate::rules) fn f(a: &crate::a::b::C) -> super::super::D {}
";
    let expected = [
        "std::fmt",
        "super::files::self",
        "super::files::Source",
        "super::yaml",
        "crate::a::b::C",
        "super::super::D",
    ];
    let actual: Vec<String> = paths(code).iter().map(|path| path.join("::")).collect();
    assert_eq!(actual, expected);
}

#[test]
fn a_cycle_has_all_files_that_use_each_other_and_no_others() {
    let graph: Graph = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("c", "e")]
        .into_iter()
        .map(|(module, used)| (module.to_owned(), used.to_owned()))
        .fold(Graph::new(), |mut graph, (module, used)| {
            graph.entry(module).or_default().insert(used);
            graph
        });
    assert_eq!(cycles(&graph), BTreeSet::from([vec!["a", "b", "c"]]));
}
