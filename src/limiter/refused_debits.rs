//! Rules whose debits are refused, though they count work that is already done.
//!
//! Envoy checks with 0 hits before a stream, and debits the cost when the stream ends. If the debit does not fit
//! and is refused, the limit is never reached: such a rule needs `count_denied`.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::engine::{
    decision::{Matched, Outcome, Status},
    request::Hits,
    rule::{Policy, Rule, RuleId, WhenDenied},
    rule_set::RuleSet,
};

#[derive(Debug, Default)]
pub(super) struct RefusedDebits(Mutex<HashMap<RuleId, Warning>>);

/// The log line about a rule, which is written once.
#[derive(Debug, PartialEq, Eq)]
enum Warning {
    Pending,
    Logged,
}

impl RefusedDebits {
    /// Records the status of one descriptor. Returns its rule if a debit was refused, and logs that once per rule.
    pub(super) fn see<'status>(
        &self,
        hits: Hits,
        status: &'status Status,
    ) -> Option<&'status Rule> {
        let Matched::Rule(domain, rule) = &status.matched else { return None };
        let Policy::Limited(limits) = &rule.policy else { return None };
        let is_counted = limits.iter().all(|limit| limit.when_denied == WhenDenied::Counted);
        let is_over = matches!(status.outcome, Outcome::Over { .. });
        if is_counted || !(hits == Hits::Check || is_over) {
            return None;
        }
        // The only lock that a call takes here, and only checks and denied calls do.
        let mut warnings = self.0.lock();
        let id = RuleId { domain: Arc::clone(domain), path: Arc::clone(&rule.path) };
        if hits == Hits::Check {
            warnings.entry(id).or_insert(Warning::Pending);
            return None;
        }
        let warning = warnings.get_mut(&id)?;
        if *warning == Warning::Pending {
            *warning = Warning::Logged;
            let (rule, location) = (&*rule.path, &rule.location);
            tracing::warn!(
                rule,
                location,
                "a debit was refused by a rule that also gets calls with 0 hits: if its hits count work \
                 that is already done, it needs `count_denied: true`"
            );
        }
        Some(rule)
    }

    /// Forgets the rules that are not among these.
    pub(super) fn retain(&self, rules: &RuleSet) {
        let ids = rules.ids();
        self.0.lock().retain(|id, _| ids.contains(id));
    }
}
