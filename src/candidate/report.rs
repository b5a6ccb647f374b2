//! What a candidate would change, and what is wrong with it, as operators see it.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{Candidate, order::OrderKind, trial::RuleName};

/// The rules that are listed, those with the most changes first.
const LISTED_MAX: usize = 200;

impl Candidate {
    /// Its state, and what it would change, as the JSON of the admin address.
    pub fn json(&self) -> Value {
        let (version, in_force) = (self.version(), self.in_force.current().version.to_string());
        let known = self.known.lock();
        let last = version.as_ref().and_then(|version| known.orders.about(version));
        let state = match &version {
            None => "absent",
            Some(version) if *version == in_force => "in_force",
            Some(_) if last.is_some_and(|last| last.order == OrderKind::Abort) => "aborted",
            Some(_) if self.is_judged() => "judged",
            Some(_) => "waiting",
        };
        let trial = self.trial.lock();
        let mut rules: BTreeMap<RuleName, [u64; 3]> = BTreeMap::new();
        for domain in self.rules.current().rules.domains() {
            let names = domain
                .rules()
                .into_iter()
                .map(|rule| (Arc::clone(&domain.name), Arc::clone(&rule.path)));
            rules.extend(names.map(|name| (name, [0; 3])));
        }
        rules.extend(trial.counts());
        let mut rules: Vec<_> = rules.into_iter().collect();
        rules.sort_by_key(|(_, [_, denied, admitted])| Reverse(denied + admitted));
        let mut sums = [0; 3];
        for (_, counts) in &rules {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [same, denied, admitted] = sums;
        let rules: Vec<Value> = (rules.into_iter().take(LISTED_MAX))
            .map(|((domain, rule), [same, denied, admitted])| {
                json!({
                    "domain": *domain, "rule": *rule,
                    "same": same, "newly_denied": denied, "newly_admitted": admitted,
                })
            })
            .collect();
        let problems: Vec<String> = self.rules.problems().iter().map(ToString::to_string).collect();
        json!({
            "state": state,
            "version": version,
            "rules_version": in_force,
            "files": self.rules.current().files,
            "one_in": self.one_in,
            "since_ms": trial.since.as_millis(),
            "same": same, "newly_denied": denied, "newly_admitted": admitted,
            "left_out": trial.left_out,
            "rules": rules,
            "promoted": known.orders.promotion(),
            "order": known.orders.last,
            "problem": known.problem,
            "problems": problems,
        })
    }

    /// What an operator should look at, as a sentence.
    pub fn problem(&self) -> Option<String> {
        let refused = self.rules.problems();
        let refused = refused.first().map(|first| format!("the candidate is not loaded: {first}"));
        let problems = [self.known.lock().problem.clone(), refused].into_iter().flatten();
        problems.reduce(|one, other| format!("{one}; {other}"))
    }
}
