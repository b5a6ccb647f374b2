//! The scenarios of `table.txt`, on every store.

use super::{call, decide, spell};
use crate::support::{
    prelude::*,
    scenarios::{Scenario, on_all_stores, run, scenarios},
};
use tollkeeper_proto::v1::Verdict;

/// A verdict, the hits of a part or of a lease, and whether it has a token.
fn spell_whole(verdict: &Verdict) -> String {
    let hits = if verdict.hits > 0 { format!("; {} hits", verdict.hits) } else { String::new() };
    spell(verdict) + &hits + if verdict.hold.is_empty() { "" } else { "; held" }
}

async fn differences(service: &Service, domain: &str, scenario: &Scenario) -> Vec<String> {
    let (steps, of_a_batch) = match &scenario.steps[..] {
        [(_, None), rest @ ..] => (rest, rest.len()),
        all => (all, 1),
    };
    let mut differences = Vec::new();
    for steps in steps.chunks(of_a_batch) {
        let calls = steps.iter().map(|(step, _)| call(step)).collect();
        let verdicts = decide(service, domain, calls).await.unwrap();
        assert_eq!(verdicts.len(), steps.len());
        for ((step, expected), verdict) in steps.iter().zip(&verdicts) {
            let (found, expected) = (spell_whole(verdict), expected.as_ref().expect(step));
            if found != *expected {
                differences.push(format!("{step} = {found}, not {expected}"));
            }
        }
    }
    differences
}

#[test]
fn every_scenario_has_its_verdicts_on_every_store() {
    on_all_stores(async |store| {
        let mut all = scenarios(include_str!("table.txt"));
        all.retain(|one| store.keeps_order() || one.steps[0].0 != "one batch in order");
        run(store, "modes", all, async |service, domain, scenario| {
            differences(service, &domain, scenario).await
        })
        .await;
    });
}
