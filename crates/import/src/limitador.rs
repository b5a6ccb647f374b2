//! Translates the limits of limitador (Kuadrant) into rules.
//!
//! To limitador, a limit applies if its conditions hold and its variables have values; other entries do not matter. To
//! a rule, a descriptor is exactly one list of entries. So each limit becomes a rule for the list of entries that it
//! names, and Envoy must send a descriptor for each list. Refused is what a rule would count otherwise.

mod cel;
mod limit;
#[cfg(test)]
mod tests;
mod tree;
mod write;

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    path::Path,
};

use tollkeeper_engine::text::did_you_mean::hint;
use tollkeeper_rules::LoadOptions;
use tollkeeper_yaml::{
    Problem,
    files::{self, Source},
    origin::Origin,
    problem::Findings,
    reader::{Reader, shown},
    tree::{Content, YamlNode},
};

use self::limit::{EntryLimit, EntryValue};

/// Most limits of a namespace. limitador looks at all of them for each call.
const LIMITS_MAX: usize = 10_000;

/// The entry of limits that apply to every call.
const EVERY_CALL: (&str, &str) = ("generic_key", "every_call");

#[derive(Debug, Clone, Default)]
pub struct LimitadorOptions {
    /// The namespace whose limits are translated; `None` if the file has one.
    pub namespace: Option<String>,
    /// The order of keys in descriptors. Other keys follow, in the order in which limits name them.
    pub order: Vec<String>,
}

#[derive(Debug)]
pub struct LimitadorRules {
    /// A rule file, with what was refused as comments. It passes `tollkeeper check`.
    pub text: String,
    /// Why limits were not translated, by location.
    pub refused: Vec<Problem>,
    /// What is probably not as meant.
    pub warnings: Vec<Problem>,
}

pub fn import(path: &Path, options: &LimitadorOptions) -> Result<LimitadorRules, Vec<Problem>> {
    let source = files::read(path).map_err(|problem| vec![problem])?;
    translate(&source, options)
}

/// Translates the limits of a text; `name` is used for the file's in locations.
pub fn import_text(
    name: &str,
    text: &str,
    options: &LimitadorOptions,
) -> Result<LimitadorRules, Vec<Problem>> {
    translate(&Source { name: name.to_owned(), text: text.to_owned() }, options)
}

fn translate(
    Source { name, text }: &Source,
    options: &LimitadorOptions,
) -> Result<LimitadorRules, Vec<Problem>> {
    let origin = Origin::text(name);
    let mut findings = Findings::default();
    let mut reader = Reader { origin: &origin, findings: &mut findings };
    let root = reader.root(text, "limitador's is a list of limits", of_kubernetes);
    let chosen = root.as_ref().and_then(|root| choose(root, options, &mut reader));
    let Some((namespace, nodes)) = chosen else { return Err(sorted(findings.problems)) };
    let is_sound = reader.findings.problems.is_empty();
    let mut limits = read(&nodes, &mut reader);
    complete(&mut limits, &mut reader);
    order(&mut limits, &options.order, &mut reader);
    let mut limits = compatible(&limits, &mut reader);
    let mut tree = tree::build(&limits);
    let surplus = tree.as_deref().map(tree::surplus).unwrap_or_default();
    if !surplus.is_empty() {
        for limit in &surplus {
            let message = format!(
                "a rule has at most {} limits, and those before it have as many windows for the same entries",
                tollkeeper_rules::LIMITS_MAX
            );
            reader.problem(limit.location, message);
        }
        limits.retain(|limit| surplus.iter().all(|other| other.location != limit.location));
        tree = tree::build(&limits);
    }
    if tree.is_none() {
        let message = format!(
            "too many limits: counted for each of their entries, and those for any value again for each value \
             that others name, they exceed {}",
            tree::REPEATED_LIMITS_MAX
        );
        reader.problem((1, 1), message);
    }
    let Findings { problems, warnings } = findings;
    let (mut refused, warnings) = (sorted(problems), sorted(warnings));
    if limits.is_empty() {
        let message = "no limit can be translated, and a rule file needs at least one";
        refused.push(Problem::of_file(Path::new(name), message));
    }
    let Some(tree) = tree.filter(|tree| is_sound && !tree.is_empty()) else { return Err(refused) };
    let text = write::rules(name, namespace, &limits, &tree, &refused);
    // What is printed must pass the check.
    if let Err(bugs) = tollkeeper_rules::parse("the rules", &text, LoadOptions::default()) {
        for bug in bugs {
            let message = format!("a bug in tollkeeper: {bug}; please report it");
            refused.push(Problem::of_file(Path::new(name), message));
        }
        return Err(refused);
    }
    Ok(LimitadorRules { text, refused, warnings })
}

fn sorted(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort();
    problems.dedup();
    problems
}

/// The message for a resource of Kubernetes, whose limits are a text or a list somewhere in it.
fn of_kubernetes(root: &YamlNode) -> Option<String> {
    let kind = root.text_at("kind")?;
    Some(format!(
        "this is a Kubernetes {}; save the list of limits in it as a file of its own",
        shown(kind)
    ))
}

/// The namespace to translate, and its limits. Limits without a namespace are among them, to be refused.
fn choose<'node>(
    root: &'node YamlNode,
    options: &'node LimitadorOptions,
    reader: &mut Reader<'_>,
) -> Option<(&'node str, Vec<&'node YamlNode>)> {
    let items = match &root.content {
        Content::List(items) if !items.is_empty() => items,
        _ => {
            reader.problem(root.location, "must be a list of at least one limit");
            return None;
        }
    };
    let namespaces: BTreeSet<&str> =
        items.iter().filter_map(|item| item.text_at("namespace")).collect();
    let problem = match &options.namespace {
        // Each limit is refused for that.
        _ if namespaces.is_empty() => None,
        Some(name) if !namespaces.contains(name.as_str()) => {
            Some(format!("no limit has the namespace `{}`", shown(name)))
        }
        None if namespaces.len() > 1 => {
            Some("the limits have several namespaces, and a rule file has one domain".to_owned())
        }
        _ => None,
    };
    if let Some(problem) = problem {
        let known: Vec<String> = namespaces.iter().take(20).map(|name| shown(name)).collect();
        let message = format!("{problem}; --namespace must be one of: {}", known.join(", "));
        reader.problem(root.location, message);
        return None;
    }
    let namespace = options.namespace.as_deref().or(namespaces.first().copied());
    let namespace = namespace.unwrap_or_default();
    let mut chosen = Vec::new();
    for item in items {
        if item.text_at("namespace").is_none_or(|name| name == namespace) {
            chosen.push(item);
        }
    }
    if chosen.len() > LIMITS_MAX {
        let message = format!("{} limits of one namespace exceed {LIMITS_MAX}", chosen.len());
        reader.problem(root.location, message);
        return None;
    }
    Some((namespace, chosen))
}

/// Reads the limits that rules can express, each by itself.
fn read(nodes: &[&YamlNode], reader: &mut Reader<'_>) -> Vec<EntryLimit> {
    let mut limits = Vec::new();
    let mut seen = HashMap::new();
    for node in nodes {
        let Some((identity, limit)) = limit::read(node, reader) else { continue };
        match seen.entry(identity) {
            Entry::Vacant(entry) => {
                entry.insert(limit.location.0);
                limits.push(limit);
            }
            Entry::Occupied(first) => {
                let message = format!(
                    "left out: to limitador it is the limit in line {}, which applies instead",
                    first.get()
                );
                reader.warning(limit.location, message);
            }
        }
    }
    limits
}

/// Gives limits that apply to every call an entry that Envoy can send with every call.
fn complete(limits: &mut Vec<EntryLimit>, reader: &mut Reader<'_>) {
    let (key, value) = EVERY_CALL;
    let names_it = |limit: &EntryLimit| limit.entries.iter().any(|(name, _)| name == key);
    let taken = limits.iter().find(|limit| names_it(limit)).map(|limit| limit.location.0);
    limits.retain_mut(|limit| {
        if !limit.entries.is_empty() {
            return true;
        }
        limit.entries.push((key.to_owned(), EntryValue::Exact(value.to_owned())));
        if let Some(line) = taken {
            let message = format!(
                "applies to every call, and so needs an entry {key}={value}, but the limit in line {line} \
                 names {key} too; let Envoy send another entry with every call, and compare it in this limit"
            );
            reader.problem(limit.location, message);
        }
        taken.is_none()
    });
}

/// Orders the entries of each limit: first the keys that are named, then as the first limit with these keys does.
///
/// A named key that no limit has is a warning, since one order may be for several namespaces.
fn order(limits: &mut [EntryLimit], named: &[String], reader: &mut Reader<'_>) {
    let known: BTreeSet<&str> =
        limits.iter().flat_map(|limit| &limit.entries).map(|(key, _)| key.as_str()).collect();
    for key in named.iter().filter(|key| !known.contains(key.as_str())) {
        let hint = hint(key, known.iter().copied());
        let message = format!("no translated limit has the key `{}`{hint}", shown(key));
        reader.findings.warnings.push(Problem::of_file(Path::new("--order"), message));
    }
    let mut orders: HashMap<BTreeSet<String>, HashMap<String, usize>> = HashMap::new();
    for limit in limits {
        let keys: Vec<String> = limit.entries.iter().map(|(key, _)| key.clone()).collect();
        let order = orders.entry(keys.iter().cloned().collect()).or_insert_with(|| {
            let first = keys.into_iter().enumerate();
            first.map(|(index, key)| (key, index)).collect()
        });
        limit.entries.sort_by_key(|(key, _)| {
            let by_name = named.iter().position(|name| name == key).unwrap_or(named.len());
            (by_name, order.get(key).copied())
        });
    }
}

/// The limits that can be side by side, each with those before it.
fn compatible<'limits>(
    limits: &'limits [EntryLimit],
    reader: &mut Reader<'_>,
) -> Vec<&'limits EntryLimit> {
    let mut compatible: Vec<&EntryLimit> = Vec::new();
    for limit in limits {
        let found =
            compatible.iter().find_map(|other| Some((other, tree::conflict(limit, other)?)));
        let Some((other, key)) = found else {
            compatible.push(limit);
            continue;
        };
        let message = format!(
            "of this limit and the one in line {}, one counts values of `{}` together that the other does not; \
             let Envoy decide the condition with `!=`, send the result as an entry, and compare that",
            other.location.0,
            shown(key)
        );
        reader.problem(limit.location, message);
    }
    compatible
}
