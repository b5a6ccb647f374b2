//! One descriptor of a call: what an operator has set for it, how a limit applies to it, and what its charge does with holds.

use std::{borrow::Cow, sync::Arc, time::Duration};

use super::item::Item;
use crate::{
    decision::{Matched, Outcome},
    directive::{Directive, DirectiveAction},
    hold::{HoldBy, HoldPolicy},
    hold_id::HoldId,
    ledger::{Charge, HoldAction, JudgedBy},
    parameters::Parameters,
    request::{Descriptor, Entry, Hits, HitsMeaning},
    rule::{Algorithm, CountedBy, FailureMode, Limit, Mode, Unit, WhenDenied},
    rule_set::{Domain, Found},
};

/// A descriptor, its parameters apart from its path.
pub(super) struct DescriptorInCall<'call> {
    pub(super) sent: &'call Descriptor,
    pub(super) path: Cow<'call, [Entry]>,
    parameters: Option<Parameters<'call>>,
    pub(super) meaning: HitsMeaning,
    /// Whether its token names a hold, which it commits.
    pub(super) is_commit: bool,
    /// What an operator has set for it, and for how long still.
    pub(super) directive: Option<(&'call Arc<Directive>, Duration)>,
}

impl<'call> DescriptorInCall<'call> {
    pub(super) fn new(
        domain: &Domain,
        descriptor: &'call Descriptor,
        meaning: HitsMeaning,
    ) -> Self {
        let parameters = Parameters::of(&descriptor.entries);
        let path = match parameters {
            None if domain.class_keys.is_empty() => Cow::Borrowed(&descriptor.entries[..]),
            _ => domain.path(&descriptor.entries),
        };
        Self { sent: descriptor, path, parameters, meaning, is_commit: false, directive: None }
    }

    /// What an operator has set for it, if that applies to this number of limits.
    pub(super) fn directive(&self, limits: usize) -> Option<&'call Arc<Directive>> {
        let (directive, _) = self.directive?;
        directive.applies_to(limits).then_some(directive)
    }

    /// Its status if an operator lets it pass, or has banned it: then a limit of 0 applies until that ends.
    pub(super) fn settled(&self, matched: &Matched, limits: &[Arc<Limit>]) -> Option<Item> {
        let (directive, reset) = self.directive?;
        let outcome = match directive.action {
            // An exempt quota still has its place among the others.
            DirectiveAction::Allow if !limits.iter().any(is_quota) => Outcome::Unlimited,
            DirectiveAction::Ban => {
                let own = limits.first().map(|limit| Limit::clone(limit));
                let limit = own.or_else(|| Limit::new(0, Unit::Second, 1))?;
                let limit = Limit { requests_per_unit: 0, mode: Mode::Enforced, ..limit };
                Outcome::Over { limit: Arc::new(limit), reset, judged_by: JudgedBy::Counter }
            }
            _ => return None,
        };
        Some(Item::settled(matched.clone(), outcome, Some(Arc::clone(directive))))
    }

    /// Whether it states what was used of a hold without a token, and so commits it.
    pub(super) fn ends_hold(&self, found: &Found<'_>) -> bool {
        let Found::Rule(rule) = found else { return false };
        let mut policies = rule.limits().iter().filter_map(|limit| limit.hold.as_ref());
        policies.any(|policy| match policy.by {
            HoldBy::Counter => self.sent.states_hits && matches!(self.sent.hits, Hits::Charge(_)),
            HoldBy::Id => {
                let id = self.parameters.and_then(Parameters::id);
                id.is_some() && self.states_end(policy)
            }
            HoldBy::Token => false,
        })
    }

    /// Whether its hits may be work that is done: Envoy does not say so, but sends a number with them.
    pub(super) fn is_debit(&self) -> bool {
        match (self.meaning, self.sent.hits) {
            (HitsMeaning::Done, _) => true,
            (HitsMeaning::Charged, hits) => self.sent.states_hits || hits != Hits::Charge(1),
            _ => false,
        }
    }

    /// The value of its first entry with this key.
    fn value(&self, key: &str) -> Option<&'call [u8]> {
        let entries = &self.sent.entries;
        entries.iter().find(|entry| *entry.key == *key.as_bytes()).map(|entry| &*entry.value)
    }

    /// The limit as it applies to the class of the call, and to hits that are not held. Work that is done counts whether it
    /// fits or not, but a log keeps no more than its limit, and places are only for calls in flight, so that these limits
    /// stay as they are. A part counts only if it fits; limits that count open holds stay as they are, since they have no
    /// parts. What is leased is held by token, so that what is not spent can be given back.
    pub(super) fn unheld(&self, limit: &Arc<Limit>, counted_by: &[CountedBy]) -> Arc<Limit> {
        let is_whole = self.meaning == HitsMeaning::Read
            && limit.priority.as_ref().is_some_and(|set| self.value(&set.entry).is_none());
        let limit =
            if is_whole { Arc::clone(limit) } else { limit.for_call(|key| self.value(key)) };
        let is_log = matches!(limit.algorithm, Algorithm::SlidingLog { .. });
        let when_denied = match self.meaning {
            HitsMeaning::Done if !is_log && !limit.counts_calls() => WhenDenied::Counted,
            meaning if meaning.is_part() && !limit.counts_calls() => WhenDenied::Free,
            _ => return limit,
        };
        let by_counter = |policy: &Arc<HoldPolicy>| policy.by == HoldBy::Counter;
        // Each value of a bucket has a part of its own, so that who invents values would have all of them.
        let has_shared = || counted_by.iter().any(|by| matches!(by, CountedBy::Pattern(_)));
        // What a caller spends is not compared with a number that is only tried. Nothing is leased without the store.
        let (hold, on_store_failure) = match self.meaning {
            HitsMeaning::Lease if limit.leases() && limit.shadow.is_none() => {
                (Some(Arc::new(HoldPolicy::lease())), FailureMode::Error)
            }
            HitsMeaning::Assigned if limit.is_assignable() && !has_shared() => {
                (Some(Arc::new(HoldPolicy::assignment())), FailureMode::Error)
            }
            _ => (limit.hold.clone().filter(by_counter), limit.on_store_failure),
        };
        Arc::new(Limit { when_denied, hold, on_store_failure, ..Limit::clone(&limit) })
    }

    /// Makes a charge hold hits, by the policy of its limit.
    pub(super) fn hold(&self, policy: &HoldPolicy, charge: &mut Charge) {
        let (hits, lifetime_ms) = (self.sent.hits, policy.lifetime_ms);
        let (asked, id) = match self.parameters {
            Some(parameters) => (parameters.estimate(&policy.weights), parameters.id()),
            None => (None, None),
        };
        let own = if let Hits::Charge(hits) = hits { hits } else { 1 };
        let is_estimate = self.meaning == HitsMeaning::Expected
            && policy.by == HoldBy::Token
            && self.sent.states_hits
            && policy.weights.is_empty();
        let asked = asked.or(is_estimate.then_some(own));
        let estimate = policy.estimate(asked, own, charge.counter.limit.capacity()).max(1);
        let abandoned = policy.abandoned;
        let occupies = charge.counter.limit.counts_calls();
        let occupy = occupies.then_some(HoldAction::Occupy { id: HoldId::default(), lifetime_ms });
        let holds_nothing = self.meaning != HitsMeaning::Charged
            && self.meaning != HitsMeaning::Expected
            || hits.asks_nothing();
        (charge.hits, charge.hold) = match (policy.by, hits, id) {
            // Places are only for calls in flight.
            (_, Hits::Charge(_), _) if holds_nothing && occupies => (Hits::Check, None),
            (HoldBy::Counter, _, _) if holds_nothing && !occupies => {
                (hits, Some(HoldAction::Beside { abandoned }))
            }
            _ if holds_nothing => (hits, None),
            (_, Hits::Refund(_), _)
            | (HoldBy::Token, Hits::Check, _)
            | (HoldBy::Id, Hits::Check, None) => (hits, None),
            (HoldBy::Token, _, _) => (Hits::Charge(estimate), occupy),
            (HoldBy::Id, _, Some(id)) => {
                let hold = HoldAction::ById {
                    id: HoldId::from_caller(id),
                    used: self.used_by_id(policy),
                    is_end: self.states_end(policy),
                    lifetime_ms,
                };
                (Hits::Charge(estimate), Some(hold))
            }
            (HoldBy::Id, _, None) => (hits, occupy),
            (HoldBy::Counter, Hits::Charge(_), _) if self.sent.states_hits => {
                (hits, Some(HoldAction::EndOldest { abandoned }))
            }
            (HoldBy::Counter, _, _) if occupies => (Hits::Charge(estimate), occupy),
            (HoldBy::Counter, _, _) => (
                hits,
                Some(HoldAction::Open { id: HoldId::default(), estimate, lifetime_ms, abandoned }),
            ),
        };
    }

    /// Whether it states what was used, or how the work has ended.
    fn states_end(&self, policy: &HoldPolicy) -> bool {
        self.parameters.is_some_and(|parameters| {
            parameters.used(&policy.weights).is_some() || parameters.end().is_some()
        })
    }

    /// The true number that this call would have as a commit: its parameter, or its hits.
    fn used_by_id(&self, policy: &HoldPolicy) -> Option<u64> {
        let parameters = self.parameters?;
        let hits = match self.sent.hits {
            Hits::Charge(hits) if self.sent.states_hits => Some(hits),
            _ => None,
        };
        let is_unused = || parameters.ended_in(policy).then_some(0);
        parameters.used(&policy.weights).or(hits).or_else(is_unused)
    }
}

/// Whether a limit is a quota, or a shadow of one by the settings.
pub(super) fn is_quota(limit: &Arc<Limit>) -> bool {
    limit.mode == Mode::Quota || limit.mode_written == Mode::Quota
}
