//! From a request to charges, and from tallies to a decision.

use std::{iter, sync::Arc};

use crate::engine::{
    decision::{Code, Decision, Matched, Outcome, Status},
    key::{self, Counter},
    ledger::{Charge, Fit, Tally},
    request::{Descriptor, Entry, Request},
    rule::{Algorithm, Defaults, Limit, Mode, ModeOverride, Policy},
    rule_set::{Domain, Found, RuleSet},
};

/// The charges of one call, and which of them belong to each descriptor.
#[derive(Debug)]
pub struct Plan {
    /// What the store must charge, all or nothing.
    pub charges: Vec<Charge>,
    items: Vec<Item>,
    mode_override: ModeOverride,
}

/// One descriptor's part of a plan.
#[derive(Debug)]
enum Item {
    /// Already decided.
    Settled(Status),
    /// Decided by the tallies of the next charges, of this number, at least one.
    Charged(Matched, usize),
}

impl Plan {
    /// Finds the rule of each descriptor.
    pub fn draw(rules: &RuleSet, request: &Request) -> Self {
        let mode_override = rules.defaults.mode_override;
        let mut plan = Self { charges: Vec::new(), items: Vec::new(), mode_override };
        let Some(domain) = rules.domain(&request.domain) else {
            for _ in &request.descriptors {
                plan.settle_at_once(Matched::NoDomain, Outcome::NoLimit);
            }
            return plan;
        };
        let mut found_by_each = Vec::with_capacity(request.descriptors.len());
        for descriptor in &request.descriptors {
            found_by_each.push(match descriptor.limit {
                Some(_) => Found::NoLimit,
                None => domain.find(&descriptor.entries),
            });
        }
        let replaced: Vec<&Arc<str>> = found_by_each.iter().flat_map(Found::replaces).collect();
        for (descriptor, found) in request.descriptors.iter().zip(&found_by_each) {
            match &descriptor.limit {
                Some(limit) => plan.add_override(domain, descriptor, limit, rules.defaults),
                None => plan.add(domain, descriptor, found, &replaced),
            }
        }
        plan
    }

    fn add_override(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor,
        limit: &Limit,
        defaults: Defaults,
    ) {
        let limit = Arc::new(defaults.complete(limit.clone()));
        self.charge(domain, descriptor, &[], &limit);
        self.items.push(Item::Charged(Matched::Override(Arc::clone(&domain.name)), 1));
    }

    fn add(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor,
        found: &Found<'_>,
        replaced: &[&Arc<str>],
    ) {
        let name = Arc::clone(&domain.name);
        let rule = match found {
            Found::Rule(rule) => rule,
            Found::NoLimit => return self.settle_at_once(Matched::NoLimit(name), Outcome::NoLimit),
            Found::Nothing => return self.settle_at_once(Matched::NoRule(name), Outcome::NoLimit),
        };
        let matched = Matched::Rule(name, Arc::clone(rule));
        let Policy::Limited(limits) = &rule.policy else {
            return self.settle_at_once(matched, Outcome::Unlimited);
        };
        let mut count = 0;
        for limit in limits {
            let is_replaced = limit.name.as_ref().is_some_and(|name| replaced.contains(&name));
            if !is_replaced {
                self.charge(domain, descriptor, &rule.shared, limit);
                count += 1;
            }
        }
        match count {
            0 => self.settle_at_once(matched, Outcome::NoLimit),
            1.. => self.items.push(Item::Charged(matched, count)),
        }
    }

    fn charge(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor,
        shared: &[Option<Arc<str>>],
        limit: &Arc<Limit>,
    ) {
        let entries = &descriptor.entries;
        let counter = Counter::shared(&domain.name, entries, shared, Arc::clone(limit));
        self.charges.push(Charge {
            counter: counter.with_slot_by(domain.slot_by),
            hits: descriptor.hits,
            caller: caller(entries, &limit.algorithm),
        });
    }

    fn settle_at_once(&mut self, matched: Matched, outcome: Outcome) {
        self.items.push(Item::Settled(Status { matched, outcome }));
    }

    /// The number of charges of each descriptor, in their order.
    pub fn charges_of_each(&self) -> Vec<usize> {
        self.items.iter().map(Item::charges).collect()
    }

    /// The label of the rule that the charge with this index is for, from the configuration.
    pub fn label(&self, charge: usize) -> String {
        let mut end = 0;
        let charged = self.items.iter().find(|item| {
            end += item.charges();
            charge < end
        });
        match charged {
            Some(Item::Charged(Matched::Rule(_, rule), _)) => rule.path.to_string(),
            _ => "override".to_owned(),
        }
    }

    /// The charges, each with what its descriptor matched.
    pub fn matched_charges(&self) -> impl Iterator<Item = (&Matched, &Charge)> {
        let matched = self.items.iter().flat_map(|item| match item {
            Item::Charged(matched, count) => iter::repeat_n(matched, *count),
            Item::Settled(status) => iter::repeat_n(&status.matched, 0),
        });
        matched.zip(&self.charges)
    }

    /// The decision, from one tally for each charge, in their order, and whether they deny the call.
    pub fn settle(self, tallies: Vec<Tally>, denied: bool) -> Decision {
        debug_assert_eq!(tallies.len(), self.charges.len(), "a store answers every charge");
        let is_quota_without_limit =
            self.mode_override == ModeOverride::Quota && self.items.iter().any(Item::has_no_limit);
        let mut outcomes = self.charges.into_iter().zip(tallies).map(outcome);
        let mut statuses = Vec::with_capacity(self.items.len());
        for item in self.items {
            match item {
                Item::Settled(status) => statuses.push(status),
                Item::Charged(matched, count) => {
                    let outcome = outcomes.by_ref().take(count).reduce(tighter);
                    statuses.extend(outcome.map(|outcome| Status { matched, outcome }));
                }
            }
        }
        let is_over = denied && !is_quota_without_limit;
        Decision { code: if is_over { Code::OverLimit } else { Code::Ok }, statuses }
    }
}

impl Item {
    fn charges(&self) -> usize {
        match self {
            Self::Charged(_, count) => *count,
            Self::Settled(_) => 0,
        }
    }

    fn has_no_limit(&self) -> bool {
        matches!(self, Self::Settled(Status { outcome: Outcome::NoLimit, .. }))
    }
}

/// The caller to store with the hits, if the algorithm remembers callers.
fn caller(entries: &[Entry], algorithm: &Algorithm) -> Option<Box<str>> {
    let Algorithm::SlidingLog { remember: Some(name) } = algorithm else { return None };
    let entry = entries.iter().find(|entry| *entry.key == *name.as_bytes())?;
    Some(key::caller(&entry.value))
}

fn outcome((charge, Tally { fit, reset }): (Charge, Tally)) -> Outcome {
    let limit = charge.counter.limit;
    match fit {
        // A limit that is a shadow by the settings alone still has the status OVER_LIMIT.
        Fit::Over if limit.mode_written == Mode::Shadow => Outcome::Shadowed { limit, reset },
        Fit::Fits { remaining } => Outcome::Within { limit, remaining, reset },
        Fit::Over => Outcome::Over { limit, reset },
    }
}

/// Which of two limits on a descriptor is reported: the one with fewer remaining hits, and of two that are over the
/// one with the longer reset.
fn tighter(one: Outcome, other: Outcome) -> Outcome {
    let other_is_tighter = match (&one, &other) {
        (Outcome::Over { reset: one, .. }, Outcome::Over { reset: other, .. }) => other > one,
        (Outcome::Within { remaining: one, .. }, Outcome::Within { remaining: other, .. }) => {
            other < one
        }
        (Outcome::Over { .. }, _) => false,
        (_, other) => matches!(other, Outcome::Over { .. } | Outcome::Shadowed { .. }),
    };
    if other_is_tighter { other } else { one }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::{
        key::SlotBy,
        request::Hits,
        rule::{Rule, Unit},
        time::Timestamp,
    };

    fn rules() -> RuleSet {
        let mut rules = RuleSet::default();
        let domain = rules.domain_mut("shop");
        let (minute, day) = (limit(5, Unit::Minute), limit(20, Unit::Day));
        for (key, policy) in [
            ("user", Policy::Limited(vec![Arc::clone(&minute)])),
            ("both", Policy::Limited(vec![minute, day])),
            ("free", Policy::Unlimited),
        ] {
            let rule = Rule::new("p", "f:1".into(), policy);
            domain.insert(&[(key, None)], Some(Arc::new(rule)));
        }
        rules
    }

    fn limit(requests: u64, unit: Unit) -> Arc<Limit> {
        Arc::new(Limit::new(requests, unit, 1).unwrap())
    }

    fn request(domain: &str, keys: &[&'static str]) -> Request {
        let mut descriptors = Vec::new();
        for key in keys.iter().copied() {
            let entries = vec![Entry { key: key.into(), value: "x".into() }];
            descriptors.push(Descriptor { entries, hits: Hits::Charge(1), limit: None });
        }
        Request { domain: domain.into(), descriptors }
    }

    fn over(seconds: u64) -> Tally {
        Tally { fit: Fit::Over, reset: Duration::from_secs(seconds) }
    }

    fn fits(remaining: u64, seconds: u64) -> Tally {
        Tally { fit: Fit::Fits { remaining }, reset: Duration::from_secs(seconds) }
    }

    #[test]
    fn only_descriptors_with_a_limit_are_charged() {
        let plan = Plan::draw(&rules(), &request("shop", &["free", "user", "other"]));
        let start = Timestamp::from_secs(60);
        let keys: Vec<_> = plan.charges.iter().map(|charge| charge.counter.key(start)).collect();
        assert_eq!(keys, ["tk1:fw:60s:{shop|user=x}:60"]);
        assert!(Plan::draw(&rules(), &request("unknown", &["user"])).charges.is_empty());
    }

    #[test]
    fn slot_by_domain_applies_to_rules_and_to_limits_of_requests() {
        let mut rules = rules();
        rules.domain_mut("shop").slot_by = SlotBy::Domain;
        let mut request = request("shop", &["user", "other"]);
        request.descriptors[1].limit = Limit::new(5, Unit::Minute, 1);
        let plan = Plan::draw(&rules, &request);
        let keys = plan.charges.iter().map(|charge| charge.counter.key(Timestamp::from_secs(60)));
        let keys: Vec<_> = keys.collect();
        assert_eq!(keys, ["tk1:fw:60s:{shop}|user=x:60", "tk1:fw:60s:{shop}|other=x:60"]);
    }

    #[test]
    fn each_tally_goes_to_its_descriptor_and_one_over_denies_the_call() {
        let plan = Plan::draw(&rules(), &request("shop", &["user", "free", "user", "other"]));
        let reset = Duration::from_secs(7);
        let decision = plan.settle(vec![over(7), fits(3, 7)], true);
        let limit = limit(5, Unit::Minute);
        let outcomes: Vec<_> = decision.statuses.into_iter().map(|status| status.outcome).collect();
        let within = Outcome::Within { limit: Arc::clone(&limit), remaining: 3, reset };
        let expected =
            [Outcome::Over { limit, reset }, Outcome::Unlimited, within, Outcome::NoLimit];
        assert_eq!(decision.code, Code::OverLimit);
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn of_several_limits_the_tightest_is_reported() {
        for (tallies, reported) in [
            ([fits(3, 7), fits(2, 70)], 70),
            ([fits(3, 7), fits(3, 70)], 7),
            ([fits(0, 7), over(70)], 70),
            ([over(7), fits(0, 70)], 7),
            ([over(7), over(70)], 70),
        ] {
            let plan = Plan::draw(&rules(), &request("shop", &["both"]));
            let decision = plan.settle(tallies.to_vec(), false);
            let [Status { outcome, .. }] = &decision.statuses[..] else {
                panic!("one descriptor has one status: {decision:?}");
            };
            let (Outcome::Within { reset, .. } | Outcome::Over { reset, .. }) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(reset.as_secs(), reported, "{tallies:?}");
        }
    }
}
