//! All rules that are in force, and how a descriptor finds its own.
//!
//! The order is envoyproxy/ratelimit's: entry by entry, an exact value before the patterns, in the
//! order of the files, before the key alone. The first match is final, and a rule counts only where the
//! descriptor ends.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::engine::{
    pattern::Pattern,
    request::Entry,
    rule::{Defaults, Rule, RuleId},
};

/// All domains and their rules. Never changed once built: a reload builds another.
#[derive(Debug, Default)]
pub struct RuleSet {
    /// For limits that do not say it themselves.
    pub defaults: Defaults,
    domains: HashMap<String, Domain>,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// The configured name; safe as a label.
    pub name: Arc<str>,
    root: Level,
}

/// The rules for one position in a descriptor's path.
#[derive(Debug, Default)]
struct Level {
    keys: HashMap<Box<[u8]>, Branches>,
}

/// The rules for one key.
#[derive(Debug, Default)]
struct Branches {
    exact: HashMap<Box<[u8]>, Node>,
    /// In the order of the files.
    patterns: Vec<(Box<str>, Pattern, Node)>,
    /// The index of each of them, for `insert`.
    pattern_indexes: HashMap<Box<str>, usize>,
    default: Option<Node>,
}

/// A configured descriptor.
#[derive(Debug, Default)]
struct Node {
    rule: Option<Arc<Rule>>,
    next: Level,
}

/// How an entry of a descriptor was matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// By its exact value.
    Value,
    /// By the pattern with this index.
    Pattern(usize),
    /// By its key, whatever the value.
    Key,
    /// Not at all.
    Nothing,
}

/// What an entry was compared with.
#[derive(Debug, Clone, Copy)]
pub struct Written<'rules> {
    level: &'rules Level,
    /// For the entry's key; `None` if there is nothing.
    branches: Option<&'rules Branches>,
}

impl<'rules> Written<'rules> {
    /// The keys that are configured here.
    pub fn keys(self) -> impl Iterator<Item = &'rules [u8]> {
        self.level.keys.keys().map(|key| &**key)
    }

    /// Whether the entry's key is one of them.
    pub fn has_key(self) -> bool {
        self.branches.is_some()
    }

    /// Number of exact values for the key.
    pub fn values(self) -> usize {
        self.branches.map_or(0, |branches| branches.exact.len())
    }

    /// The patterns for the key, in the order in which they are tried.
    pub fn patterns(self) -> impl Iterator<Item = &'rules str> {
        let patterns = self.branches.map_or(&[][..], |branches| &branches.patterns);
        patterns.iter().map(|(text, _, _)| &**text)
    }
}

/// What a descriptor matches.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'rules> {
    /// A rule.
    Rule(&'rules Arc<Rule>),
    /// A configured descriptor without a limit (an allowlist), or a request's descriptor without entries,
    /// which Envoy does send.
    NoLimit,
    /// Nothing; probably a typo, on one side or the other.
    Nothing,
}

impl<'rules> Found<'rules> {
    /// The names of limits that are ignored in calls that match this.
    pub fn replaces(&self) -> impl Iterator<Item = &'rules Arc<str>> + use<'rules> {
        let replaces = match self {
            Self::Rule(rule) => rule.replaces.as_slice(),
            Self::NoLimit | Self::Nothing => &[],
        };
        replaces.iter()
    }
}

impl RuleSet {
    /// No rules yet.
    pub fn new(defaults: Defaults) -> Self {
        Self { defaults, domains: HashMap::new() }
    }

    /// The rules of the domain `name`.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// The rules of the domain `name`, which is made if it is new.
    pub fn domain_mut(&mut self, name: &str) -> &mut Domain {
        self.domains
            .entry(name.to_owned())
            .or_insert_with(|| Domain { name: name.into(), root: Level::default() })
    }

    /// Every domain, by name.
    pub fn domains(&self) -> Vec<&Domain> {
        let mut domains: Vec<_> = self.domains.values().collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        domains
    }

    /// The identities of all rules.
    pub fn ids(&self) -> HashSet<RuleId> {
        let ids = self.domains.values().flat_map(|domain| {
            let id = |rule: &Arc<Rule>| RuleId {
                domain: Arc::clone(&domain.name),
                path: Arc::clone(&rule.path),
            };
            domain.rules().into_iter().map(id)
        });
        ids.collect()
    }
}

impl Domain {
    /// What a descriptor with these entries matches.
    pub fn find(&self, entries: &[Entry]) -> Found<'_> {
        self.walk(entries, |_, _, _| {})
    }

    /// Like [`find`](Self::find), calling `see` at each step.
    pub fn walk<'rules>(
        &'rules self,
        entries: &[Entry],
        mut see: impl FnMut(&Entry, Written<'rules>, Taken),
    ) -> Found<'rules> {
        let Some((last, before)) = entries.split_last() else { return Found::NoLimit };
        let mut level = &self.root;
        for entry in before {
            match level.node(entry, &mut see) {
                Some(node) => level = &node.next,
                None => return Found::Nothing,
            }
        }
        match level.node(last, &mut see) {
            Some(Node { rule: Some(rule), .. }) => Found::Rule(rule),
            Some(Node { rule: None, .. }) => Found::NoLimit,
            None => Found::Nothing,
        }
    }

    /// Adds the descriptor at the end of `path`, a list of keys and, where one is set, values.
    pub fn insert(&mut self, path: &[(&str, Option<&str>)], rule: Option<Arc<Rule>>) {
        let Some(((key, value), before)) = path.split_last() else { return };
        let mut level = &mut self.root;
        for (key, value) in before {
            level = &mut level.node_mut(key, *value).next;
        }
        level.node_mut(key, *value).rule = rule;
    }

    /// Every rule, by its path.
    pub fn rules(&self) -> Vec<&Arc<Rule>> {
        let mut rules = Vec::new();
        self.root.collect(&mut rules);
        rules.sort_by(|a, b| a.path.cmp(&b.path));
        rules
    }
}

impl Branches {
    fn node(&self, value: &[u8]) -> (Option<&Node>, Taken) {
        if let Some(node) = self.exact.get(value) {
            return (Some(node), Taken::Value);
        }
        for (index, (_, pattern, node)) in self.patterns.iter().enumerate() {
            if pattern.matches(value) {
                return (Some(node), Taken::Pattern(index));
            }
        }
        match &self.default {
            Some(node) => (Some(node), Taken::Key),
            None => (None, Taken::Nothing),
        }
    }
}

impl Level {
    fn node<'rules>(
        &'rules self,
        entry: &Entry,
        see: &mut impl FnMut(&Entry, Written<'rules>, Taken),
    ) -> Option<&'rules Node> {
        let branches = self.keys.get(&*entry.key);
        let (node, taken) =
            branches.map_or((None, Taken::Nothing), |branches| branches.node(&entry.value));
        see(entry, Written { level: self, branches }, taken);
        node
    }

    fn node_mut(&mut self, key: &str, value: Option<&str>) -> &mut Node {
        let branches = self.keys.entry(key.as_bytes().into()).or_default();
        let Some(value) = value else { return branches.default.get_or_insert_default() };
        let Some(pattern) = Pattern::new(value) else {
            return branches.exact.entry(value.as_bytes().into()).or_default();
        };
        let patterns = &mut branches.patterns;
        let index = *branches.pattern_indexes.entry(value.into()).or_insert_with(|| {
            patterns.push((value.into(), pattern, Node::default()));
            patterns.len() - 1
        });
        let found = patterns.get_mut(index).map(|(_, _, node)| node);
        found.expect("it was found or pushed")
    }

    fn collect<'rules>(&'rules self, rules: &mut Vec<&'rules Arc<Rule>>) {
        let nodes = self.keys.values().flat_map(|branches| {
            let by_pattern = branches.patterns.iter().map(|(_, _, node)| node);
            branches.exact.values().chain(by_pattern).chain(branches.default.as_ref())
        });
        for node in nodes {
            rules.extend(node.rule.as_ref());
            node.next.collect(rules);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rule::Policy;

    /// The rules of the incumbent's basic example, in our own paths.
    fn example() -> RuleSet {
        let mut rules = RuleSet::default();
        let domain = rules.domain_mut("test");
        let mut rule = |path: &[(&str, Option<&str>)], name: &str| {
            let rule = Rule::new(name, String::new(), Policy::Unlimited);
            domain.insert(path, Some(Arc::new(rule)));
        };
        rule(&[("key1", Some("value1")), ("subkey1", None)], "nested default");
        rule(&[("key1", Some("value1")), ("subkey1", Some("subvalue1"))], "nested exact");
        rule(&[("key2", None)], "default");
        rule(&[("key2", Some("value2"))], "exact");
        rule(&[("file", None)], "any file");
        rule(&[("file", Some("a*"))], "first pattern");
        rule(&[("file", Some("ab*"))], "never reached");
        rule(&[("file", Some("*.pdf")), ("user", None)], "nested below a pattern");
        rule(&[("file", Some("abc"))], "exact file");
        domain.insert(&[("key2", Some("white"))], None);
        rules
    }

    #[track_caller]
    fn check(descriptor: &[(&'static str, &'static str)], expected: &str) {
        let entries: Vec<Entry> = descriptor
            .iter()
            .map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() })
            .collect();
        let rules = example();
        let found = match rules.domain("test").expect("the example's domain").find(&entries) {
            Found::Rule(rule) => &*rule.path,
            Found::NoLimit => "no limit",
            Found::Nothing => "nothing",
        };
        assert_eq!(found, expected, "for {descriptor:?}");
    }

    #[test]
    fn an_exact_value_comes_before_the_key_alone() {
        check(&[("key2", "value2")], "exact");
        check(&[("key2", "other")], "default");
        check(&[("key2", "")], "default");
    }

    #[test]
    fn patterns_come_between_in_the_order_of_the_files() {
        check(&[("file", "abc")], "exact file");
        check(&[("file", "abd")], "first pattern");
        check(&[("file", "xyz")], "any file");
        check(&[("file", "x.pdf"), ("user", "u")], "nested below a pattern");
        // The pattern is taken for good, although the key alone would have a rule here.
        check(&[("file", "x.pdf")], "no limit");
    }

    #[test]
    fn the_path_is_followed_entry_by_entry() {
        check(&[("key1", "value1"), ("subkey1", "subvalue1")], "nested exact");
        check(&[("key1", "value1"), ("subkey1", "other")], "nested default");
        check(&[("key1", "other"), ("subkey1", "subvalue1")], "nothing");
        check(&[("subkey1", "subvalue1"), ("key1", "value1")], "nothing");
    }

    #[test]
    fn a_rule_counts_only_where_the_descriptor_ends() {
        check(&[("key1", "value1")], "no limit");
        check(&[("key2", "value2"), ("more", "x")], "nothing");
    }

    #[test]
    fn a_descriptor_without_a_limit_is_an_allowlist() {
        check(&[("key2", "white")], "no limit");
    }

    #[test]
    fn a_descriptor_without_entries_matches_no_limit() {
        check(&[], "no limit");
    }

    #[test]
    fn an_unknown_domain_has_no_rules() {
        assert!(example().domain("unknown").is_none());
    }
}
