//! The counters of each rule in force, whose labels are looked up once per rule and not per call.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use arc_swap::ArcSwap;
use hashbrown::HashTable;
use opentelemetry::KeyValue;

use super::rule_series::{Count, RuleSeries};
use crate::{
    engine::{rule::Rule, rule_set::RuleSet},
    limiter::matched::DecidedCode,
};

/// The values of `standing`.
pub(super) const STANDINGS: [&str; 4] = ["within", "near", "over", "shadow"];

#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) code: DecidedCode,
    /// In the order of [`STANDINGS`].
    pub(super) hits: [u64; STANDINGS.len()],
}

/// 2^64 divided by the golden ratio: odd, with well mixed bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The rules in force, each with its counters. Rules whose labels hold values of requests are not among them.
#[derive(Debug, Default)]
pub(super) struct RuleCounters(ArcSwap<HashTable<KnownRule>>);

/// The counters of the rules that are in force when a request arrives.
pub(in crate::limiter) type KnownRules = arc_swap::Guard<Arc<HashTable<KnownRule>>>;

#[derive(Debug)]
pub(in crate::limiter) struct KnownRule {
    domain: Arc<str>,
    /// Held, so that no other rule can have its address.
    rule: Arc<Rule>,
    /// Most rules of a large set are never matched.
    bound: OnceLock<Box<BoundCounters>>,
}

/// The counters of one rule. A series exists from the first value on.
#[derive(Debug, Default)]
struct BoundCounters {
    decisions: [OnceLock<Count>; 3],
    hits: [OnceLock<Count>; STANDINGS.len()],
}

impl RuleCounters {
    /// Knows the rules of this set, and no others.
    pub(super) fn replace(&self, rules: &RuleSet) {
        let mut known = HashTable::new();
        for domain in rules.domains() {
            for rule in domain.rules() {
                if rule.shown.is_none() {
                    let known_rule = KnownRule {
                        domain: Arc::clone(&domain.name),
                        rule: Arc::clone(rule),
                        bound: OnceLock::new(),
                    };
                    known.insert_unique(hash(rule), known_rule, |known| hash(&known.rule));
                }
            }
        }
        self.0.store(Arc::new(known));
    }

    pub(super) fn known(&self) -> KnownRules {
        self.0.load()
    }
}

impl KnownRule {
    /// The one of this rule. `None` if its labels hold values, or it is of another rule set.
    pub(super) fn of<'known>(known: &'known KnownRules, rule: &Arc<Rule>) -> Option<&'known Self> {
        known.find(hash(rule), |known| Arc::ptr_eq(&known.rule, rule))
    }

    pub(super) fn count(&self, decisions: &RuleSeries, hits: &RuleSeries, counts: Counts) {
        let bound = self.bound.get_or_init(Box::default);
        if let Some(counter) = bound.decisions.get(counts.code as usize) {
            let counter = counter.get_or_init(|| self.bind(decisions, "code", counts.code.name()));
            counter.fetch_add(1, Ordering::Relaxed);
        }
        for ((counter, name), count) in bound.hits.iter().zip(STANDINGS).zip(counts.hits) {
            if count > 0 {
                let counter = counter.get_or_init(|| self.bind(hits, "standing", name));
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    fn bind(&self, series: &RuleSeries, label: &'static str, value: &'static str) -> Count {
        series.of(&[
            KeyValue::new("domain", Arc::clone(&self.domain)),
            KeyValue::new("rule", Arc::clone(&self.rule.path)),
            KeyValue::new(label, value),
        ])
    }
}

/// The table chooses a bucket by the lower bits, which are the same for all products of an address.
fn hash(rule: &Arc<Rule>) -> u64 {
    (Arc::as_ptr(rule).addr() as u64).wrapping_mul(SPREAD).rotate_left(32)
}
