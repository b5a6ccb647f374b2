//! From rules as written to a [`RuleSet`]: what only shows when everything is seen together.

mod limit;
mod lint;

use std::{collections::HashMap, slice, sync::Arc};

use super::{
    Basis, Problem,
    schema::{Descriptor, File, Placed},
};
use crate::engine::{
    key::short_name,
    rule::{Limit, Policy, Rule, Shown},
    rule_set::RuleSet,
};

/// A step of a rule's path: a key and, where one is set, a value.
type Step = (String, Option<String>);

/// Puts all files together. Files of one domain add up. With the rules come warnings.
pub(super) fn compile(
    files: Vec<File>,
    basis: Basis,
    problems: &mut Vec<Problem>,
) -> (RuleSet, Vec<Problem>) {
    let rules = RuleSet::new(basis.defaults);
    let (seen, warnings) = (HashMap::new(), Vec::new());
    let mut compiler = Compiler { rules, basis, seen, problems, warnings };
    for file in files {
        compiler.rules.domain_mut(&file.domain);
        compiler.lint(&file.name, &file.descriptors);
        let mut path = Path::default();
        for descriptor in file.descriptors {
            compiler.descriptor(&file.name, &file.domain, &mut path, descriptor);
        }
    }
    compiler.lint_names();
    compiler.warnings.sort();
    (compiler.rules, compiler.warnings)
}

/// What is written on the way from a domain to a rule, one for each entry.
#[derive(Default)]
struct Path {
    steps: Vec<Step>,
    shared: Vec<Option<Arc<str>>>,
    values: Vec<bool>,
}

struct Compiler<'a> {
    rules: RuleSet,
    basis: Basis,
    /// Where each path of each domain was written first.
    seen: HashMap<(String, Vec<Step>), String>,
    problems: &'a mut Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Compiler<'_> {
    /// A name that nobody has is taken, as in envoyproxy/ratelimit, and hardly meant.
    fn lint_names(&mut self) {
        for domain in self.rules.domains() {
            let rules = domain.rules();
            let limits = rules.iter().flat_map(|rule| match &rule.policy {
                Policy::Limited(limits) => limits.as_slice(),
                Policy::Unlimited => &[],
            });
            let names: Vec<&Arc<str>> = limits.filter_map(|limit| limit.name.as_ref()).collect();
            for rule in &rules {
                for name in rule.replaces.iter().filter(|name| !names.contains(name)) {
                    let (file, line) = rule.place.rsplit_once(':').unwrap_or((&rule.place, "1"));
                    let message =
                        format!("replaces: no limit of this domain has the name `{name}`");
                    let place = Some((line.parse().unwrap_or(1), 5));
                    self.warnings.push(Problem { file: file.to_owned(), place, message });
                }
            }
        }
    }

    fn lint(&mut self, file: &str, level: &[Placed<Descriptor>]) {
        let file = || file.to_owned();
        lint::level(level, &mut |place, message| {
            self.warnings.push(Problem { file: file(), place: Some(place), message });
        });
    }

    fn descriptor(
        &mut self,
        file: &str,
        domain: &str,
        path: &mut Path,
        Placed { place, value: written }: Placed<Descriptor>,
    ) {
        let shared = written.value.as_deref().filter(|_| written.share_threshold);
        path.shared.push(shared.map(Arc::from));
        path.values.push(written.value_to_metric);
        path.steps.push((written.key.clone(), written.value.clone()));
        let here = format!("{file}:{}", place.0);
        let first = self.seen.insert((domain.to_owned(), path.steps.clone()), here.clone());
        if let Some(first) = first {
            let message = format!("`{}` is already written at {first}", spell(&path.steps));
            self.problems.push(Problem { file: file.to_owned(), place: Some(place), message });
        }
        let policy = self.policy(file, &path.steps, &written);
        let rule = policy.map(|policy| Arc::new(rule(policy, path, here, &written)));
        let steps: Vec<_> = path.steps.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
        self.rules.domain_mut(domain).insert(&steps, rule);
        self.lint(file, &written.descriptors);
        for descriptor in written.descriptors {
            self.descriptor(file, domain, path, descriptor);
        }
        path.shared.pop();
        path.values.pop();
        path.steps.pop();
    }

    /// `None` where nothing limits, or where there is a problem.
    fn policy(&mut self, file: &str, path: &[Step], written: &Descriptor) -> Option<Policy> {
        if written.limits.iter().any(|limit| limit.value.unlimited) {
            return Some(Policy::Unlimited);
        }
        let mut limits: Vec<Arc<Limit>> = Vec::new();
        for it in &written.limits {
            let mut problem = |place, message| {
                self.problems.push(Problem { file: file.to_owned(), place: Some(place), message });
            };
            let Some(limit) = limit::compile(it, written, path, self.basis, &mut problem) else {
                continue;
            };
            if limits.iter().any(|other| one_counter(other, &limit)) {
                let message = "rate_limits: another item has the same algorithm and window, and \
                               so the same counter";
                problem(it.place, message.to_owned());
            }
            limits.push(Arc::new(limit));
        }
        (!limits.is_empty()).then_some(Policy::Limited(limits))
    }
}

fn rule(policy: Policy, path: &Path, place: String, written: &Descriptor) -> Rule {
    let replaces = written.limits.iter().flat_map(|limit| &limit.value.replaces);
    Rule {
        replaces: replaces.map(|name| Arc::from(name.as_str())).collect(),
        shared: match path.shared.iter().any(Option::is_some) {
            true => path.shared.clone(),
            false => Vec::new(),
        },
        shown: shown(path, written.detailed_metric),
        metadata: written.metadata.clone().map(Arc::new),
        ..Rule::new(spell(&path.steps), place, policy)
    }
}

/// A pattern that values share is shown in any case, since it is what is counted.
fn shown(path: &Path, detailed: bool) -> Option<Vec<Shown>> {
    let show = |((step, shared), value): ((&Step, &Option<Arc<str>>), &bool)| match (detailed
        || *value)
        && shared.is_none()
    {
        true => Shown::Value,
        false => Shown::AsWritten(spell(slice::from_ref(step)).into()),
    };
    let entries = path.steps.iter().zip(&path.shared).zip(&path.values);
    (detailed || path.values.contains(&true)).then(|| entries.map(show).collect())
}

fn one_counter(one: &Limit, other: &Limit) -> bool {
    let kind = |limit: &Limit| (short_name(&limit.algorithm), limit.window.clone());
    kind(one) == kind(other)
}

fn spell(path: &[Step]) -> String {
    let step = |(key, value): &Step| match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    };
    path.iter().map(step).collect::<Vec<_>>().join("|")
}
