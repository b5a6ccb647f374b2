//! Measures what counting keys adds to a decision: `cargo bench --bench top_keys`.

use std::{hint::black_box, sync::Arc, time::Instant};

use tollkeeper::{
    bench::{Distribution, Numbers},
    engine::{
        ledger::{Fit, Tally, Verdict},
        plan::Plan,
        request::{Descriptor, Entry, Hits, Request},
        rule::{Limit, Policy, Rule, Unit},
        rule_set::RuleSet,
    },
    top_keys::{TopKeyNames, TopKeys},
};

const CALLS: usize = 300_000;
const ROUNDS: usize = 15;

fn main() {
    let rules = rules();
    for (name, keys, distribution) in [
        ("one key", 1, Distribution::Uniform),
        ("Zipf over a million keys", 1_000_000, Distribution::Zipf),
        ("10,000 keys, equally often", 10_000, Distribution::Uniform),
    ] {
        let requests = requests(keys, distribution);
        let mut added: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            // In turns, so that noise affects all alike.
            let without = record(&rules, &requests, TopKeyNames::Off);
            for (names, added) in [TopKeyNames::Digests, TopKeyNames::Values].iter().zip(&mut added)
            {
                added.push(record(&rules, &requests, *names) - without);
            }
        }
        let [digests, values] = added.map(median);
        println!("{name}: {digests:.0} ns a decision with digests, {values:.0} ns with values");
    }
}

fn rules() -> RuleSet {
    let mut rules = RuleSet::default();
    let limit = Limit::new(1000, Unit::Day, 1).expect("a window");
    let rule = Rule::new("user", "f:1".into(), Policy::Limited(vec![Arc::new(limit)]));
    rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
    rules
}

/// Calls with one descriptor each.
fn requests(keys: usize, distribution: Distribution) -> Vec<Request> {
    let mut numbers = Numbers::new(keys, distribution);
    let mut requests = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let value = format!("user-{}", numbers.draw());
        let entries = vec![Entry { key: "user".into(), value: value.into() }];
        let descriptors =
            vec![Descriptor { entries, hits: Hits::Charge(1), states_hits: false, limit: None }];
        requests.push(Request { domain: "shop".into(), descriptors });
    }
    requests
}

/// Nanoseconds of drawing a plan and counting its keys.
fn record(rules: &RuleSet, requests: &[Request], names: TopKeyNames) -> f64 {
    let keys = TopKeys::new(names, 1, 0.8);
    let fit = Fit::Fits { remaining: 900 };
    let tally = Tally::new(fit, std::time::Duration::from_secs(60));
    let verdict = Verdict { tallies: vec![tally], ..Verdict::default() };
    let began = Instant::now();
    for request in requests {
        let plan = Plan::draw(rules, request);
        keys.record(black_box(&plan), &verdict, began.into(), |_| String::new());
    }
    began.elapsed().as_nanos() as f64 / requests.len() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
