//! The import graphs of the crates and of benches: which file uses which other one, and where the graph has cycles.

use std::collections::{BTreeMap, BTreeSet};

use super::{folders, sources};

/// Files (or folders) as module paths, such as `rules/load`, each with those that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The graph of the files of the crate in `folder`, whose root is `root`. A file uses another one if it names it, or an
/// item of it, by a path that starts with `crate`, `super`, `self`, or one of its own modules.
fn graph_of_files(folder: &str, root: &str) -> Graph {
    let mut files: BTreeMap<Vec<String>, String> = BTreeMap::new();
    for (name, code) in sources(folder) {
        let module = name.trim_start_matches(folder).trim_matches('/').trim_end_matches(".rs");
        match module {
            module if module == root => drop(files.insert(Vec::new(), code)),
            "main" => {}
            _ => drop(files.insert(module.split('/').map(str::to_owned).collect(), code)),
        }
    }
    // What a file passes on by `pub use` belongs to the file that defines it: `a/Name` to `a/b`.
    let mut passed_on: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    let mut used: Vec<(&[String], Vec<String>)> = Vec::new();
    for (module, code) in &files {
        let is_child = |name: &str| files.contains_key(&[module, &[name.to_owned()][..]].concat());
        for Path { names, is_passed_on } in paths(code) {
            let Some(target) = resolve(module, &names, is_child) else { continue };
            match target.last() {
                Some(name) if is_passed_on => {
                    let passed = [module, &[name.clone()][..]].concat();
                    // A name that is a module's, too, is taken for the module.
                    if !files.contains_key(&passed) {
                        passed_on.insert(passed, target);
                    }
                }
                _ => used.push((module, target)),
            }
        }
    }
    let mut graph: Graph = files.keys().map(|module| (spell(module), BTreeSet::new())).collect();
    for (module, mut target) in used {
        while let Some((length, origin)) =
            (0..=target.len()).find_map(|length| Some((length, passed_on.get(&target[..length])?)))
        {
            target = [origin, &target[length..]].concat();
        }
        // The longest prefix that is a file; what follows is an item of it.
        let mut prefixes = (0..=target.len()).rev().map(|length| &target[..length]);
        let used = prefixes.find(|prefix| files.contains_key(*prefix)).expect("the root");
        if used != module {
            graph.entry(spell(module)).or_default().insert(spell(used));
        }
    }
    graph
}

/// The graphs of what lies side by side in each folder: a file counts as one with the folder of its name.
fn graphs_of_folders(files: &Graph) -> BTreeMap<String, Graph> {
    let mut folders: BTreeMap<String, Graph> = BTreeMap::new();
    for (module, uses) in files {
        let module: Vec<&str> = module.split('/').collect();
        for used in uses {
            let used: Vec<&str> = used.split('/').collect();
            let shared = module.iter().zip(&used).take_while(|(one, other)| one == other).count();
            if let (Some(entry), Some(used)) = (module.get(shared), used.get(shared))
                && ![entry, used].contains(&&"lib")
            {
                let folder = folders.entry(module[..shared].join("/")).or_default();
                folder.entry((*entry).to_owned()).or_default().insert((*used).to_owned());
            }
        }
    }
    folders
}

fn spell(module: &[String]) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("/") }
}

/// A path from the crate's root, or `None` if it starts in another crate or in a scope.
fn resolve(
    module: &[String],
    path: &[String],
    is_child: impl Fn(&str) -> bool,
) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module.split_last().map_or_else(Vec::new, |(_, parent)| parent.to_vec()),
        name if is_child(name) => return Some([module, path].concat()),
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

/// A path in the code of a file.
struct Path {
    names: Vec<String>,
    /// Whether it is in a `pub use`.
    is_passed_on: bool,
}

/// The paths of all `use` declarations, expanded, and all other paths of at least two names.
fn paths(code: &str) -> Vec<Path> {
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
                let mut expanded = Vec::new();
                expand(&tokens, &mut index, &[], &mut expanded);
                let is_passed_on = matches!(previous, Some("pub" | ")"));
                paths.extend(expanded.into_iter().map(|names| Path { names, is_passed_on }));
            }
            // `pub(in crate::rules)` is a visibility; behind a point or `::` is a method or the rest of a path.
            name if is_name(name) && !matches!(previous, Some("in" | "." | "::")) => {
                let mut path = vec![tokens[index].clone()];
                while tokens.get(index + 1).is_some_and(|next| next == "::")
                    && tokens.get(index + 2).is_some_and(|name| is_name(name))
                {
                    path.push(tokens[index + 2].clone());
                    index += 2;
                }
                // A single name is not a path.
                if path.len() > 1 {
                    paths.push(Path { names: path, is_passed_on: false });
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
fn assert_no_cycles(what: &str, graph: &Graph) {
    let cycles: Vec<String> = cycles(graph).iter().map(|cycle| cycle.join(" <-> ")).collect();
    assert!(cycles.is_empty(), "import cycles in {what}:\n{}", cycles.join("\n"));
}

#[test]
fn files_do_not_import_each_other_in_a_cycle() {
    let graphs = folders().into_iter().map(|folder| (graph_of_files(&folder, "lib"), folder));
    let compare = "benches/compare".to_owned();
    let graphs: Vec<_> = graphs.chain([(graph_of_files(&compare, "main"), compare)]).collect();
    let files: usize = graphs.iter().map(|(graph, _)| graph.len()).sum();
    assert!(files >= 300, "{files} files were found");
    for (graph, folder) in &graphs {
        assert_no_cycles(folder, graph);
    }
}

#[test]
fn folders_and_files_side_by_side_do_not_import_each_other_in_a_cycle() {
    let mut count = 0;
    for top in folders() {
        let graphs = graphs_of_folders(&graph_of_files(&top, "lib"));
        count += graphs.len();
        for (folder, graph) in graphs {
            assert_no_cycles(&format!("{top}/{folder}"), &graph);
        }
    }
    assert!(count >= 20, "{count} folders were found");
}

#[test]
fn imports_are_expanded_and_visibilities_are_not_imports() {
    let code = "
use std::fmt;
pub(crate) use super::{files::{self, Source as Text}, yaml::*};
// use crate::comment::C;
pub(in crate::rules) fn f(a: &crate::a::b::C) -> super::super::D { child::g(a.b::<E>()) }
";
    let expected = [
        "std::fmt",
        "super::files::self",
        "super::files::Source",
        "super::yaml",
        "crate::a::b::C",
        "super::super::D",
        "child::g",
    ];
    let paths = paths(code);
    let actual: Vec<String> = paths.iter().map(|path| path.names.join("::")).collect();
    assert_eq!(actual, expected);
    let passed_on: Vec<bool> = paths.iter().map(|path| path.is_passed_on).collect();
    assert_eq!(passed_on, [false, true, true, true, false, false, false]);
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
