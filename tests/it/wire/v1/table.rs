//! The scenarios of `table.txt` and `holds.txt`, on every store.

use super::{by_kind, call, commit, decide, renew, spell};
use crate::support::{
    prelude::*,
    scenarios::{Scenario, on_all_stores, run, scenarios},
};
use tollkeeper_proto::v1::{Commit, Verdict};

/// A verdict, the hits of a part or of a lease, and whether it has a token.
fn spell_whole(verdict: &Verdict) -> String {
    let hits = if verdict.hits > 0 { format!("; {} hits", verdict.hits) } else { String::new() };
    spell(verdict) + &hits + if verdict.hold.is_empty() { "" } else { "; held" }
}

/// A scenario on a service.
struct Running<'a> {
    service: &'a Service,
    domain: &'a str,
    /// The tokens of calls, by the names that the steps give them.
    tokens: HashMap<String, String>,
}

impl Running<'_> {
    /// The verdicts of calls in one batch.
    async fn decide(&mut self, steps: &[&str]) -> Vec<String> {
        let named: Vec<_> =
            steps.iter().map(|step| step.split_once(" as ").unwrap_or((step, ""))).collect();
        let calls = named.iter().map(|(text, _)| call(&self.with_tokens(text))).collect();
        let verdicts = decide(self.service, self.domain, calls).await.unwrap();
        assert_eq!(verdicts.len(), steps.len());
        for ((_, name), verdict) in named.iter().zip(&verdicts) {
            self.tokens.insert((*name).to_owned(), verdict.hold.clone());
        }
        verdicts.iter().map(spell_whole).collect()
    }

    /// The text of a call, with the tokens whose names stand in braces.
    fn with_tokens(&self, text: &str) -> String {
        let named = self.tokens.iter();
        named.fold(text.to_owned(), |text, (name, token)| {
            text.replace(&format!("{{{name}}}"), token)
        })
    }

    fn commit(&self, text: &str) -> Commit {
        let mut words = text.split(' ');
        let name = words.next().unwrap();
        let hold = self.tokens.get(name).map_or(name, String::as_str).to_owned();
        let mut commit = Commit { hold, ..Commit::default() };
        for word in words {
            match word.split_once(':') {
                Some(("kinds", kinds)) => commit.used_by_kind = by_kind(kinds),
                Some(("end", end)) => commit.end = end.replace(',', " "),
                _ => commit.used = Some(word.parse().expect(text)),
            }
        }
        commit
    }

    async fn step(&mut self, step: &str) -> String {
        if let Some(commits) = step.strip_prefix("commit ") {
            let commits = commits.split("; ").map(|text| self.commit(text)).collect();
            commit(self.service, self.domain, commits).await.join("; ")
        } else if let Some(renewal) = step.strip_prefix("renew ") {
            let (committed, next) = renewal.split_once(": ").expect(step);
            let (next, name) = next.split_once(" as ").unwrap_or((next, ""));
            let committed = self.commit(committed);
            let (committed, verdict) =
                renew(self.service, self.domain, committed, call(next)).await;
            self.tokens.insert(name.to_owned(), verdict.hold.clone());
            format!("{committed}; {}", spell_whole(&verdict))
        } else if let Some(descriptor) = step.strip_prefix("reset ") {
            let path = format!("/counters/reset?domain={}&descriptor={descriptor}", self.domain);
            self.service.admin("POST", &path).0.to_string()
        } else {
            self.decide(&[step]).await.remove(0)
        }
    }
}

async fn differences(service: &Service, domain: &str, scenario: &Scenario) -> Vec<String> {
    let mut running = Running { service, domain, tokens: HashMap::new() };
    let (steps, found) = match &scenario.steps[..] {
        [(_, None), batch @ ..] => {
            let calls: Vec<_> = batch.iter().map(|(step, _)| &**step).collect();
            (batch, running.decide(&calls).await)
        }
        steps => {
            let mut found = Vec::new();
            for (step, _) in steps {
                found.push(running.step(step).await);
            }
            (steps, found)
        }
    };
    let compared = steps.iter().zip(found).filter_map(|((step, expected), found)| {
        let expected = expected.as_ref().expect(step);
        (found != *expected).then(|| format!("{step} = {found}, not {expected}"))
    });
    compared.collect()
}

#[test]
fn every_scenario_has_its_verdicts_on_every_store() {
    on_all_stores(async |store| {
        let tables = [include_str!("table.txt"), include_str!("holds.txt")];
        let mut all: Vec<_> = tables.into_iter().flat_map(scenarios).collect();
        all.retain(|one| store.keeps_order() || one.steps[0].0 != "one batch in order");
        run(store, "modes", all, async |service, domain, scenario| {
            differences(service, &domain, scenario).await
        })
        .await;
    });
}
