//! Compiles the rules of all files or resources to a [`RuleSet`], and checks what concerns several of them.

mod hold;
mod limit;
mod lint;

use std::{collections::HashMap, sync::Arc};

use tollkeeper_engine::{
    hold::limit_number,
    key::SlotBy,
    rule::{CountedBy, Limit, Policy, Rule, Shown},
    rule_set::RuleSet,
};
use tollkeeper_yaml::{
    origin::{Origin, PathStep, spell_step},
    problem::Findings,
    reader::{Located, Reader},
};

use self::lint::Names;
use super::{
    options::LoadOptions,
    written::{File, WrittenDescriptor},
};

/// Puts all files together. Files of one domain add up.
pub(super) fn compile(files: Vec<File>, options: LoadOptions, findings: &mut Findings) -> RuleSet {
    let (rules, names) = (RuleSet::new(options.defaults), Names::default());
    let mut compiler = Compiler { rules, options, seen: HashMap::new(), names, findings };
    for file in &files {
        let domain = compiler.rules.domain_mut(&file.domain);
        add_class_keys(&file.descriptors, &mut domain.class_keys);
    }
    for file in files {
        let domain = compiler.rules.domain_mut(&file.domain);
        if file.slot_by == SlotBy::Domain {
            domain.slot_by = SlotBy::Domain;
        }
        if domain.requirement.keys.is_empty() {
            domain.requirement = file.requirement;
        }
        domain.draws_first |= file.draws_first;
        if domain.quota_group.is_empty() {
            domain.quota_group = file.quota_group;
        }
        lint::siblings(&file.origin, &file.descriptors, compiler.findings);
        let mut path = Path::default();
        for descriptor in file.descriptors {
            compiler.descriptor(&file.origin, &file.domain, &mut path, descriptor);
        }
    }
    compiler.names.lint(compiler.findings);
    compiler.rules
}

/// Adds the keys of the entries that are classes of calls.
fn add_class_keys(level: &[Located<WrittenDescriptor>], keys: &mut Vec<Arc<str>>) {
    for Located { value: written, .. } in level {
        let priorities = written.limits.iter().filter_map(|limit| limit.value.priority.as_ref());
        for key in priorities.map(|priority| &priority.value.entry) {
            if !keys.contains(key) {
                keys.push(Arc::clone(key));
            }
        }
        add_class_keys(&written.descriptors, keys);
    }
}

/// The path from a domain to a rule: one item for each entry of a descriptor.
#[derive(Default)]
struct Path {
    steps: Vec<PathStep>,
    /// By what the entry is counted.
    counted_by: Vec<CountedBy>,
    /// Whether metrics show the entry's value.
    values: Vec<bool>,
}

struct Compiler<'a> {
    rules: RuleSet,
    options: LoadOptions,
    /// The first location of each path of each domain.
    seen: HashMap<(String, Vec<PathStep>), String>,
    names: Names,
    findings: &'a mut Findings,
}

impl Compiler<'_> {
    fn descriptor(
        &mut self,
        origin: &Arc<Origin>,
        domain: &str,
        path: &mut Path,
        Located { location, value: written }: Located<WrittenDescriptor>,
    ) {
        path.counted_by.push(match &written.value {
            Some(pattern) if written.share_threshold => CountedBy::Pattern(pattern.as_str().into()),
            _ if written.secret => CountedBy::Digest,
            _ => CountedBy::Value,
        });
        if written.secret {
            let secret_keys = &mut self.rules.domain_mut(domain).secret_keys;
            secret_keys.insert(written.key.as_bytes().into());
        }
        path.values.push(written.value_to_metric);
        path.steps.push((written.key.clone(), written.value.clone()));
        let here = origin.location(location);
        let first = self.seen.insert((domain.to_owned(), path.steps.clone()), here.clone());
        if let Some(first) = first {
            let message = format!("`{}` is already defined at {first}", spell(&path.steps));
            self.findings.problems.push(origin.problem(location, message));
        }
        let classes = &self.rules.domain_mut(domain).class_keys;
        if classes.iter().any(|key| **key == *written.key) {
            let message = "key: it is the `entry` of a `priority`, and so part of no descriptor in this domain";
            self.findings.problems.push(origin.problem(location, message));
        }
        self.names.add(origin, domain, &written);
        let policy = self.policy(origin, domain, &path.steps, &written);
        let rule = policy.map(|policy| Arc::new(rule(policy, path, here, &written)));
        let steps = path.steps.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
        let steps: Vec<_> = steps.collect();
        self.rules.domain_mut(domain).insert(&steps, rule);
        lint::siblings(origin, &written.descriptors, self.findings);
        for descriptor in written.descriptors {
            self.descriptor(origin, domain, path, descriptor);
        }
        path.counted_by.pop();
        path.values.pop();
        path.steps.pop();
    }

    /// The policy of a descriptor; `None` if it has no limit, or a limit with a problem.
    fn policy(
        &mut self,
        origin: &Origin,
        domain: &str,
        path: &[PathStep],
        written: &WrittenDescriptor,
    ) -> Option<Policy> {
        if written.limits.iter().any(|limit| limit.value.unlimited) {
            return Some(Policy::Unlimited);
        }
        let mut limits: Vec<Arc<Limit>> = Vec::new();
        for item in &written.limits {
            let mut reader = Reader { origin, findings: &mut *self.findings };
            let limit = limit::compile(item, written, path, self.options, &mut reader);
            let Some(mut limit) = limit else { continue };
            if let Some(policy) = &mut limit.hold {
                let number = limit_number(domain, &spell(path), limits.len());
                Arc::make_mut(policy).number = number;
            }
            if limits.iter().any(|other| other.shares_counter(&limit)) {
                let message = "rate_limits: another item has the same algorithm and window, so both \
                               would share a counter";
                reader.problem(item.location, message);
            }
            let limit = Arc::new(limit);
            self.rules.add_hold(domain, &spell(path), &limit);
            limits.push(limit);
        }
        (!limits.is_empty()).then_some(Policy::Limited(limits))
    }
}

fn rule(policy: Policy, path: &Path, location: String, written: &WrittenDescriptor) -> Rule {
    let replaces = written.limits.iter().flat_map(|limit| &limit.value.replaces);
    let is_by_value = path.counted_by.iter().all(|by| *by == CountedBy::Value);
    Rule {
        replaces: replaces.map(|name| Arc::from(name.value.as_str())).collect(),
        counted_by: if is_by_value { Vec::new() } else { path.counted_by.clone() },
        shown: shown(path, written.detailed_metric),
        metadata: written.metadata.clone().map(Arc::new),
        ..Rule::new(spell(&path.steps), location, policy)
    }
}

/// What metrics show of each entry; `None` for the path as written. A pattern that counts all its values is always shown
/// as such, and so is a secret.
fn shown(path: &Path, detailed: bool) -> Option<Vec<Shown>> {
    if !detailed && !path.values.contains(&true) {
        return None;
    }
    let mut shown = Vec::with_capacity(path.steps.len());
    for ((step, by), with_value) in path.steps.iter().zip(&path.counted_by).zip(&path.values) {
        shown.push(if *by == CountedBy::Value && (detailed || *with_value) {
            Shown::Value
        } else {
            Shown::AsWritten(spell_step(step).into())
        });
    }
    Some(shown)
}

fn spell(path: &[PathStep]) -> String {
    path.iter().map(spell_step).collect::<Vec<_>>().join("|")
}
