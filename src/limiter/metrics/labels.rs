//! The label of a rule: its path as configured, or with values of requests if the rule includes them, which are
//! bounded in number.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use opentelemetry::StringValue;
use parking_lot::Mutex;

use crate::{
    engine::{
        decision::Matched,
        key,
        request::Entry,
        rule::{Rule, RuleId, Shown},
        rule_set::RuleSet,
    },
    limiter::matched::{NONE, OTHER, OVERRIDE, domain_of, rule_of},
};

/// The most series of one rule by values; further values are counted as `other`.
pub(super) const SERIES_MAX: usize = 1000;

/// The values of each rule that have a series of their own.
#[derive(Debug, Clone, Default)]
pub(super) struct RuleLabels(Arc<Mutex<HashMap<RuleId, HashSet<String>>>>);

impl RuleLabels {
    /// The labels `domain` and `rule` of what a descriptor with these entries matched.
    pub(super) fn of(
        &self,
        rules: &RuleSet,
        matched: &Matched,
        entries: &[Entry],
    ) -> (StringValue, StringValue) {
        let rule = match matched {
            Matched::Rule(domain, rule) => match &rule.shown {
                Some(shown) => self.with_values(domain, rule, shown, &rules.path(domain, entries)),
                None => Arc::clone(&rule.path).into(),
            },
            _ => rule_of(matched).into(),
        };
        (domain_of(matched).into(), rule)
    }

    /// Forgets the rules that are not among these. Returns all that [`RuleLabels::of`] may return for these: domain and
    /// rule, and each rule also with an empty domain.
    pub(super) fn retain(&self, rules: &RuleSet) -> HashSet<[String; 2]> {
        let (ids, domains) = (rules.ids(), rules.domains());
        let mut known = self.0.lock();
        known.retain(|id, _| ids.contains(id));
        let mut labels = HashSet::new();
        for domain in domains.iter().map(|domain| &*domain.name).chain([OTHER, ""]) {
            labels.extend([NONE, OTHER, OVERRIDE].map(|rule| [domain.to_owned(), rule.to_owned()]));
        }
        for id in &ids {
            let with_values = known.get(id).into_iter().flatten().cloned();
            let others = [id.path.to_string(), format!("{}|{OTHER}", id.path)];
            for rule in with_values.chain(others) {
                labels.insert([String::new(), rule.clone()]);
                labels.insert([id.domain.to_string(), rule]);
            }
        }
        labels
    }

    fn with_values(
        &self,
        domain: &Arc<str>,
        rule: &Rule,
        shown: &[Shown],
        path: &[Entry],
    ) -> StringValue {
        let label: Vec<String> =
            path.iter().zip(shown).map(|(entry, shown)| part(entry, shown)).collect();
        let label = label.join("|");
        let mut known = self.0.lock();
        let id = RuleId { domain: Arc::clone(domain), path: Arc::clone(&rule.path) };
        let series = known.entry(id).or_default();
        if series.len() < SERIES_MAX || series.contains(&label) {
            series.insert(label.clone());
            return label.into();
        }
        format!("{}|{OTHER}", rule.path).into()
    }
}

fn part(Entry { key, value }: &Entry, shown: &Shown) -> String {
    match shown {
        Shown::AsWritten(text) => text.to_string(),
        // As in keys: visible ASCII, and digests of long values.
        Shown::Value => format!("{}={}", key::caller(key), key::caller(value)),
    }
}
