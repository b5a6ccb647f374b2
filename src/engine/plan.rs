//! From a request to charges, and from tallies to a decision.

use std::sync::Arc;

use crate::engine::{
    decision::{Code, Decision, Met, Outcome, Status},
    key::Counter,
    ledger::{Charge, Tally, Verdict},
    request::{Descriptor, Request},
    rule::{Limit, Policy, WhenDenied},
    rule_set::{Domain, Found, RuleSet},
};

/// What one call will charge, and what each descriptor is waiting for.
#[derive(Debug)]
pub struct Plan {
    /// What the store is to charge, all or nothing.
    pub charges: Vec<Charge>,
    items: Vec<Item>,
}

/// One descriptor's part of a plan.
#[derive(Debug)]
enum Item {
    /// Decided already.
    Settled(Status),
    /// Waits for the tally of the next charge.
    Charged(Met, Limit),
}

impl Plan {
    /// Finds the rule of each descriptor.
    pub fn draw(rules: &RuleSet, request: &Request) -> Self {
        let mut plan = Self { charges: Vec::new(), items: Vec::new() };
        let domain = rules.domain(&request.domain);
        for descriptor in &request.descriptors {
            match domain {
                Some(domain) => plan.add(domain, descriptor, rules.when_denied),
                None => plan.settle_at_once(Met::NoDomain, Outcome::NoLimit),
            }
        }
        plan
    }

    fn add(&mut self, domain: &Domain, descriptor: &Descriptor, when_denied: WhenDenied) {
        let name = || Arc::clone(&domain.name);
        if let Some(limit) = descriptor.limit {
            self.charge(domain, descriptor, limit, when_denied);
            return self.items.push(Item::Charged(Met::Override(name()), limit));
        }
        match domain.find(&descriptor.entries) {
            Found::Rule(rule) => match rule.policy {
                Policy::Limited(limit) => {
                    self.charge(domain, descriptor, limit, rule.when_denied);
                    let met = Met::Rule(name(), Arc::clone(rule));
                    self.items.push(Item::Charged(met, limit));
                }
                Policy::Unlimited => {
                    self.settle_at_once(Met::Rule(name(), Arc::clone(rule)), Outcome::Unlimited);
                }
            },
            Found::NoLimit => self.settle_at_once(Met::NoLimit(name()), Outcome::NoLimit),
            Found::Nothing => self.settle_at_once(Met::NoRule(name()), Outcome::NoLimit),
        }
    }

    fn charge(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor,
        limit: Limit,
        when_denied: WhenDenied,
    ) {
        self.charges.push(Charge {
            counter: Counter::new(&domain.name, &descriptor.entries, limit.window),
            hits: descriptor.hits,
            limit: limit.requests_per_unit,
            when_denied,
        });
    }

    fn settle_at_once(&mut self, met: Met, outcome: Outcome) {
        self.items.push(Item::Settled(Status { met, outcome }));
    }

    /// The label of what the charge with this number met, from the configuration.
    pub fn label(&self, charge: usize) -> String {
        let mut charged = self.items.iter().filter_map(|item| match item {
            Item::Charged(met, _) => Some(met),
            Item::Settled(_) => None,
        });
        match charged.nth(charge) {
            Some(Met::Rule(_, rule)) => rule.path.clone(),
            _ => "override".to_owned(),
        }
    }

    /// The decision, from one tally for each charge, in their order.
    pub fn settle(self, tallies: Vec<Tally>) -> Decision {
        debug_assert_eq!(tallies.len(), self.charges.len(), "a store answers every charge");
        let mut tallies = tallies.into_iter();
        let mut status = |item| match item {
            Item::Settled(status) => Some(status),
            Item::Charged(met, limit) => {
                tallies.next().map(|tally| Status { met, outcome: outcome(limit, tally) })
            }
        };
        let statuses: Vec<Status> = self.items.into_iter().filter_map(&mut status).collect();
        let over = statuses.iter().any(|status| status.outcome.code() == Code::OverLimit);
        Decision { code: if over { Code::OverLimit } else { Code::Ok }, statuses }
    }
}

fn outcome(limit: Limit, Tally { verdict, reset }: Tally) -> Outcome {
    match verdict {
        Verdict::Fits { remaining } => Outcome::Within { limit, remaining, reset },
        Verdict::Over => Outcome::Over { limit, reset },
    }
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
            let (path, place, when_denied) = ("p".into(), "f:1".into(), WhenDenied::Free);
            Some(Arc::new(Rule { path, place, policy, when_denied }))
        };
        let domain = rules.domain_mut("shop");
        let limit = Limit::new(5, Unit::Minute, 1).unwrap();
        domain.insert(&[("user", None)], rule(Policy::Limited(limit)));
        domain.insert(&[("free", None)], rule(Policy::Unlimited));
        rules
    }

    fn request(domain: &str, keys: &[&'static str]) -> Request {
        let descriptor = |key: &&'static str| Descriptor {
            entries: vec![Entry { key: (*key).into(), value: "x".into() }],
            hits: Hits::Take(1),
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
        let decision = plan.settle(vec![over, fits]);
        let limit = Limit::new(5, Unit::Minute, 1).unwrap();
        let outcomes: Vec<_> = decision.statuses.iter().map(|status| status.outcome).collect();
        let within = Outcome::Within { limit, remaining: 3, reset };
        let expected =
            [Outcome::Over { limit, reset }, Outcome::Unlimited, within, Outcome::NoLimit];
        assert_eq!(decision.code, Code::OverLimit);
        assert_eq!(outcomes, expected);
    }
}
