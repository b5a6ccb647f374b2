//! From a request to charges, and from tallies to a decision.

use std::sync::Arc;

use crate::engine::{
    decision::{Code, Decision, Met, Outcome, Status},
    key::{self, Counter},
    ledger::{Charge, Tally, Verdict},
    request::{Descriptor, Request},
    rule::{Algorithm, Defaults, Limit, Mode, ModeOverride, Policy},
    rule_set::{Domain, Found, RuleSet},
};

/// What one call will charge, and what each descriptor is waiting for.
#[derive(Debug)]
pub struct Plan {
    /// What the store is to charge, all or nothing.
    pub charges: Vec<Charge>,
    items: Vec<Item>,
    mode_override: ModeOverride,
}

/// One descriptor's part of a plan.
#[derive(Debug)]
enum Item {
    /// Decided already.
    Settled(Status),
    /// Waits for the tallies of the next charges, at least one.
    Charged(Met, usize),
}

impl Plan {
    /// Finds the rule of each descriptor.
    pub fn draw(rules: &RuleSet, request: &Request) -> Self {
        let mode_override = rules.defaults.mode_override;
        let mut plan = Self { charges: Vec::new(), items: Vec::new(), mode_override };
        let Some(domain) = rules.domain(&request.domain) else {
            for _ in &request.descriptors {
                plan.settle_at_once(Met::NoDomain, Outcome::NoLimit);
            }
            return plan;
        };
        let find = |descriptor: &Descriptor| match descriptor.limit {
            Some(_) => Found::NoLimit,
            None => domain.find(&descriptor.entries),
        };
        let found: Vec<Found<'_>> = request.descriptors.iter().map(find).collect();
        let replaced: Vec<&Arc<str>> = found.iter().flat_map(Found::replaces).collect();
        for (descriptor, found) in request.descriptors.iter().zip(&found) {
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
        self.items.push(Item::Charged(Met::Override(Arc::clone(&domain.name)), 1));
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
            Found::NoLimit => return self.settle_at_once(Met::NoLimit(name), Outcome::NoLimit),
            Found::Nothing => return self.settle_at_once(Met::NoRule(name), Outcome::NoLimit),
        };
        let met = Met::Rule(name, Arc::clone(rule));
        let Policy::Limited(limits) = &rule.policy else {
            return self.settle_at_once(met, Outcome::Unlimited);
        };
        let counts = |limit: &&Arc<Limit>| match &limit.name {
            Some(name) => !replaced.contains(&name),
            None => true,
        };
        let before = self.charges.len();
        for limit in limits.iter().filter(counts) {
            self.charge(domain, descriptor, &rule.shared, limit);
        }
        match self.charges.len() - before {
            0 => self.settle_at_once(met, Outcome::NoLimit),
            count => self.items.push(Item::Charged(met, count)),
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
        self.charges.push(Charge {
            counter: Counter::shared(&domain.name, entries, shared, Arc::clone(limit)),
            hits: descriptor.hits,
            caller: match &limit.algorithm {
                Algorithm::SlidingLog { remember: Some(name) } => entries
                    .iter()
                    .find(|entry| *entry.key == *name.as_bytes())
                    .map(|entry| key::caller(&entry.value)),
                _ => None,
            },
        });
    }

    fn settle_at_once(&mut self, met: Met, outcome: Outcome) {
        self.items.push(Item::Settled(Status { met, outcome }));
    }

    /// How many charges each descriptor makes, in their order.
    pub fn charges_of_each(&self) -> Vec<usize> {
        let count = |item: &Item| match item {
            Item::Charged(_, count) => *count,
            Item::Settled(_) => 0,
        };
        self.items.iter().map(count).collect()
    }

    /// The label of what the charge with this number met, from the configuration.
    pub fn label(&self, charge: usize) -> String {
        let mut charged = self.items.iter().flat_map(|item| match item {
            Item::Charged(met, count) => std::iter::repeat_n(met, *count),
            Item::Settled(status) => std::iter::repeat_n(&status.met, 0),
        });
        match charged.nth(charge) {
            Some(Met::Rule(_, rule)) => rule.path.to_string(),
            _ => "override".to_owned(),
        }
    }

    /// The decision, from one tally for each charge, in their order, and whether they deny the call.
    pub fn settle(self, tallies: Vec<Tally>, denied: bool) -> Decision {
        debug_assert_eq!(tallies.len(), self.charges.len(), "a store answers every charge");
        let no_limit =
            |item: &Item| matches!(item, Item::Settled(Status { outcome: Outcome::NoLimit, .. }));
        let fits = self.mode_override == ModeOverride::Quota && self.items.iter().any(no_limit);
        let over = denied && !fits;
        let charged = self.charges.into_iter().zip(tallies);
        let mut outcomes = charged.map(|(charge, tally)| outcome(charge, tally));
        let mut status = |item| match item {
            Item::Settled(status) => Some(status),
            Item::Charged(met, count) => {
                let outcome = outcomes.by_ref().take(count).reduce(tightest)?;
                Some(Status { met, outcome })
            }
        };
        let statuses: Vec<Status> = self.items.into_iter().filter_map(&mut status).collect();
        Decision { code: if over { Code::OverLimit } else { Code::Ok }, statuses }
    }
}

fn outcome(charge: Charge, Tally { verdict, reset }: Tally) -> Outcome {
    let limit = charge.counter.limit;
    match verdict {
        // The status of a limit that only the settings make a shadow still says that it is over.
        Verdict::Over if limit.mode_written == Mode::Shadow => Outcome::Shadowed { limit, reset },
        Verdict::Fits { remaining } => Outcome::Within { limit, remaining, reset },
        Verdict::Over => Outcome::Over { limit, reset },
    }
}

/// The one of several limits that a caller should hear of: the one with the least left, and of those
/// that are over the one that takes longest.
fn tightest(one: Outcome, other: Outcome) -> Outcome {
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
        request::{Entry, Hits},
        rule::{Rule, Unit},
    };

    fn rules() -> RuleSet {
        let mut rules = RuleSet::default();
        let rule = |policy| {
            let (path, location) = ("p", "f:1".into());
            Some(Arc::new(Rule::new(path, location, policy)))
        };
        let domain = rules.domain_mut("shop");
        let limit = |requests, unit| Arc::new(Limit::new(requests, unit, 1).unwrap());
        let minute = limit(5, Unit::Minute);
        let both = vec![limit(5, Unit::Minute), limit(20, Unit::Day)];
        domain.insert(&[("user", None)], rule(Policy::Limited(vec![minute])));
        domain.insert(&[("both", None)], rule(Policy::Limited(both)));
        domain.insert(&[("free", None)], rule(Policy::Unlimited));
        rules
    }

    fn request(domain: &str, keys: &[&'static str]) -> Request {
        let descriptor = |key: &&'static str| Descriptor {
            entries: vec![Entry { key: (*key).into(), value: "x".into() }],
            hits: Hits::Charge(1),
            limit: None,
        };
        Request { domain: domain.into(), descriptors: keys.iter().map(descriptor).collect() }
    }

    #[test]
    fn only_what_a_rule_limits_is_charged() {
        let plan = Plan::draw(&rules(), &request("shop", &["free", "user", "nobody"]));
        let keys: Vec<_> = plan
            .charges
            .iter()
            .map(|it| it.counter.key(crate::engine::time::Timestamp::from_secs(60)))
            .collect();
        assert_eq!(keys, ["tk1:fw:60s:{shop|user=x}:60"]);
        assert!(Plan::draw(&rules(), &request("unknown", &["user"])).charges.is_empty());
    }

    #[test]
    fn each_tally_goes_to_its_descriptor_and_one_over_is_all_over() {
        let plan = Plan::draw(&rules(), &request("shop", &["user", "free", "user", "nobody"]));
        let reset = Duration::from_secs(7);
        let over = Tally { verdict: Verdict::Over, reset };
        let fits = Tally { verdict: Verdict::Fits { remaining: 3 }, reset };
        let decision = plan.settle(vec![over, fits], true);
        let limit = Arc::new(Limit::new(5, Unit::Minute, 1).unwrap());
        let outcomes: Vec<_> = decision.statuses.into_iter().map(|status| status.outcome).collect();
        let within = Outcome::Within { limit: Arc::clone(&limit), remaining: 3, reset };
        let expected =
            [Outcome::Over { limit, reset }, Outcome::Unlimited, within, Outcome::NoLimit];
        assert_eq!(decision.code, Code::OverLimit);
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn of_several_limits_the_tightest_is_told() {
        let tally = |verdict, seconds| Tally { verdict, reset: Duration::from_secs(seconds) };
        let fits = |remaining| Verdict::Fits { remaining };
        for (tallies, told) in [
            ([tally(fits(3), 7), tally(fits(2), 70)], 70),
            ([tally(fits(3), 7), tally(fits(3), 70)], 7),
            ([tally(fits(0), 7), tally(Verdict::Over, 70)], 70),
            ([tally(Verdict::Over, 7), tally(fits(0), 70)], 7),
            ([tally(Verdict::Over, 7), tally(Verdict::Over, 70)], 70),
        ] {
            let plan = Plan::draw(&rules(), &request("shop", &["both"]));
            let decision = plan.settle(tallies.to_vec(), false);
            let [Status { outcome, .. }] = &decision.statuses[..] else {
                panic!("one descriptor has one status: {decision:?}");
            };
            let (Outcome::Within { reset, .. } | Outcome::Over { reset, .. }) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(reset.as_secs(), told, "{tallies:?}");
        }
    }
}
