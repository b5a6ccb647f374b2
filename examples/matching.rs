//! Measures a decision with 10 rules and with 10,000: `cargo run --release --example matching`.

use std::{hint::black_box, sync::Arc, time::Instant};

use tollkeeper::{
    engine::{
        plan::Plan,
        request::{Descriptor, Entry, Hits, Request},
        rule::{Defaults, Limit, Policy, Rule, Unit},
        rule_set::RuleSet,
        time::Timestamp,
    },
    store::memory::MemoryStore,
};

const CALLS: u32 = 200_000;
const ROUNDS: usize = 9;

fn main() {
    let (few_rules, many_rules) = (Backend::new(10), Backend::new(10_000));
    let (mut few, mut many) = (Vec::new(), Vec::new());
    // In turns, so that noise affects both alike.
    for _ in 0..ROUNDS {
        few.push(few_rules.decide());
        many.push(many_rules.decide());
    }
    let (few, many) = (median(few), median(many));
    println!(
        "a decision among 10 rules: {few:.0} ns, among 10,000: {many:.0} ns; {:.2} x",
        many / few
    );
}

struct Backend {
    rules: RuleSet,
    requests: Vec<Request>,
}

impl Backend {
    /// `count` rules of two levels with an exact value, and one pattern. The calls match ten of them.
    fn new(count: usize) -> Self {
        let mut rules = RuleSet::new(Defaults::default());
        let domain = rules.domain_mut("shop");
        domain.insert(&[("path", Some("/static/*"))], rule());
        for number in 0..count {
            let path = format!("/path/{number}");
            domain.insert(&[("path", Some(&path)), ("user", None)], rule());
        }
        Self { rules, requests: (0..10).map(request).collect() }
    }

    /// Nanoseconds of one decision, in memory.
    fn decide(&self) -> f64 {
        let store = MemoryStore::new(|| Timestamp::from_millis(0));
        let now = Timestamp::from_secs(1_795_215_600);
        let began = Instant::now();
        for request in self.requests.iter().cycle().take(CALLS as usize) {
            let plan = Plan::draw(&self.rules, request);
            let verdict = store.charge_at(&plan.charges, now);
            black_box(plan.settle(verdict));
        }
        began.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    }
}

fn rule() -> Option<Arc<Rule>> {
    let limit = Limit::new(u32::MAX.into(), Unit::Year, 1).expect("a year is a window");
    let policy = Policy::Limited(vec![Arc::new(limit)]);
    Some(Arc::new(Rule::new("a rule".to_owned(), "here".to_owned(), policy)))
}

fn request(number: usize) -> Request {
    let entries = vec![
        Entry { key: "path".into(), value: format!("/path/{number}").into() },
        Entry { key: "user".into(), value: "alice".into() },
    ];
    let descriptors =
        vec![Descriptor { entries, hits: Hits::Charge(1), states_hits: false, limit: None }];
    Request { domain: "shop".to_owned(), descriptors }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(ROUNDS / 2).copied().unwrap_or(f64::NAN)
}
