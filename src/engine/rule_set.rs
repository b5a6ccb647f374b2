//! All rules that are in force, and how a descriptor finds its own.
//!
//! The order is envoyproxy/ratelimit's: entry by entry, an exact value before the patterns, in the
//! order of the files, before the key alone. The first that matches is taken for good, and a rule
//! counts only where the descriptor ends.

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
    /// What limits do that do not say it themselves.
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
    /// By the order of the files.
    patterns: Vec<(Box<str>, Pattern, Node)>,
    /// The place of each of them, for those who insert.
    places: HashMap<Box<str>, usize>,
    default: Option<Node>,
}

/// Where a step of the path leads.
#[derive(Debug, Default)]
struct Node {
    rule: Option<Arc<Rule>>,
    next: Level,
}

/// How an entry found its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// By its very value.
    Value,
    /// By the pattern with this number.
    Pattern(usize),
    /// By its key, whatever the value.
    Key,
    /// It found none.
    Nothing,
}

/// What is written for one key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written<'rules> {
    /// How many values.
    pub values: usize,
    patterns: &'rules [(Box<str>, Pattern, Node)],
    default: bool,
}

impl<'rules> Written<'rules> {
    /// The patterns, in the order in which they are tried.
    pub fn patterns(self) -> impl Iterator<Item = &'rules str> {
        self.patterns.iter().map(|(text, _, _)| &**text)
    }

    /// Whether nothing is.
    pub fn is_empty(self) -> bool {
        self.values == 0 && self.patterns.is_empty() && !self.default
    }
}

/// What a descriptor met.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'rules> {
    /// A rule.
    Rule(&'rules Arc<Rule>),
    /// A place in the configuration that sets no limit: a white-list, or a descriptor that Envoy
    /// sent without entries.
    NoLimit,
    /// Nothing; most likely a typo, on one side or the other.
    Nothing,
}

impl<'rules> Found<'rules> {
    /// The names of limits that do not count where this was met.
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
    /// What a descriptor with these entries meets.
    pub fn find(&self, entries: &[Entry]) -> Found<'_> {
        self.walk(entries, |_, _, _| {})
    }

    /// The same; `see` is told of every step. It costs nothing where it does nothing.
    pub fn walk(
        &self,
        entries: &[Entry],
        mut see: impl FnMut(&Entry, Written<'_>, Taken),
    ) -> Found<'_> {
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

    /// Makes the place at the end of `path`, a list of keys and, where one is set, values.
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
        let by_pattern = self.patterns.iter().position(|(_, it, _)| it.matches(value));
        if let Some((place, (_, _, node))) =
            by_pattern.and_then(|place| Some((place, self.patterns.get(place)?)))
        {
            return (Some(node), Taken::Pattern(place));
        }
        match &self.default {
            Some(node) => (Some(node), Taken::Key),
            None => (None, Taken::Nothing),
        }
    }
}

impl Level {
    fn node(
        &self,
        entry: &Entry,
        see: &mut impl FnMut(&Entry, Written<'_>, Taken),
    ) -> Option<&Node> {
        let Some(branches) = self.keys.get(&*entry.key) else {
            see(entry, Written::default(), Taken::Nothing);
            return None;
        };
        let (node, taken) = branches.node(&entry.value);
        see(
            entry,
            Written {
                values: branches.exact.len(),
                patterns: &branches.patterns,
                default: branches.default.is_some(),
            },
            taken,
        );
        node
    }

    fn node_mut(&mut self, key: &str, value: Option<&str>) -> &mut Node {
        let branches = self.keys.entry(key.as_bytes().into()).or_default();
        let Some(value) = value else { return branches.default.get_or_insert_default() };
        let Some(pattern) = Pattern::new(value) else {
            return branches.exact.entry(value.as_bytes().into()).or_default();
        };
        let patterns = &mut branches.patterns;
        let place = *branches.places.entry(value.into()).or_insert_with(|| {
            patterns.push((value.into(), pattern, Node::default()));
            patterns.len() - 1
        });
        let found = patterns.get_mut(place).map(|(_, _, node)| node);
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
    fn a_place_without_a_limit_is_a_white_list() {
        check(&[("key2", "white")], "no limit");
    }

    #[test]
    fn a_descriptor_without_entries_meets_no_limit() {
        check(&[], "no limit");
    }

    #[test]
    fn an_unknown_domain_has_no_rules() {
        assert!(example().domain("unknown").is_none());
    }
}
