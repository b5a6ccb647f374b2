//! Rules whose debits are refused, though they count work that is already done.
//!
//! Envoy looks with 0 hits before a stream and debits what it cost when it ends. A debit that is
//! refused because it does not fit leaves the limit open for ever: such a rule needs `count_denied`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::engine::{
    decision::{Met, Outcome, Status},
    request::Hits,
    rule::{Policy, Rule, RuleId, WhenDenied},
    rule_set::RuleSet,
};

/// What was seen of each rule that got a look.
#[derive(Debug, Default)]
pub(super) struct RefusedDebits(Mutex<HashMap<RuleId, Told>>);

#[derive(Debug, PartialEq, Eq)]
enum Told {
    NotYet,
    Yes,
}

impl RefusedDebits {
    /// Takes notice of one descriptor; gives its rule if a debit was refused there. The log tells it
    /// once for each rule.
    pub(super) fn see<'status>(
        &self,
        hits: Hits,
        status: &'status Status,
    ) -> Option<&'status Rule> {
        let Met::Rule(domain, rule) = &status.met else { return None };
        let Policy::Limited(limits) = &rule.policy else { return None };
        let counted = limits.iter().all(|limit| limit.when_denied == WhenDenied::Counted);
        let over = matches!(status.outcome, Outcome::Over { .. });
        if counted || !(hits == Hits::Look || over) {
            return None;
        }
        // The only lock on the way of a call, and only for looks and for calls that are denied.
        let mut seen = self.lock();
        let id = RuleId { domain: Arc::clone(domain), path: Arc::clone(&rule.path) };
        if hits == Hits::Look {
            seen.entry(id).or_insert(Told::NotYet);
            return None;
        }
        let told = seen.get_mut(&id)?;
        if *told == Told::NotYet {
            *told = Told::Yes;
            let (rule, location) = (&*rule.path, &rule.location);
            tracing::warn!(
                rule,
                location,
                "this rule gets looks, and a debit of it was refused: if its hits tell of work that \
                 is done, it needs `count_denied: true`"
            );
        }
        Some(rule)
    }

    /// Forgets the rules that are not among these.
    pub(super) fn retain(&self, rules: &RuleSet) {
        let ids = rules.ids();
        self.lock().retain(|id, _| ids.contains(id));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RuleId, Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
