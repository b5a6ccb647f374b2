//! From rules as written to a [`RuleSet`]: what only shows when everything is seen together.

use std::{collections::HashMap, sync::Arc};

use super::{
    Problem,
    schema::{Descriptor, File, Placed, RateLimit},
};
use crate::engine::{
    rule::{Limit, Policy, Rule, WhenDenied},
    rule_set::RuleSet,
};

/// A step of a rule's path: a key and, where one is set, a value.
type Step = (String, Option<String>);

/// Puts all files together. Files of one domain add up.
pub(super) fn compile(
    files: Vec<File>,
    when_denied: WhenDenied,
    problems: &mut Vec<Problem>,
) -> RuleSet {
    let rules = RuleSet::new(when_denied);
    let mut compiler = Compiler { rules, seen: HashMap::new(), problems };
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
        let Descriptor { key, value, rate_limit, descriptors } = value;
        path.push((key, value));
        let here = format!("{file}:{}", place.0);
        let first = self.seen.insert((domain.to_owned(), path.clone()), here.clone());
        if let Some(first) = first {
            let message = format!("`{}` is already written at {first}", spell(path));
            self.problems.push(Problem { file: file.to_owned(), place: Some(place), message });
        }
        let when_denied = match rate_limit.as_ref().and_then(|limit| limit.value.count_denied) {
            None => self.rules.when_denied,
            Some(true) => WhenDenied::Counted,
            Some(false) => WhenDenied::Free,
        };
        let policy = rate_limit.and_then(|limit| self.policy(file, &limit));
        let rule = policy
            .map(|policy| Arc::new(Rule { path: spell(path), place: here, policy, when_denied }));
        let steps: Vec<_> = path.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
        self.rules.domain_mut(domain).insert(&steps, rule);
        for descriptor in descriptors {
            self.descriptor(file, domain, path, descriptor);
        }
        path.pop();
    }

    /// `None` where there is a problem.
    fn policy(&mut self, file: &str, limit: &Placed<RateLimit>) -> Option<Policy> {
        let Placed { place, value: written } = limit;
        if written.unlimited {
            return Some(Policy::Unlimited);
        }
        let unit = written.unit.as_ref()?.value;
        let limit = Limit::new(written.requests_per_unit, unit, written.unit_multiplier);
        if limit.is_none() {
            let (multiplier, unit) = (written.unit_multiplier, unit.name());
            let message = format!("unit_multiplier: {multiplier} {unit}s are over 100 years");
            self.problems.push(Problem { file: file.to_owned(), place: Some(*place), message });
        }
        limit.map(Policy::Limited)
    }
}

fn spell(path: &[Step]) -> String {
    let step = |(key, value): &Step| match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    };
    path.iter().map(step).collect::<Vec<_>>().join("|")
}
