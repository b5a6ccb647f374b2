//! All rules in force, and how the rule of a descriptor is found.
//!
//! The order is the same as in envoyproxy/ratelimit: entry by entry; for each entry first an exact value, then the
//! patterns in the order of the files, then the key alone. The first match is final, and a rule applies only
//! to descriptors that end there.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use hashbrown::HashMap;

use crate::{
    hold::{HoldBy, LearnedEstimate},
    key::SlotBy,
    parameters::Parameters,
    pattern::Pattern,
    request::Entry,
    rule::{Defaults, Limit, Rule, RuleId},
    text::named::named,
};

/// The search for an order of entries ends after this many steps: many entries with the same key have many orders.
const ORDER_TRIES_MAX: u32 = 100_000;

/// All domains and their rules. Immutable once built: a reload builds another.
#[derive(Debug, Default)]
pub struct RuleSet {
    /// For limits that do not set these themselves.
    pub defaults: Defaults,
    domains: HashMap<String, Domain>,
    /// By [`HoldPolicy::number`](crate::hold::HoldPolicy::number).
    holds: HashMap<u32, HoldingLimit>,
    has_tokens: bool,
}

/// A limit that holds hits, and the labels of its rule.
#[derive(Debug, Clone)]
pub struct HoldingLimit {
    /// The configured domain.
    pub domain: Arc<str>,
    /// [`Rule::path`].
    pub rule: Arc<str>,
    /// The limit.
    pub limit: Arc<Limit>,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// The configured name; safe as a label.
    pub name: Arc<str>,
    /// What its counters have in common in a Redis Cluster.
    pub slot_by: SlotBy,
    /// What its calls must have.
    pub requirement: Requirement,
    /// Keys of the entries by which quotas are grouped; if empty, each quota is a group of its own.
    pub quota_group: Vec<String>,
    /// Whether a group of quotas is charged once: the first that fits. Without keys, all quotas of a call are one group.
    pub draws_first: bool,
    /// Keys of the entries that are classes of calls.
    pub class_keys: Vec<Arc<str>>,
    /// Keys of the entries whose values are secrets in some rule.
    pub secret_keys: HashSet<Box<[u8]>>,
    root: PathLevel,
}

/// Entries that one descriptor of each call must have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirement {
    /// Their keys; empty if nothing is required.
    pub keys: Vec<String>,
    /// What happens to a call without them.
    pub mode: RequireMode,
}

named! {
    /// What happens to a call that lacks required entries.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum RequireMode {
        /// It is denied.
        #[default]
        Deny = "deny",
        /// It is counted and logged.
        Report = "report",
    }
}

impl Requirement {
    /// Whether a descriptor has the entries.
    pub(super) fn is_met(&self, entries: &[Entry]) -> bool {
        let has = |key: &String| entries.iter().any(|entry| *entry.key == *key.as_bytes());
        self.keys.iter().all(has)
    }
}

/// The rules for one position in the path of a descriptor.
#[derive(Debug, Default)]
struct PathLevel {
    keys: HashMap<Box<[u8]>, Branches>,
}

/// The rules for one key.
#[derive(Debug, Default)]
struct Branches {
    exact: HashMap<Box<[u8]>, PathNode>,
    /// In the order of the files.
    patterns: Vec<(Box<str>, Pattern, PathNode)>,
    /// The index of each pattern, for `insert`.
    pattern_indexes: HashMap<Box<str>, usize>,
    default: Option<PathNode>,
}

/// A configured descriptor.
#[derive(Debug, Default)]
struct PathNode {
    rule: Option<Arc<Rule>>,
    next: PathLevel,
}

/// What matched an entry of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchedBy {
    /// The exact value.
    Value,
    /// The pattern with this index.
    Pattern(usize),
    /// The key, with any value.
    Key,
    /// Nothing.
    Nothing,
}

/// What an entry was compared with.
#[derive(Debug, Clone, Copy)]
pub struct Candidates<'rules> {
    level: &'rules PathLevel,
    /// For the key of the entry; `None` if the key is unknown.
    branches: Option<&'rules Branches>,
}

impl<'rules> Candidates<'rules> {
    /// The keys that are configured at this position.
    pub fn keys(self) -> impl Iterator<Item = &'rules [u8]> {
        self.level.keys.keys().map(|key| &**key)
    }

    /// Whether the key of the entry is configured at this position.
    pub fn has_key(self) -> bool {
        self.branches.is_some()
    }

    /// The exact values for the key.
    pub fn values(self) -> impl Iterator<Item = &'rules [u8]> {
        self.branches.into_iter().flat_map(|branches| branches.exact.keys()).map(|value| &**value)
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
    /// A configured descriptor without a limit (an allowlist), or a descriptor without entries, which Envoy
    /// does send.
    NoLimit,
    /// Nothing; probably a typo, in the rules or in the request.
    Nothing,
}

impl<'rules> Found<'rules> {
    /// The names of the limits that do not apply in a call that matches this.
    pub fn replaces(&self) -> impl Iterator<Item = &'rules Arc<str>> + use<'rules> {
        let replaces = match self {
            Self::Rule(rule) => rule.replaces.as_slice(),
            Self::NoLimit | Self::Nothing => &[],
        };
        replaces.iter()
    }
}

impl Domain {
    /// The hash slot of the counter of one of these limits. Counters with holds by counter are together: a take may be open
    /// on several.
    pub(super) fn slot_of(&self, limits: &[Arc<Limit>]) -> SlotBy {
        let mut policies = limits.iter().filter_map(|limit| limit.hold.as_ref());
        match policies.any(|policy| policy.by == HoldBy::Counter) {
            true => SlotBy::Domain,
            false => self.slot_by,
        }
    }
}

impl RuleSet {
    /// A rule set without rules.
    pub fn new(defaults: Defaults) -> Self {
        Self { defaults, ..Self::default() }
    }

    /// Notes a limit that holds hits, or of which answers may have tokens.
    pub fn add_hold(&mut self, domain: &str, rule: &str, limit: &Arc<Limit>) {
        self.has_tokens |= limit.leases();
        let Some(policy) = &limit.hold else { return };
        self.has_tokens |= policy.by == HoldBy::Token;
        let domain = Arc::clone(&self.domain_mut(domain).name);
        let holding = HoldingLimit { domain, rule: rule.into(), limit: Arc::clone(limit) };
        self.holds.insert(policy.number, holding);
    }

    /// Whether a limit has `notify_at`.
    pub fn has_notices(&self) -> bool {
        let mut rules = self.domains.values().flat_map(Domain::rules);
        rules.any(|rule| rule.limits().iter().any(|limit| limit.notify_at.is_some()))
    }

    /// Whether answers may have tokens, of holds or of leases.
    pub const fn has_tokens(&self) -> bool {
        self.has_tokens
    }

    /// The limit that holds hits with this number.
    pub fn holding_limit(&self, number: u32) -> Option<&HoldingLimit> {
        self.holds.get(&number)
    }

    /// What commits have shown of the limit with this number.
    pub fn learned(&self, number: u32) -> Option<&LearnedEstimate> {
        self.holds.get(&number)?.limit.hold.as_ref()?.estimate.learned.as_deref()
    }

    /// Takes over what the commits of the limits of another rule set have shown.
    pub fn inherit(&self, previous: &Self) {
        for number in self.holds.keys() {
            if let (Some(learned), Some(before)) =
                (self.learned(*number), previous.learned(*number))
            {
                learned.inherit(before);
            }
        }
    }

    /// The rules of the domain `name`.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// The entries that lead to a rule and name a counter: of a domain without rules, all.
    pub fn path<'call>(&self, domain: &str, entries: &'call [Entry]) -> Cow<'call, [Entry]> {
        self.domain(domain).map_or(Cow::Borrowed(entries), |domain| domain.path(entries))
    }

    /// The rules of the domain `name`, which is added if it is new.
    pub fn domain_mut(&mut self, name: &str) -> &mut Domain {
        self.domains.entry(name.to_owned()).or_insert_with(|| Domain {
            name: name.into(),
            slot_by: SlotBy::default(),
            requirement: Requirement::default(),
            quota_group: Vec::new(),
            draws_first: false,
            class_keys: Vec::new(),
            secret_keys: HashSet::new(),
            root: PathLevel::default(),
        })
    }

    /// Every domain, by name.
    pub fn domains(&self) -> Vec<&Domain> {
        let mut domains: Vec<_> = self.domains.values().collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        domains
    }

    /// The names of the failure modes that limits of these rules have.
    pub fn failure_modes(&self) -> BTreeSet<&'static str> {
        let rules = self.domains().into_iter().flat_map(Domain::rules);
        rules.flat_map(|rule| rule.limits()).map(|limit| limit.failure_mode().name()).collect()
    }

    /// The numbers of domains and of rules.
    pub fn counts(&self) -> (usize, usize) {
        (self.domains.len(), self.domains.values().map(|domain| domain.rules().len()).sum())
    }

    /// The identities of all rules.
    pub fn ids(&self) -> HashSet<RuleId> {
        let mut ids = HashSet::new();
        for domain in self.domains.values() {
            for rule in domain.rules() {
                let (domain, path) = (Arc::clone(&domain.name), Arc::clone(&rule.path));
                ids.insert(RuleId { domain, path });
            }
        }
        ids
    }
}

impl Domain {
    /// Whether an entry is part of no path: a parameter of holds, or the class of a call.
    pub fn is_beside_path(&self, entry: &Entry) -> bool {
        Parameters::is_parameter(entry)
            || self.class_keys.iter().any(|key| *entry.key == *key.as_bytes())
    }

    /// The entries that lead to a rule and name a counter.
    pub fn path<'call>(&self, entries: &'call [Entry]) -> Cow<'call, [Entry]> {
        if !entries.iter().any(|entry| self.is_beside_path(entry)) {
            return Cow::Borrowed(entries);
        }
        entries.iter().filter(|entry| !self.is_beside_path(entry)).cloned().collect()
    }

    /// What a descriptor with these entries matches.
    pub fn find(&self, entries: &[Entry]) -> Found<'_> {
        self.walk(entries, |_, _, _| {})
    }

    /// Like [`find`](Self::find), calling `see` at each step.
    pub fn walk<'rules>(
        &'rules self,
        entries: &[Entry],
        mut see: impl FnMut(&Entry, Candidates<'rules>, MatchedBy),
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
            Some(PathNode { rule: Some(rule), .. }) => Found::Rule(rule),
            Some(PathNode { rule: None, .. }) => Found::NoLimit,
            None => Found::Nothing,
        }
    }

    /// The rules of the descriptors with these keys, whose values match: a value with a star is a pattern.
    pub fn rules_for(&self, entries: &[Entry]) -> Vec<&Arc<Rule>> {
        let Some((last, before)) = entries.split_last() else { return Vec::new() };
        let mut levels = vec![&self.root];
        for entry in before {
            let nodes = levels.into_iter().flat_map(|level| level.nodes_for(entry));
            levels = nodes.map(|node| &node.next).collect();
        }
        let nodes = levels.into_iter().flat_map(|level| level.nodes_for(last));
        nodes.filter_map(|node| node.rule.as_ref()).collect()
    }

    /// The entries in an order that leads to a rule; as they are if none does, or none is found soon.
    pub fn ordered(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut path = Vec::with_capacity(entries.len());
        let mut tries = ORDER_TRIES_MAX;
        if self.root.leads(&mut entries.clone(), &mut path, &mut tries) { path } else { entries }
    }

    /// Adds the descriptor at the end of `path`, a list of keys with optional values.
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
    fn node(&self, value: &[u8]) -> (Option<&PathNode>, MatchedBy) {
        if let Some(node) = self.exact.get(value) {
            return (Some(node), MatchedBy::Value);
        }
        for (index, (_, pattern, node)) in self.patterns.iter().enumerate() {
            if pattern.matches(value) {
                return (Some(node), MatchedBy::Pattern(index));
            }
        }
        match &self.default {
            Some(node) => (Some(node), MatchedBy::Key),
            None => (None, MatchedBy::Nothing),
        }
    }
}

impl PathLevel {
    fn node<'rules>(
        &'rules self,
        entry: &Entry,
        see: &mut impl FnMut(&Entry, Candidates<'rules>, MatchedBy),
    ) -> Option<&'rules PathNode> {
        let branches = self.keys.get(&*entry.key);
        let (node, matched_by) = match branches {
            Some(branches) => branches.node(&entry.value),
            None => (None, MatchedBy::Nothing),
        };
        see(entry, Candidates { level: self, branches }, matched_by);
        node
    }

    /// Moves the entries to `path` in an order that leads to a rule. Moves none if no order does, or if none is found in this
    /// many steps.
    fn leads(&self, entries: &mut Vec<Entry>, path: &mut Vec<Entry>, tries: &mut u32) -> bool {
        (0..entries.len()).any(|index| {
            let Some(left) = tries.checked_sub(1) else { return false };
            *tries = left;
            let entry = entries.remove(index);
            let node = self.node(&entry, &mut |_, _, _| {});
            path.push(entry);
            let leads = node.is_some_and(|node| match entries.is_empty() {
                true => node.rule.is_some(),
                false => node.next.leads(entries, path, tries),
            });
            if !leads {
                entries.splice(index..index, path.pop());
            }
            leads
        })
    }

    /// Those that entries match which have this key, and a value that matches.
    fn nodes_for(&self, entry: &Entry) -> Vec<&PathNode> {
        let Some(branches) = self.keys.get(&*entry.key) else { return Vec::new() };
        let Some(pattern) = Pattern::of(&entry.value) else {
            return branches.node(&entry.value).0.into_iter().collect();
        };
        let exact = branches.exact.iter().filter(|(value, _)| pattern.matches(value));
        let by_pattern = branches.patterns.iter().map(|(_, _, node)| node);
        exact.map(|(_, node)| node).chain(by_pattern).chain(&branches.default).collect()
    }

    fn node_mut(&mut self, key: &str, value: Option<&str>) -> &mut PathNode {
        let branches = self.keys.entry(key.as_bytes().into()).or_default();
        let Some(value) = value else { return branches.default.get_or_insert_default() };
        let Some(pattern) = Pattern::new(value) else {
            return branches.exact.entry(value.as_bytes().into()).or_default();
        };
        let patterns = &mut branches.patterns;
        let index = *branches.pattern_indexes.entry(value.into()).or_insert_with(|| {
            patterns.push((value.into(), pattern, PathNode::default()));
            patterns.len() - 1
        });
        let found = patterns.get_mut(index).map(|(_, _, node)| node);
        found.expect("it was found or pushed")
    }

    fn collect<'rules>(&'rules self, rules: &mut Vec<&'rules Arc<Rule>>) {
        for Branches { exact, patterns, default, .. } in self.keys.values() {
            let by_pattern = patterns.iter().map(|(_, _, node)| node);
            for node in exact.values().chain(by_pattern).chain(default) {
                rules.extend(&node.rule);
                node.next.collect(rules);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        descriptor_syntax,
        hold::{Estimate, HoldPolicy},
        request::ENTRIES_MAX,
        rule::{FailureMode, Lease, Policy, Unit},
    };

    /// The rules of envoyproxy/ratelimit's basic example, with other paths.
    fn example() -> RuleSet {
        let mut rules = RuleSet::default();
        let domain = rules.domain_mut("test");
        let nested = ("key1", Some("value1"));
        insert(domain, &[nested, ("subkey1", None)], "nested default");
        insert(domain, &[nested, ("subkey1", Some("subvalue1"))], "nested exact");
        insert(domain, &[("key2", None)], "default");
        insert(domain, &[("key2", Some("value2"))], "exact");
        insert(domain, &[("file", None)], "any file");
        insert(domain, &[("file", Some("a*"))], "first pattern");
        insert(domain, &[("file", Some("ab*"))], "never reached");
        insert(domain, &[("file", Some("*.pdf")), ("user", None)], "nested below a pattern");
        insert(domain, &[("file", Some("abc"))], "exact file");
        domain.insert(&[("key2", Some("white"))], None);
        rules
    }

    fn insert(domain: &mut Domain, path: &[(&str, Option<&str>)], name: &str) {
        let rule = Rule::new(name, String::new(), Policy::Unlimited);
        domain.insert(path, Some(Arc::new(rule)));
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
    fn patterns_come_after_exact_values_and_before_the_key_alone_in_the_order_of_the_files() {
        check(&[("file", "abc")], "exact file");
        check(&[("file", "abd")], "first pattern");
        check(&[("file", "xyz")], "any file");
        check(&[("file", "x.pdf"), ("user", "u")], "nested below a pattern");
        // The pattern is final, although the key alone would have a rule here.
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
    fn a_rule_applies_only_to_descriptors_that_end_there() {
        check(&[("key1", "value1")], "no limit");
        check(&[("key2", "value2"), ("more", "x")], "nothing");
    }

    #[test]
    fn a_descriptor_without_a_limit_is_an_allowlist() {
        check(&[("key2", "white")], "no limit");
    }

    #[test]
    fn parameters_of_holds_and_classes_of_calls_are_part_of_no_path() {
        let mut rules = example();
        let domain = rules.domain_mut("test");
        domain.class_keys.push("class".into());
        let entry = |key: &'static str| Entry { key: key.into(), value: "v".into() };
        let entries = ["class", "user", "hold.estimate", "model", "class"].map(entry);
        assert_eq!(*domain.path(&entries), ["user", "model"].map(entry));
        assert!(matches!(domain.path(&entries[1..2]), Cow::Borrowed(_)));
    }

    #[test]
    fn entries_are_ordered_as_a_rule_has_them() {
        let rules = example();
        let ordered = |keys: &[(&'static str, &'static str)]| {
            let entry = |(key, value): &(&'static str, &'static str)| Entry {
                key: (*key).into(),
                value: (*value).into(),
            };
            let ordered = rules.domain("test").unwrap().ordered(keys.iter().map(entry).collect());
            ordered.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>()
        };
        assert_eq!(ordered(&[("subkey1", "v"), ("key1", "value1")]), ["key1", "subkey1"]);
        assert_eq!(ordered(&[("user", "u"), ("file", "x.pdf")]), ["file", "user"]);
        assert_eq!(ordered(&[("user", "u"), ("file", "abc")]), ["user", "file"]);
        assert_eq!(ordered(&[("z", ""), ("key2", "v"), ("a", "")]), ["z", "key2", "a"]);
    }

    #[test]
    fn the_search_for_an_order_ends_among_many_entries_of_one_key() {
        let mut rules = RuleSet::default();
        let domain = rules.domain_mut("test");
        let path: Vec<_> =
            [("key", None); ENTRIES_MAX].into_iter().chain([("end", None)]).collect();
        domain.insert(&path, None);
        let entries = vec![Entry { key: "key".into(), value: "v".into() }; ENTRIES_MAX];
        assert_eq!(domain.ordered(entries.clone()), entries);
    }

    /// The entries of a descriptor in its text form.
    fn entries(text: &str) -> Vec<Entry> {
        descriptor_syntax::parse(text).unwrap()
    }

    fn sorted<'a>(texts: impl Iterator<Item = &'a [u8]>) -> String {
        let mut texts: Vec<_> = texts.map(|text| String::from_utf8_lossy(text)).collect();
        texts.sort();
        texts.join(" ")
    }

    #[test]
    fn each_step_of_a_search_shows_what_was_compared_with_the_entry() {
        let rules = example();
        for (descriptor, expected) in [
            ("file=abc", "Value of file key1 key2, true, abc, a* ab* *.pdf"),
            ("file=x.pdf", "Pattern(2) of file key1 key2, true, abc, a* ab* *.pdf"),
            ("file=xyz", "Key of file key1 key2, true, abc, a* ab* *.pdf"),
            ("key1=other", "Nothing of file key1 key2, true, value1, "),
            ("key3=v", "Nothing of file key1 key2, false, , "),
            (
                "key1=value1,subkey1=v",
                "Value of file key1 key2, true, value1, ; Key of subkey1, true, subvalue1, ",
            ),
            ("key1=other,subkey1=v", "Nothing of file key1 key2, true, value1, "),
        ] {
            let mut steps = Vec::new();
            rules.domain("test").unwrap().walk(&entries(descriptor), |_, candidates, by| {
                let (keys, values) = (sorted(candidates.keys()), sorted(candidates.values()));
                let patterns: Vec<_> = candidates.patterns().collect();
                let (has_key, patterns) = (candidates.has_key(), patterns.join(" "));
                steps.push(format!("{by:?} of {keys}, {has_key}, {values}, {patterns}"));
            });
            assert_eq!(steps.join("; "), expected, "{descriptor}");
        }
    }

    #[test]
    fn a_pattern_finds_the_rules_of_all_descriptors_that_it_may_match() {
        let rules = example();
        for (descriptor, expected) in [
            ("key2=value2", "exact"),
            ("key2=other", "default"),
            ("key2=v*", "default exact"),
            ("key2=x*", "default"),
            ("file=*", "any file exact file first pattern never reached"),
            ("file=*c", "any file exact file first pattern never reached"),
            ("file=*,user=u", "nested below a pattern"),
            ("key1=*,subkey1=*", "nested default nested exact"),
            ("key1=value1", ""),
            ("other=*", ""),
        ] {
            let found = rules.domain("test").unwrap().rules_for(&entries(descriptor));
            assert_eq!(sorted(found.iter().map(|rule| rule.path.as_bytes())), expected);
        }
        assert!(rules.domain("test").unwrap().rules_for(&[]).is_empty());
    }

    #[test]
    fn what_rules_there_are_is_listed_by_name() {
        let mut rules = example();
        let deny = Limit { on_store_failure: FailureMode::Deny, ..limit() };
        let limits = Policy::Limited(vec![Arc::new(limit()), Arc::new(deny)]);
        let rule = Rule::new("user", String::new(), limits);
        rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
        let domains: Vec<_> =
            rules.domains().iter().map(|domain| domain.name.to_string()).collect();
        assert_eq!(
            (domains, rules.counts()),
            (vec!["shop".to_owned(), "test".to_owned()], (2, 10))
        );
        assert_eq!(rules.failure_modes().into_iter().collect::<Vec<_>>(), ["deny", "error"]);
        let paths = rules.domain("test").unwrap().rules();
        let paths: Vec<_> = paths.iter().map(|rule| &*rule.path).collect();
        let by_path = ["any file", "default", "exact", "exact file", "first pattern"];
        assert_eq!(paths[..5], by_path);
        let id = |domain: &str, path: &str| RuleId { domain: domain.into(), path: path.into() };
        let ids = rules.ids();
        assert!(ids.contains(&id("shop", "user")) && ids.contains(&id("test", "any file")));
        assert_eq!(ids.len(), 10);
    }

    fn limit() -> Limit {
        Limit::new(5, Unit::Minute, 1).unwrap()
    }

    /// A limit that holds hits, with the number 7 and an estimate that is learned from `first` hits on.
    fn holding(by: HoldBy, first: u64) -> Arc<Limit> {
        let policy = HoldPolicy { by, number: 7, ..HoldPolicy::new(1000) };
        let learned = Some(Arc::new(LearnedEstimate::new(first)));
        let policy =
            HoldPolicy { estimate: Estimate { learned, ..policy.estimate.clone() }, ..policy };
        Arc::new(Limit { hold: Some(Arc::new(policy)), ..limit() })
    }

    #[test]
    fn answers_have_tokens_if_a_limit_holds_by_them_or_leases_and_holds_by_counter_share_a_slot() {
        let (domain, id) = (SlotBy::Domain, SlotBy::BusinessId);
        let leasing = Arc::new(Limit { lease: Lease::Auto, ..limit() });
        for (limit, has_tokens, holds, slot_by) in [
            (Arc::new(limit()), false, false, id),
            (leasing, true, false, id),
            (holding(HoldBy::Token, 1), true, true, id),
            (holding(HoldBy::Id, 1), false, true, id),
            (holding(HoldBy::Counter, 1), false, true, domain),
        ] {
            let mut rules = RuleSet::default();
            rules.add_hold("shop", "user", &limit);
            assert_eq!(rules.has_tokens(), has_tokens, "{limit:?}");
            let found = rules.holding_limit(7);
            let labels = found.map(|holding| (&*holding.domain, &*holding.rule, &holding.limit));
            assert_eq!(labels, holds.then_some(("shop", "user", &limit)));
            assert_eq!(rules.domain_mut("shop").slot_of(&[limit]), slot_by);
            rules.add_hold("shop", "user", &Arc::new(self::limit()));
            assert_eq!(rules.has_tokens(), has_tokens, "another limit takes none away");
        }
    }

    #[test]
    fn rules_inherit_what_commits_have_shown_of_limits_with_their_numbers() {
        let (mut before, mut after) = (RuleSet::default(), RuleSet::default());
        before.add_hold("shop", "user", &holding(HoldBy::Id, 50));
        after.add_hold("shop", "user", &holding(HoldBy::Id, 3));
        after.inherit(&RuleSet::default());
        assert_eq!(after.learned(7).map(LearnedEstimate::estimate), Some(3));
        after.inherit(&before);
        assert_eq!(after.learned(7).map(LearnedEstimate::estimate), Some(50));
        assert_eq!(after.learned(8).map(LearnedEstimate::estimate), None);
    }

    #[test]
    fn rules_have_notices_if_one_of_their_limits_has() {
        let mut rules = RuleSet::default();
        for (notify_at, has_notices) in [(None, false), (Some([80].into()), true)] {
            let limits = vec![Arc::new(limit()), Arc::new(Limit { notify_at, ..limit() })];
            let rule = Rule::new("user", String::new(), Policy::Limited(limits));
            rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
            assert_eq!(rules.has_notices(), has_notices);
        }
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
