//! Which verdicts change, by rule.

use std::{collections::HashMap, fmt::Write as _};

use serde::Serialize;

use super::suggest::Suggestion;
use crate::{
    cli::{admin::instant, output::cell, recorded::Call},
    engine::{
        algorithm::account::real,
        decision::{Code, Decision, Matched, Outcome, Status},
        descriptor_syntax,
        parameters::Parameters,
        request::Entry,
        time::Timestamp,
    },
    text::counted,
};

/// Keys and rules that are listed at most.
const KEYS_MAX: usize = 10;

/// The changes of all calls.
#[derive(Debug, Default, Serialize)]
pub(super) struct Changes {
    pub(super) calls: u64,
    pub(super) from: String,
    pub(super) until: String,
    /// Of the calls that are compared.
    pub(super) denied_before: u64,
    pub(super) denied_after: u64,
    pub(super) newly_denied: u64,
    pub(super) newly_admitted: u64,
    /// Calls that are over a limit in shadow mode, or over a number that `shadow` tries, after.
    pub(super) over_shadow: u64,
    /// Calls that match no rule of those that are replayed.
    pub(super) unmatched: u64,
    /// Calls whose recorded verdict is not of the rules, so that it is not compared.
    pub(super) without_store: u64,
    pub(super) overridden: u64,
    /// Calls whose time is before that of an earlier one.
    pub(super) set_back: u64,
    pub(super) rules: Vec<RuleChanges>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suggestions: Option<Vec<Suggestion>>,
    #[serde(skip)]
    by_rule: HashMap<(String, String), RuleChanges>,
    #[serde(skip)]
    span: Option<(Timestamp, Timestamp)>,
}

/// The changes by one rule: the one by which a call is denied, before or after.
#[derive(Debug, Default, Serialize)]
pub(super) struct RuleChanges {
    domain: String,
    rule: String,
    newly_denied: u64,
    newly_admitted: u64,
    /// The keys with the most changes.
    keys: Vec<KeyChanges>,
    /// The number of keys with changes.
    key_count: usize,
    first: Option<Example>,
    /// The most changes in one second, and when it began.
    peak: u64,
    peak_at: String,
    #[serde(skip)]
    by_key: HashMap<String, u64>,
    #[serde(skip)]
    second: (u64, u64),
    #[serde(skip)]
    peak_second: u64,
}

#[derive(Debug, Serialize)]
struct KeyChanges {
    key: String,
    calls: u64,
}

#[derive(Debug, Serialize)]
struct Example {
    at: String,
    key: String,
    limit: String,
}

/// The limit that denies a call.
struct Denial<'call> {
    rule: String,
    limit: String,
    entries: &'call [Entry],
}

impl Changes {
    /// Compares a call with the verdict of other rules, or with its recorded one.
    pub(super) fn add(&mut self, call: &Call, before: Option<&Decision>, after: &Decision) {
        self.calls += 1;
        let (from, until) = self.span.unwrap_or((call.at, call.at));
        self.span = Some((from.min(call.at), until.max(call.at)));
        self.set_back += u64::from(call.at < until);
        let is_over_shadow = after.statuses.iter().any(|status| status.over_shadow.is_some());
        self.over_shadow += u64::from(is_over_shadow);
        let matches =
            |status: &Status| matches!(status.matched, Matched::Rule(..) | Matched::Override(_));
        let is_matched = after.statuses.iter().any(matches) || !after.commits.is_empty();
        self.unmatched += u64::from(!is_matched);
        let denied_before = match before {
            None if call.without_store => return self.without_store += 1,
            None if call.overridden => return self.overridden += 1,
            None => call.denied,
            Some(decision) => decision.code == Code::OverLimit,
        };
        let denied_after = after.code == Code::OverLimit;
        self.denied_before += u64::from(denied_before);
        self.denied_after += u64::from(denied_after);
        if denied_before == denied_after {
            return;
        }
        let denial = match before {
            _ if denied_after => denial(call, after),
            Some(decision) => denial(call, decision),
            None => recorded_denial(call),
        };
        let domain = call.request.domain.clone();
        let rule = self.by_rule.entry((domain.clone(), denial.rule.clone())).or_insert_with(|| {
            RuleChanges { domain, rule: denial.rule.clone(), ..RuleChanges::default() }
        });
        let count = if denied_after { &mut rule.newly_denied } else { &mut rule.newly_admitted };
        *count += 1;
        let total = if denied_after { &mut self.newly_denied } else { &mut self.newly_admitted };
        *total += 1;
        rule.add(call.at, &denial);
    }

    /// Lists the rules, those with the most changes first.
    pub(super) fn finish(&mut self) {
        if let Some((from, until)) = self.span {
            (self.from, self.until) = (instant(from.as_millis()), instant(until.as_millis()));
        }
        self.rules = self.by_rule.drain().map(|(_, rule)| rule.finished()).collect();
        let changed = |rule: &RuleChanges| rule.newly_denied + rule.newly_admitted;
        let name = |rule: &RuleChanges| (rule.domain.clone(), rule.rule.clone());
        self.rules.sort_by(|one, other| {
            changed(other).cmp(&changed(one)).then_with(|| name(one).cmp(&name(other)))
        });
    }

    /// A number of calls, in percent of those that are compared.
    pub(super) fn percent(&self, calls: u64) -> f64 {
        let compared = self.calls - self.without_store - self.overridden;
        if compared == 0 { 0.0 } else { real(calls) * 100.0 / real(compared) }
    }

    pub(super) fn text(&self) -> String {
        let mut text = self.summary();
        for rule in &self.rules {
            let RuleChanges { domain, rule: path, newly_denied, newly_admitted, .. } = rule;
            let _ = writeln!(
                text,
                "\n{domain}  {path}\n  {newly_denied} newly denied, {newly_admitted} newly admitted, of {}; at most {} in a second, at {}",
                counted(rule.key_count, "key"),
                rule.peak,
                rule.peak_at
            );
            for KeyChanges { key, calls } in &rule.keys {
                let _ = writeln!(text, "  {calls:>8}  {key}");
            }
            if let Some(Example { at, key, limit }) = &rule.first {
                let _ = writeln!(text, "  first at {at}: {key}, by {limit}");
            }
        }
        for suggestion in self.suggestions.iter().flatten() {
            text += &suggestion.text();
        }
        text
    }

    pub(super) fn markdown(&self) -> String {
        let mut text = self.summary();
        if !self.rules.is_empty() {
            text += "\n| domain | rule | newly denied | newly admitted | keys | most in a second | top key |\n| --- | --- | ---: | ---: | ---: | ---: | --- |\n";
        }
        for rule in &self.rules {
            let top = rule.keys.first().map(|top| format!("{} ({})", cell(&top.key), top.calls));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                cell(&rule.domain),
                cell(&rule.rule),
                rule.newly_denied,
                rule.newly_admitted,
                rule.key_count,
                rule.peak,
                top.unwrap_or_default()
            );
        }
        let mut suggestions = self.suggestions.iter().flatten().peekable();
        if suggestions.peek().is_some() {
            text += Suggestion::MARKDOWN_HEAD;
        }
        suggestions.for_each(|suggestion| text += &suggestion.markdown());
        text
    }

    fn summary(&self) -> String {
        let share = |calls| format!("{calls} ({:.3} %)", self.percent(calls));
        let mut text = format!(
            "{} calls from {} to {}\ndenied before: {}\ndenied after: {}\nnewly denied: {}\nnewly admitted: {}\n",
            self.calls,
            self.from,
            self.until,
            share(self.denied_before),
            share(self.denied_after),
            share(self.newly_denied),
            share(self.newly_admitted),
        );
        for (calls, what) in [
            (self.over_shadow, "over a shadow limit"),
            (self.unmatched, "without a rule"),
            (self.without_store, "not compared, since the store gave no answer"),
            (self.overridden, "not compared, since an override applied"),
            (
                self.set_back,
                "with an earlier time than calls before them, as after a clock was set back",
            ),
        ] {
            if calls > 0 {
                let _ = writeln!(text, "{what}: {calls}");
            }
        }
        if self.newly_admitted > 0 {
            text += "Counters are empty where the recording begins: in windows that were under way then, some of the newly admitted \
                     calls are due to that.\n";
        }
        text
    }
}

impl RuleChanges {
    fn add(&mut self, at: Timestamp, denial: &Denial<'_>) {
        let key = key(denial.entries);
        let (second, changes) = &mut self.second;
        if at.as_secs() == *second {
            *changes += 1;
        } else {
            (*second, *changes) = (at.as_secs(), 1);
        }
        if *changes > self.peak {
            (self.peak, self.peak_second) = (*changes, *second);
        }
        if self.first.is_none() {
            let (at, limit) = (instant(at.as_millis()), denial.limit.clone());
            self.first = Some(Example { at, key: key.clone(), limit });
        }
        *self.by_key.entry(key).or_default() += 1;
    }

    fn finished(mut self) -> Self {
        self.peak_at = instant(self.peak_second.saturating_mul(1000));
        self.key_count = self.by_key.len();
        let keys = self.by_key.drain().map(|(key, calls)| KeyChanges { key, calls });
        self.keys = keys.collect();
        self.keys.sort_by(|one, other| {
            other.calls.cmp(&one.calls).then_with(|| one.key.cmp(&other.key))
        });
        self.keys.truncate(KEYS_MAX);
        self
    }
}

fn key(entries: &[Entry]) -> String {
    let path = entries.iter().filter(|entry| !Parameters::is_parameter(entry));
    descriptor_syntax::write(&path.cloned().collect::<Vec<_>>())
}

fn denial<'call>(call: &'call Call, decision: &Decision) -> Denial<'call> {
    let over = decision.statuses.iter().zip(&call.request.descriptors);
    let over = over.filter_map(|(status, descriptor)| match &status.outcome {
        Outcome::Over { limit, .. } => Some((status, limit, descriptor)),
        _ => None,
    });
    let denial = over.map(|(status, limit, descriptor)| Denial {
        rule: status.matched.rule_label().to_owned(),
        limit: limit.to_string(),
        entries: &descriptor.entries,
    });
    denial.into_iter().next().unwrap_or_else(|| without_limit(call))
}

fn recorded_denial(call: &Call) -> Denial<'_> {
    let over = call.over.iter().find(|over| !over.shadow);
    let denial = over.and_then(|over| {
        let entries = &call.request.descriptors.get(over.descriptor)?.entries;
        Some(Denial { rule: over.rule.clone(), limit: over.limit.clone(), entries })
    });
    denial.unwrap_or_else(|| without_limit(call))
}

/// A call that lacks what its domain requires is denied by no limit.
fn without_limit(call: &Call) -> Denial<'_> {
    let entries = call.request.descriptors.first().map_or(&[][..], |first| &first.entries);
    Denial { rule: "require".to_owned(), limit: "require".to_owned(), entries }
}
