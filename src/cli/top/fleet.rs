//! The replicas of a service as one: their keys merged, their rates added up, and what is wrong with each.

use std::collections::BTreeMap;

use crate::{
    cli::status::ReplicaStatus,
    top_keys::{TopKey, TopReport},
};

#[derive(Default)]
pub(super) struct Fleet {
    pub(super) top: Option<TopReport>,
    pub(super) replicas: usize,
    decisions: f64,
    denied: f64,
    failed: f64,
    /// Of the slowest replica, in seconds.
    p99: f64,
    is_store_away: bool,
    /// What is wrong, each line with its severity and address.
    pub(super) problems: Vec<String>,
}

impl Fleet {
    /// Reads the `/status` of each replica, or the reason why it cannot be read.
    pub(super) fn read(
        answers: Vec<(&str, Result<ReplicaStatus, String>)>,
    ) -> Result<Self, String> {
        let (mut fleet, mut first) = (Self::default(), None);
        let mut reports = Vec::new();
        for (addr, answer) in answers {
            match answer {
                Ok(status) => reports.extend(fleet.add(addr, &status)),
                Err(problem) => {
                    fleet.problems.push(format!("red: {problem}"));
                    first.get_or_insert(problem);
                }
            }
        }
        match first {
            Some(problem) if fleet.replicas == 0 => Err(problem),
            _ => {
                fleet.top = merge(reports);
                Ok(fleet)
            }
        }
    }

    fn add<'a>(&mut self, addr: &'a str, status: &ReplicaStatus) -> Option<(&'a str, TopReport)> {
        self.replicas += 1;
        self.decisions += status.recent("decisions");
        self.denied += status.recent("denied");
        self.failed += status.recent("failed");
        self.p99 = self.p99.max(status.recent("p99"));
        for [about, severity, text] in status.conditions().into_iter().flatten() {
            self.is_store_away |= about == "store";
            self.problems.push(format!("{severity}: {addr}: {text}"));
        }
        Some((addr, serde_json::from_value(status.0.get("top")?.clone()).ok()?))
    }

    /// The totals, and a line for each problem.
    pub(super) fn head(&self) -> String {
        let share = 100.0 * self.denied / self.decisions.max(f64::MIN_POSITIVE);
        let p99 = if self.p99 > 0.0 { format!("{:.1} ms", 1e3 * self.p99) } else { "-".to_owned() };
        let store = if self.is_store_away { "AWAY" } else { "up" };
        let mut text = format!(
            "{:.1} decisions/s, {share:.1} % denied, {:.1} failed calls/s, p99 {p99}, store {store}\n",
            self.decisions, self.failed
        );
        self.problems.iter().for_each(|problem| text += &format!("{problem}\n"));
        text
    }
}

/// The lists of all replicas. Keys with the same name are one; a key of one replica alone names it.
fn merge(reports: Vec<(&str, TopReport)>) -> Option<TopReport> {
    let mut merged = TopReport::default();
    let mut lists: [Vec<(&str, TopKey)>; 6] = Default::default();
    let count = reports.len();
    for (addr, mut report) in reports {
        merged.seconds = merged.seconds.max(report.seconds);
        for (list, keys) in lists.iter_mut().zip(report.lists_mut()) {
            list.extend(keys.drain(..).map(|key| (addr, key)));
        }
    }
    let merge = |list: Vec<(&str, TopKey)>| match count {
        0 | 1 => list.into_iter().map(|(_, key)| key).collect(),
        _ => merge_keys(list),
    };
    for (merged, list) in merged.lists_mut().into_iter().zip(lists) {
        *merged = merge(list);
    }
    if count < 2 {
        return (count == 1).then_some(merged);
    }
    for list in merged.lists_mut() {
        list.sort_by_key(|key| std::cmp::Reverse(key.count));
    }
    #[expect(clippy::cast_precision_loss, reason = "keys are only put in order")]
    let part = |key: &TopKey| key.remaining as f64 / key.capacity.max(1) as f64;
    let is_used_up = |key: &TopKey| key.remaining == 0;
    merged.nearest.sort_by(|one, other| {
        is_used_up(one).cmp(&is_used_up(other)).then(part(one).total_cmp(&part(other)))
    });
    Some(merged)
}

fn merge_keys(keys: Vec<(&str, TopKey)>) -> Vec<TopKey> {
    let mut merged: BTreeMap<[String; 4], (Option<&str>, TopKey)> = BTreeMap::new();
    for (addr, key) in keys {
        // Another number is on the same counter.
        let unit = key.limit.split_once(' ').map_or("", |(_, unit)| unit);
        let id = [&key.domain, &key.rule, &key.key, unit].map(str::to_owned);
        match merged.get_mut(&id) {
            None => drop(merged.insert(id, (Some(addr), key))),
            Some((only, known)) => {
                *only = None;
                if known.directive.is_none() && key.directive.is_some() {
                    (known.limit, known.capacity) = (key.limit, key.capacity);
                    known.directive = key.directive;
                }
                known.count = known.count.saturating_add(key.count);
                known.error = known.error.saturating_add(key.error);
                // A shared counter has at most the remaining hits that any replica has seen.
                known.remaining = known.remaining.min(key.remaining);
                known.held = known.held.max(key.held);
                let credit = [known.credit, key.credit].into_iter().flatten();
                known.credit = credit.reduce(u64::saturating_add);
            }
        }
    }
    let named = |(only, mut key): (Option<&str>, TopKey)| {
        if let Some(addr) = only {
            key.key += &format!(" at {addr}");
        }
        key
    };
    merged.into_values().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_whose_override_one_replica_does_not_show_yet_is_one() {
        let key = |limit: &str, directive: Option<&str>| TopKey {
            domain: "shop".to_owned(),
            rule: "user".to_owned(),
            key: "user=alice".to_owned(),
            count: 2,
            hits: 0,
            error: 0,
            remaining: 5,
            held: None,
            credit: Some(3),
            capacity: 10,
            limit: limit.to_owned(),
            algorithm: "fixed_window".to_owned(),
            directive: directive.map(str::to_owned),
            counter: None,
        };
        let then = key("50 per minute", Some("times 5 5f2c01aa"));
        let merged = merge_keys(vec![("a:1", key("10 per minute", None)), ("b:1", then)]);
        let [one] = &merged[..] else { panic!("{merged:?}") };
        assert_eq!((&*one.limit, one.count, one.credit), ("50 per minute", 4, Some(6)));
        assert_eq!(one.directive.as_deref(), Some("times 5 5f2c01aa"));
    }
}
