//! Tables of scenarios as text, in paragraphs: rules, and the scenarios that run on them, each in a domain of its own. The first
//! line of a scenario is its name, the others are its steps, most with their answer behind ` = `, escaped as in `rows.rs`. Rules
//! may have the flags of the service above them, as in `flags: --quota-mode`; without rules, these are for the rules before.

use tokio::runtime::Builder;

use super::{
    fleet::{STORES, Store},
    prelude::*,
    rows::plain,
    service::RULES,
};

/// A step, and its answer if it has one.
pub type Step = (String, Option<String>);

pub struct Scenario {
    flags: &'static str,
    rules: &'static str,
    pub name: &'static str,
    pub steps: Vec<Step>,
}

/// The scenarios of a table. The first may run on [`RULES`].
pub fn scenarios(table: &'static str) -> Vec<Scenario> {
    let (mut flags, mut rules, mut scenarios) = ("", RULES, Vec::new());
    for block in table.trim_end().split("\n\n").filter(|block| !block.starts_with('#')) {
        let (first, rest) = block.split_once('\n').unwrap_or((block, rules));
        if first.starts_with("domain: ") {
            (flags, rules) = ("", block);
        } else if let Some(of_rules) = first.strip_prefix("flags: ") {
            (flags, rules) = (of_rules, rest);
        } else {
            let steps = rest.lines().filter(|line| !line.starts_with('#')).map(step).collect();
            scenarios.push(Scenario { flags, rules, name: first, steps });
        }
    }
    scenarios
}

fn step(line: &str) -> Step {
    match line.split_once(" = ") {
        Some((step, answer)) => (plain(step), Some(plain(answer))),
        None => (plain(line), None),
    }
}

impl Scenario {
    /// Whether its rules are refused on a Redis that runs no scripts.
    fn needs_scripts(&self) -> bool {
        let keys = ["algorithm: ", "ban_for: ", "by: id", "by: counter", "lease: "];
        keys.iter().any(|key| self.rules.contains(key))
    }
}

/// Does this with all stores at the same time.
pub fn on_all_stores(run: impl AsyncFn(&Store) + Sync) {
    let run_on = |store| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(store));
    };
    let run_on = &run_on;
    thread::scope(|scope| {
        for store in &*STORES {
            scope.spawn(move || run_on(store));
        }
    });
}

/// Runs those scenarios that can run on this store. `perform` gets a service that has the rules of the scenario in a domain, the
/// domain, and the scenario, and returns what differs. Each run has another name.
pub async fn run(
    store: &Store,
    name: &str,
    scenarios: Vec<Scenario>,
    perform: impl AsyncFn(&Service, String, &Scenario) -> Vec<String>,
) {
    let scenarios = scenarios.into_iter().filter(|one| store.has_scripts() || !one.needs_scripts());
    let scenarios: Vec<_> = scenarios.enumerate().collect();
    println!("{} scenarios on {} {name}", scenarios.len(), store.name);
    assert!(!scenarios.is_empty());
    let mut differences = Vec::new();
    for flags in scenarios.iter().map(|(_, scenario)| scenario.flags).collect::<BTreeSet<_>>() {
        let of_flags = || scenarios.iter().filter(|(_, scenario)| scenario.flags == flags);
        let domain = |number: &usize| format!("{name}-{number}");
        let rules = of_flags().map(|(number, scenario)| {
            let domain = domain(number);
            (domain.clone(), scenario.rules.replace("domain: shop", &format!("domain: {domain}")))
        });
        let flags: Vec<_> = flags.split_terminator(' ').collect();
        let service = store.serve(&rules.collect::<Vec<_>>(), &flags);
        for (number, scenario) in of_flags() {
            let found = perform(&service, domain(number), scenario).await;
            differences.extend(found.iter().map(|found| format!("{}: {found}", scenario.name)));
        }
    }
    assert!(differences.is_empty(), "on {}, {name}:\n{}", store.name, differences.join("\n"));
    store.assert_no_key_leaks();
}
