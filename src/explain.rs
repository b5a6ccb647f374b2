//! What a call would match and charge, for people: for `tollkeeper explain`, which reads no counters, and for
//! `POST /explain`, which reads them and foresees the decision.

use std::{ptr, slice, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        decision::Code,
        descriptor_syntax,
        hold::{HoldBy, HoldPolicy},
        ledger::{self, Charge, Fit, HoldAction, Verdict},
        parameters::Parameters,
        plan::Plan,
        request::{Descriptor, Entry, Hits, Request},
        rule::{Algorithm, Mode, Policy, WhenDenied},
        rule_set::{Candidates, Domain, Found, MatchedBy, RuleSet},
        time::Timestamp,
    },
    store::CounterReading,
    text::{
        did_you_mean::hint,
        duration::{in_words, seconds_up, spelled},
        printable::printable,
    },
};

/// What a call would match and charge. It holds values of the request, so it has no `Debug`.
#[derive(Default, Serialize, Deserialize)]
pub struct Explanation {
    pub domain: String,
    /// The problem with the domain, with which every call passes, or what the call lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// One for each descriptor of the request; empty if the domain is unknown.
    pub descriptors: Vec<DescriptorExplanation>,
    /// The decision, if the counters were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<ForeseenCode>,
    /// How many counters have no answer, if any: a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// How many of the counters have no answer, as a sentence; `None` if all have one.
pub fn incomplete<'a>(
    readings: impl ExactSizeIterator<Item = &'a CounterReading>,
) -> Option<String> {
    let all = readings.len();
    let missing = readings.filter(|reading| matches!(reading, CounterReading::NoAnswer(_))).count();
    (missing > 0).then(|| format!("{missing} of {all} counters gave no answer"))
}

/// The problem of a corrupt counter, as it is reported.
pub const CORRUPT: &str = "it holds something other than a count";

#[derive(Serialize, Deserialize)]
pub struct DescriptorExplanation {
    /// Its path as the command line writes it, escaped.
    pub descriptor: String,
    /// Its entries that are no part of its path: parameters of holds, such as `hold.estimate=300`, and the class of the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
    /// How its entries were matched, up to the first without a match.
    pub steps: Vec<EntryMatch>,
    #[serde(flatten)]
    pub matched: MatchExplanation,
    /// What an operator has set for it, such as `ban 5f2c01aa`.
    #[serde(rename = "override", default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<String>,
    /// Limits of its rule that other rules replace in this call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Replaced>,
    pub charges: Vec<ChargeExplanation>,
}

#[derive(Serialize, Deserialize)]
pub struct EntryMatch {
    /// The entry, escaped.
    pub entry: String,
    pub matched_by: String,
    /// The candidates that were tried before and did not match.
    pub skipped: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "match", rename_all = "snake_case")]
pub enum MatchExplanation {
    Rule {
        rule: String,
        /// `file:line`.
        written_at: String,
    },
    UnlimitedRule {
        rule: String,
        /// `file:line`.
        written_at: String,
    },
    NoLimit,
    OwnLimit,
    /// The commit of a hold that its token names, whatever the rules are.
    Commit,
    NoRule,
}

/// A limit that does not apply in this call.
#[derive(Debug, Serialize, Deserialize)]
pub struct Replaced {
    pub name: String,
    /// The limit, such as `10 per minute`.
    pub limit: String,
    /// The path of the rule that replaces it.
    pub by: String,
    /// `file:line` of that rule.
    pub written_at: String,
}

#[derive(Default, Serialize, Deserialize)]
pub struct ChargeExplanation {
    /// The limit, such as `10 per minute`.
    pub limit: String,
    pub algorithm: String,
    /// Its mode and other keys, such as `enforced, on_store_failure error`.
    pub details: String,
    /// Hits: 0 checks without counting, a negative number gives hits back.
    pub hits: i64,
    pub key: String,
    /// What it does with holds, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// Hits that count, if the counter was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Hits of open holds beside them, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Of the used hits, those that this replica has leased and not spent, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit: Option<u64>,
    /// Hits that would pass, if the counter was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// Of a quota with `draw: first`: whether the call draws it, if the counters were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn: Option<bool>,
    /// The tier that applies and its headers, such as `80 %: x-tier: warn`, if the counters were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// If the counter is closed by `ban_for`: for how long, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// Why the counter has no state, if it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The decision that the next such call would get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ForeseenCode {
    Ok,
    OverLimit,
}

impl Explanation {
    /// Explains a request and its plan by these rules, in the windows that hold `now`.
    pub fn new(rules: &RuleSet, request: &Request, plan: &Plan, now: Timestamp) -> Self {
        let domain = printable(request.domain.as_bytes());
        let mut explanation = Self { domain, ..Self::default() };
        let Some(domain) = rules.domain(&request.domain) else {
            let domains = rules.domains();
            let near = hint(&request.domain, domains.iter().map(|domain| &*domain.name));
            explanation.problem =
                Some(format!("no rule file has this domain, so every call passes{near}"));
            return explanation;
        };
        if let Some((_, mode)) = &plan.lacking {
            let (keys, mode) = (domain.requirement.keys.join(", "), mode.name());
            let problem =
                format!("no descriptor has the entries that `require` names ({keys}): {mode}");
            explanation.problem = Some(problem);
        }
        let mut found_by_each = Vec::new();
        let of_each = plan.by_descriptor().zip(plan.directive_of_each());
        let descriptors = request.descriptors.iter().enumerate().zip(of_each);
        for ((index, descriptor), (charges, directive)) in descriptors {
            let parameters = Parameters::of(&descriptor.entries);
            let path = domain.path(&descriptor.entries);
            let is_commit = plan.is_commit(index);
            let (steps, found) = walk(domain, descriptor, is_commit, &path);
            let own = descriptor.entries.iter().filter(|entry| domain.is_beside_path(entry));
            explanation.descriptors.push(DescriptorExplanation {
                descriptor: descriptor_syntax::write(&path),
                parameters: own.map(spell).collect(),
                steps,
                matched: MatchExplanation::new(descriptor, is_commit, &found),
                directive: directive.map(ToString::to_string),
                replaced: Vec::new(),
                charges: charges
                    .iter()
                    .map(|charge| ChargeExplanation::new(charge, &plan.charges, parameters, now))
                    .collect(),
            });
            found_by_each.push(found);
        }
        for (explained, found) in explanation.descriptors.iter_mut().zip(&found_by_each) {
            explained.replaced = replaced(found, &found_by_each);
        }
        explanation
    }

    /// Adds what was read of the counters, one reading for each charge of the plan, and the decision if all have a
    /// state.
    pub fn foresee(&mut self, plan: Plan, readings: Vec<CounterReading>) {
        self.incomplete = incomplete(readings.iter());
        let charges = self.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.charges);
        let mut states = Vec::with_capacity(readings.len());
        for (charge, reading) in charges.zip(readings) {
            match reading {
                CounterReading::State(state) => {
                    charge.used = Some(state.used);
                    charge.held = Some(state.held).filter(|held| *held > 0);
                    charge.credit = Some(state.credit).filter(|credit| *credit > 0);
                    charge.remaining = Some(state.remaining);
                    let closed = || format!("closed for {}", in_words(seconds_up(state.reset)));
                    charge.closed = state.closed.then(closed);
                    states.push(state);
                }
                CounterReading::Corrupt => charge.problem = Some(CORRUPT.to_owned()),
                CounterReading::NoAnswer(cause) => charge.problem = Some(cause),
            }
        }
        if states.len() < plan.charges.len() {
            return;
        }
        let tallies = ledger::foresee(&plan.charges, &states);
        let denied = ledger::denies(&plan.charges, &tallies);
        let skipped = ledger::skipped(&plan.charges, &tallies);
        let explained = self.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.charges);
        let judged = plan.charges.iter().zip(&tallies).zip(&states);
        for (index, (explained, ((charge, tally), state))) in explained.zip(judged).enumerate() {
            let (limit, is_skipped) = (&charge.counter.limit, skipped.contains(&index));
            let fits = matches!(tally.fit, Fit::Fits { .. });
            if draws_first(charge) {
                let is_made = !denied && (fits || charge.always_fits);
                let is_made = is_made || charge.when_denied() == WhenDenied::Counted;
                explained.drawn = Some(!is_skipped && is_made);
            }
            let tier = match is_skipped && fits {
                true => limit.tier(state.remaining),
                false => tally.tier(limit),
            };
            explained.tier = tier.filter(|_| !denied).map(ToString::to_string);
        }
        self.verdict =
            Some(match plan.settle(Verdict { denied, tallies, ..Verdict::default() }).code {
                Code::Ok => ForeseenCode::Ok,
                Code::OverLimit => ForeseenCode::OverLimit,
            });
    }

    /// Whether the rules do not know the domain, a key or a value of the request.
    pub fn is_unknown(&self) -> bool {
        self.problem.is_some()
            || self
                .descriptors
                .iter()
                .any(|descriptor| matches!(descriptor.matched, MatchExplanation::NoRule))
    }
}

/// Finds the rule of a descriptor as a decision does, and records how each entry was matched.
fn walk<'rules>(
    domain: &'rules Domain,
    descriptor: &Descriptor,
    is_commit: bool,
    path: &[Entry],
) -> (Vec<EntryMatch>, Found<'rules>) {
    let (mut steps, mut is_unknown_key) = (Vec::new(), false);
    let found = match descriptor.limit {
        // A limit in the request takes precedence over the rules.
        Some(_) => Found::NoLimit,
        None if is_commit => Found::NoLimit,
        None => domain.walk(path, |entry, candidates, matched_by| {
            is_unknown_key = matched_by == MatchedBy::Nothing && !candidates.has_key();
            steps.push(EntryMatch::new(entry, candidates, matched_by));
        }),
    };
    if let (Found::Nothing, Some(last)) = (&found, steps.last_mut()) {
        if let Found::Rule(rule) = domain.find(&domain.ordered(path.to_vec())) {
            let rule = &rule.path;
            last.matched_by = format!("the rules have `{rule}`: entries in another order");
        } else if is_unknown_key
            && let Some(rule) = path.first().and_then(|entry| below_another(domain, entry))
        {
            last.matched_by =
                format!("the rules have `{rule}`: send its entries in one descriptor, not apart");
        }
    }
    (steps, found)
}

/// The path of a rule that has the key of this entry, but not first.
fn below_another(domain: &Domain, entry: &Entry) -> Option<Arc<str>> {
    let key = String::from_utf8_lossy(&entry.key);
    let has_key = |part: &str| part.split('=').next() == Some(&*key);
    let rules = domain.rules();
    let rule = rules.iter().find(|rule| rule.path.split('|').skip(1).any(has_key));
    rule.map(|rule| Arc::clone(&rule.path))
}

impl EntryMatch {
    fn new(entry: &Entry, candidates: Candidates<'_>, matched_by: MatchedBy) -> Self {
        Self {
            entry: spell(entry),
            matched_by: spell_match(entry, candidates, matched_by),
            skipped: skipped(candidates, matched_by),
        }
    }
}

fn spell_match(entry: &Entry, candidates: Candidates<'_>, matched_by: MatchedBy) -> String {
    match matched_by {
        MatchedBy::Value => "exact value match".to_owned(),
        MatchedBy::Pattern(index) => {
            format!("matches pattern `{}`", candidates.patterns().nth(index).unwrap_or_default())
        }
        MatchedBy::Key => "matches the key, with any value".to_owned(),
        MatchedBy::Nothing if candidates.has_key() => {
            let others = unmatched(candidates, usize::MAX).join(", ");
            let known = candidates.values().filter_map(|value| std::str::from_utf8(value).ok());
            let near = hint(&String::from_utf8_lossy(&entry.value), known);
            format!("no rule has this value for this key; the rules have {others}{near}")
        }
        MatchedBy::Nothing => {
            let known = candidates.keys().filter_map(|key| std::str::from_utf8(key).ok());
            format!("unknown key{}", hint(&String::from_utf8_lossy(&entry.key), known))
        }
    }
}

fn skipped(candidates: Candidates<'_>, matched_by: MatchedBy) -> Vec<String> {
    match matched_by {
        MatchedBy::Value | MatchedBy::Nothing => Vec::new(),
        MatchedBy::Pattern(index) => unmatched(candidates, index),
        MatchedBy::Key => unmatched(candidates, usize::MAX),
    }
}

/// The number of exact values, and the first of the patterns.
fn unmatched(candidates: Candidates<'_>, patterns: usize) -> Vec<String> {
    let mut unmatched = Vec::new();
    match candidates.values().count() {
        0 => {}
        1 => unmatched.push("1 other value".to_owned()),
        several => unmatched.push(format!("{several} other values")),
    }
    for pattern in candidates.patterns().take(patterns) {
        unmatched.push(format!("pattern `{pattern}`"));
    }
    unmatched
}

impl MatchExplanation {
    fn new(descriptor: &Descriptor, is_commit: bool, found: &Found<'_>) -> Self {
        if descriptor.limit.is_some() {
            return Self::OwnLimit;
        }
        if is_commit {
            return Self::Commit;
        }
        match found {
            Found::NoLimit => Self::NoLimit,
            Found::Nothing => Self::NoRule,
            Found::Rule(found) => {
                let (rule, written_at) = (found.path.to_string(), found.location.clone());
                match found.policy {
                    Policy::Limited(_) => Self::Rule { rule, written_at },
                    Policy::Unlimited => Self::UnlimitedRule { rule, written_at },
                }
            }
        }
    }
}

/// The limits of one rule that the rules of this call replace.
fn replaced(found: &Found<'_>, found_by_each: &[Found<'_>]) -> Vec<Replaced> {
    let Found::Rule(rule) = found else { return Vec::new() };
    let Policy::Limited(limits) = &rule.policy else { return Vec::new() };
    let mut all = Vec::new();
    for limit in limits {
        let Some(name) = &limit.name else { continue };
        let mut others = found_by_each.iter();
        if let Some(Found::Rule(by)) =
            others.find(|other| other.replaces().any(|replaced| replaced == name))
        {
            all.push(Replaced {
                name: name.to_string(),
                limit: limit.to_string(),
                by: by.path.to_string(),
                written_at: by.location.clone(),
            });
        }
    }
    all
}

impl ChargeExplanation {
    fn new(
        charge: &Charge,
        all: &[Charge],
        parameters: Option<Parameters<'_>>,
        now: Timestamp,
    ) -> Self {
        let limit = &charge.counter.limit;
        Self {
            limit: limit.to_string(),
            algorithm: limit.algorithm.name().to_owned(),
            details: details(charge, all),
            hits: match charge.hits {
                Hits::Charge(hits) => signed(hits),
                Hits::Check | Hits::Commit => 0,
                Hits::Refund(hits) => -signed(hits),
            },
            key: charge.counter.key(limit.window.at(now).start),
            hold: limit.hold.as_ref().and_then(|policy| hold(charge, policy, parameters)),
            ..Self::default()
        }
    }
}

fn signed(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

/// What a charge does with holds, by the policy of its limit.
fn hold(
    charge: &Charge,
    policy: &HoldPolicy,
    parameters: Option<Parameters<'_>>,
) -> Option<String> {
    let (hits, is_known_id) = match (charge.hold, charge.hits) {
        (Some(HoldAction::EndOldest { .. }), Hits::Charge(hits)) => {
            return Some(format!("commits {hits}, and so ends the oldest open hold"));
        }
        (Some(HoldAction::Open { estimate, .. }), _) => (estimate, false),
        (Some(HoldAction::ById { .. }), Hits::Charge(hits)) => (hits, true),
        (Some(HoldAction::Occupy { .. }), Hits::Charge(hits)) => (hits, false),
        (None, Hits::Charge(hits)) if policy.by == HoldBy::Token => (hits, false),
        _ => return None,
    };
    let asked = parameters.and_then(|parameters| parameters.estimate(&policy.weights));
    let (_, source) = policy.estimate_of(asked, hits, charge.counter.limit.capacity());
    let lifetime = spelled(Duration::from_millis(policy.lifetime_ms));
    let by = policy.by.name();
    let commit = if is_known_id { "; a call with a known id commits" } else { "" };
    Some(format!("holds {hits} ({source}) by {by} for {lifetime}{commit}"))
}

/// Whether a charge is drawn from the first quota that fits.
fn draws_first(charge: &Charge) -> bool {
    charge.draws_first && !charge.hits.asks_nothing()
}

fn details(charge: &Charge, all: &[Charge]) -> String {
    let limit = &charge.counter.limit;
    let mut details = vec![match limit.mode {
        Mode::Enforced => "enforced".to_owned(),
        Mode::Shadow => "shadow".to_owned(),
        Mode::Quota => "quota".to_owned(),
    }];
    if draws_first(charge) {
        let is_of_group = |other: &&Charge| other.quota_group == charge.quota_group;
        let group: Vec<_> = all.iter().filter(|one| draws_first(one)).filter(is_of_group).collect();
        let before = group.iter().take_while(|other| !ptr::eq(**other, charge)).count();
        details.push(format!("draw first, number {} of {}", before + 1, group.len()));
    }
    if let Some(tiers) = &limit.tiers {
        let at: Vec<_> = tiers.iter().map(|tier| format!("{} %", tier.at)).collect();
        details.push(format!("tiers at {}", at.join(" and ")));
    }
    if let Some(notify_at) = &limit.notify_at {
        let at: Vec<_> = notify_at.iter().map(|at| format!("{at} %")).collect();
        details.push(format!("notify_at {}", at.join(" and ")));
    }
    if let Some((class, share)) = &limit.class {
        let release = if limit.opens_from.is_some() { ", release linear" } else { "" };
        details.push(format!("class {class}: {share} %{release}"));
    }
    if let Algorithm::TokenBucket { burst } = limit.algorithm {
        details.push(format!("burst {burst}"));
    }
    if limit.when_denied == WhenDenied::Counted {
        details.push("count_denied".to_owned());
    }
    if let Some(ban_ms) = limit.ban_ms {
        details.push(format!("ban_for {}", spelled(Duration::from_millis(ban_ms))));
    }
    if let Some(requests) = limit.shadow {
        details.push(format!("shadow {requests}"));
    }
    if limit.leases() {
        details.push("lease auto".to_owned());
    }
    details.push(format!("on_store_failure {}", limit.on_store_failure.name()));
    details.join(", ")
}

fn spell(entry: &Entry) -> String {
    descriptor_syntax::write(slice::from_ref(entry))
}
