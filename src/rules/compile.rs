//! From rules as written to a [`RuleSet`]: what only shows when everything is seen together.

mod limit;

use std::{collections::HashMap, sync::Arc};

use super::{
    Basis, Problem,
    schema::{Descriptor, File, Placed, RateLimit},
};
use crate::engine::{
    key::short_name,
    rule::{Limit, Policy, Rule},
    rule_set::RuleSet,
};

/// A step of a rule's path: a key and, where one is set, a value.
type Step = (String, Option<String>);

/// Puts all files together. Files of one domain add up.
pub(super) fn compile(files: Vec<File>, basis: Basis, problems: &mut Vec<Problem>) -> RuleSet {
    let rules = RuleSet::new(basis.defaults);
    let mut compiler = Compiler { rules, basis, seen: HashMap::new(), problems };
    for file in files {
        compiler.rules.domain_mut(&file.domain);
        let mut path = Vec::new();
        for descriptor in file.descriptors {
            compiler.descriptor(&file.name, &file.domain, &mut path, descriptor);
        }
    }
    compiler.rules
}

struct Compiler<'a> {
    rules: RuleSet,
    basis: Basis,
    /// Where each path of each domain was written first.
    seen: HashMap<(String, Vec<Step>), String>,
    problems: &'a mut Vec<Problem>,
}

impl Compiler<'_> {
    fn descriptor(
        &mut self,
        file: &str,
        domain: &str,
        path: &mut Vec<Step>,
        Placed { place, value }: Placed<Descriptor>,
    ) {
        let Descriptor { key, value, limits, descriptors } = value;
        path.push((key, value));
        let here = format!("{file}:{}", place.0);
        let first = self.seen.insert((domain.to_owned(), path.clone()), here.clone());
        if let Some(first) = first {
            let message = format!("`{}` is already written at {first}", spell(path));
            self.problems.push(Problem { file: file.to_owned(), place: Some(place), message });
        }
        let rule = self
            .policy(file, path, &limits)
            .map(|policy| Arc::new(Rule { path: spell(path), place: here, policy }));
        let steps: Vec<_> = path.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
        self.rules.domain_mut(domain).insert(&steps, rule);
        for descriptor in descriptors {
            self.descriptor(file, domain, path, descriptor);
        }
        path.pop();
    }

    /// `None` where nothing limits, or where there is a problem.
    fn policy(
        &mut self,
        file: &str,
        path: &[Step],
        written: &[Placed<RateLimit>],
    ) -> Option<Policy> {
        if written.iter().any(|limit| limit.value.unlimited) {
            return Some(Policy::Unlimited);
        }
        let mut limits: Vec<Arc<Limit>> = Vec::new();
        for it in written {
            let mut problem = |place, message| {
                self.problems.push(Problem { file: file.to_owned(), place: Some(place), message });
            };
            let Some(limit) = limit::compile(it, path, self.basis, &mut problem) else { continue };
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
