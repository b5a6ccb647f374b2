//! The label of a rule: what is configured, and where the rule asks for it the values of requests, so
//! many and no more.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use crate::engine::{
    decision::Met,
    key,
    request::Entry,
    rule::{Rule, Shown},
};

/// The most series of one rule that values make; what comes later is counted as `other`.
const SERIES_MAX: usize = 1000;

/// What is not configured, or not told apart.
const OTHER: &str = "other";

/// Remembers which values have a series of their own.
#[derive(Debug, Clone, Default)]
pub(super) struct RuleLabels(Arc<Mutex<HashMap<String, HashSet<String>>>>);

impl RuleLabels {
    /// The domain and the rule of what a descriptor met.
    pub(super) fn of(&self, met: &Met, entries: &[Entry]) -> (String, String) {
        match met {
            Met::Rule(domain, rule) => (domain.to_string(), self.rule(rule, entries)),
            Met::Override(domain) => (domain.to_string(), "override".to_owned()),
            Met::NoLimit(domain) => (domain.to_string(), "none".to_owned()),
            Met::NoRule(domain) => (domain.to_string(), OTHER.to_owned()),
            Met::NoDomain => (OTHER.to_owned(), OTHER.to_owned()),
        }
    }

    fn rule(&self, rule: &Rule, entries: &[Entry]) -> String {
        let Some(shown) = &rule.shown else { return rule.path.clone() };
        let part = |(entry, shown): (&Entry, &Shown)| match shown {
            Shown::AsWritten(text) => text.to_string(),
            // The same form as in keys: visible ASCII, and a digest of what is long.
            Shown::Value => format!("{}={}", key::caller(&entry.key), key::caller(&entry.value)),
        };
        let label: Vec<String> = entries.iter().zip(shown).map(part).collect();
        let label = label.join("|");
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let series = known.entry(rule.place.clone()).or_default();
        if series.len() < SERIES_MAX || series.contains(&label) {
            series.insert(label.clone());
            return label;
        }
        format!("{}|{OTHER}", rule.path)
    }
}
