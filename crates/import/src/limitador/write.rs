//! Writes descriptors as a rule file, with the line of each limit as a comment.

use std::{collections::HashSet, fmt::Write as _};

use tollkeeper_yaml::{
    Problem,
    scalar::{self, Plain},
};

use super::{
    limit::EntryLimit,
    tree::{DescriptorNode, NodeValue},
};

/// The rule file of a domain. `file` is the name of limitador's.
pub(super) fn rules(
    file: &str,
    domain: &str,
    limits: &[&EntryLimit],
    nodes: &[DescriptorNode<'_>],
    refused: &[Problem],
) -> String {
    let file = in_a_line(file);
    let mut text = format!("# The limits of limitador in {file}, each with its line there.\n");
    text += "# For each request that has all entries of one of these lists, Envoy must send one descriptor with\n\
             # exactly these entries, in this order:\n";
    for list in lists_of_keys(limits) {
        text += &format!("#   {list}\n");
    }
    text += &format!("domain: {}\ndescriptors:\n", quoted(domain));
    let mut writer = RuleWriter { text };
    writer.descriptors(nodes, 1);
    let mut text = writer.text;
    if !refused.is_empty() {
        text += "# Not imported:\n";
    }
    for problem in refused {
        text += &format!("#   {}\n", in_a_line(&problem.to_string()));
    }
    text
}

/// A text without the line breaks of YAML 1.1, at which a comment would end for older readers than ours.
fn in_a_line(text: &str) -> String {
    text.replace(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'], " ")
}

/// The keys of the entries of each descriptor, in the order of the limits.
fn lists_of_keys(limits: &[&EntryLimit]) -> Vec<String> {
    let mut lists: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    for limit in limits {
        let keys: Vec<&str> = limit.entries.iter().map(|(key, _)| key.as_str()).collect();
        if seen.insert(keys.clone()) {
            let keys: Vec<String> = keys.into_iter().map(quoted).collect();
            lists.push(keys.join(", "));
        }
    }
    lists
}

struct RuleWriter {
    text: String,
}

impl RuleWriter {
    fn descriptors(&mut self, nodes: &[DescriptorNode<'_>], depth: usize) {
        for node in nodes {
            self.line(depth, &format!("- key: {}", quoted(node.key)));
            match node.value {
                NodeValue::Exact(value) => {
                    self.line(depth, &format!("  value: {}", quoted(value)));
                }
                NodeValue::Each => {}
                NodeValue::Together => {
                    self.line(depth, "  value: \"*\"");
                    self.line(depth, "  share_threshold: true");
                }
            }
            if node.limits.is_empty() && node.below.is_empty() {
                self.line(depth, "  # no limit");
            }
            self.limits(&node.limits, depth);
            if !node.below.is_empty() {
                self.line(depth, "  descriptors:");
                self.descriptors(&node.below, depth + 2);
            }
        }
    }

    fn limits(&mut self, limits: &[&EntryLimit], depth: usize) {
        let limits = smallest_of_each_window(limits);
        let (before, indent) = match limits.as_slice() {
            [_] => ("rate_limit: ", "  "),
            _ => ("- ", "    "),
        };
        if limits.len() > 1 {
            self.line(depth, "  rate_limits:");
        }
        for (limit, lines) in limits {
            let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
            let place = match lines.as_slice() {
                [line] => format!("line {line}"),
                _ => format!("the smallest of lines {}", lines.join(", ")),
            };
            self.line(depth, &format!("{indent}# {place}"));
            self.line(depth, &format!("{indent}{before}{}", spell(limit)));
        }
    }

    fn line(&mut self, depth: usize, text: &str) {
        // Writing to a String never fails.
        let _ = writeln!(self.text, "{:indent$}{text}", "", indent = 2 * depth);
    }
}

/// Limits with the same window count the same calls here, and would share a counter, so only the smallest has an effect.
/// With the lines of all.
fn smallest_of_each_window<'limits>(
    limits: &[&'limits EntryLimit],
) -> Vec<(&'limits EntryLimit, Vec<usize>)> {
    let mut smallest: Vec<(&EntryLimit, Vec<usize>)> = Vec::new();
    for limit in limits {
        let window = (limit.unit, limit.unit_multiplier);
        let same =
            smallest.iter_mut().find(|(other, _)| (other.unit, other.unit_multiplier) == window);
        match same {
            None => smallest.push((limit, vec![limit.location.0])),
            Some((other, lines)) => {
                lines.push(limit.location.0);
                if limit.requests < other.requests {
                    *other = limit;
                }
            }
        }
    }
    smallest
}

fn spell(limit: &EntryLimit) -> String {
    let mut text = format!("{{ unit: {}", limit.unit.name());
    if limit.unit_multiplier != 1 {
        text += &format!(", unit_multiplier: {}", limit.unit_multiplier);
    }
    text += &format!(", requests_per_unit: {}, algorithm: first_hit_window", limit.requests);
    if let Some(name) = &limit.name {
        text += &format!(", name: {}", quoted(name));
    }
    text + " }"
}

/// A text as a YAML scalar that means this text: with quotes if need be, and only of visible characters.
fn quoted(text: &str) -> String {
    let is_word = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte))
        && scalar::resolve(text) == Plain::Text;
    if is_word {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            ' '..='~' => quoted.push(character),
            _ if character.is_alphanumeric() => quoted.push(character),
            _ => quoted += &format!("\\U{:08x}", u32::from(character)),
        }
    }
    quoted + "\""
}
