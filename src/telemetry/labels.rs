//! The label of a rule: what is configured, and where the rule asks for it the values of requests, so
//! many and no more.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use opentelemetry::StringValue;

use crate::engine::{
    decision::Met,
    key,
    request::Entry,
    rule::{Rule, RuleId, Shown},
    rule_set::RuleSet,
};

/// The most series of one rule that values make; what comes later is counted as `other`.
const SERIES_MAX: usize = 1000;

/// What is not configured, or not told apart.
const OTHER: &str = "other";

/// Remembers which values of each rule have a series of their own.
#[derive(Debug, Clone, Default)]
pub(super) struct RuleLabels(Arc<Mutex<HashMap<RuleId, HashSet<String>>>>);

impl RuleLabels {
    /// The domain and the rule of what a descriptor met.
    pub(super) fn of(&self, met: &Met, entries: &[Entry]) -> (StringValue, StringValue) {
        match met {
            Met::Rule(domain, rule) => {
                (Arc::clone(domain).into(), self.rule(domain, rule, entries))
            }
            Met::Override(domain) => (Arc::clone(domain).into(), "override".into()),
            Met::NoLimit(domain) => (Arc::clone(domain).into(), "none".into()),
            Met::NoRule(domain) => (Arc::clone(domain).into(), OTHER.into()),
            Met::NoDomain => (OTHER.into(), OTHER.into()),
        }
    }

    /// Forgets the rules that are not among these.
    pub(super) fn retain(&self, rules: &RuleSet) {
        let ids = rules.ids();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| ids.contains(id));
    }

    fn rule(&self, domain: &Arc<str>, rule: &Rule, entries: &[Entry]) -> StringValue {
        let Some(shown) = &rule.shown else { return Arc::clone(&rule.path).into() };
        let part = |(entry, shown): (&Entry, &Shown)| match shown {
            Shown::AsWritten(text) => text.to_string(),
            // The same form as in keys: visible ASCII, and a digest of what is long.
            Shown::Value => format!("{}={}", key::caller(&entry.key), key::caller(&entry.value)),
        };
        let label: Vec<String> = entries.iter().zip(shown).map(part).collect();
        let label = label.join("|");
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = RuleId { domain: Arc::clone(domain), path: Arc::clone(&rule.path) };
        let series = known.entry(id).or_default();
        if series.len() < SERIES_MAX || series.contains(&label) {
            series.insert(label.clone());
            return label.into();
        }
        format!("{}|{OTHER}", rule.path).into()
    }
}
