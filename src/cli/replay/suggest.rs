//! `--suggest`: what the keys of each limit need, whatever it is now.

use std::{
    collections::{BTreeMap, HashMap},
    hash::RandomState,
    sync::Arc,
};

use serde::Serialize;

use crate::{
    cli::output::cell,
    engine::{decision::Matched, plan::Plan, request::Hits, rule::Policy, time::Timestamp},
};

/// The demand of all limits.
#[derive(Debug, Default)]
pub(super) struct Demand {
    hasher: RandomState,
    /// By the place of the rule, the algorithm, and the seconds of the window.
    limits: HashMap<(usize, &'static str, u64), LimitDemand>,
}

#[derive(Debug)]
struct LimitDemand {
    domain: String,
    rule: String,
    limit: String,
    /// The windows under way: when each began, and the hits that were asked for in it.
    open: HashMap<u64, (Timestamp, u64)>,
    /// The number of windows by the hits that were asked for.
    windows: BTreeMap<u64, u64>,
}

/// What one limit would have to be.
#[derive(Debug, Serialize)]
pub(super) struct Suggestion {
    domain: String,
    rule: String,
    limit: String,
    /// Windows of keys with a hit.
    windows: u64,
    /// Hits that 99 of 100 of them do not exceed, and none.
    p99: u64,
    max: u64,
    /// The lowest limits that deny no hit, at most 0.1 % and at most 1 % of them.
    denies_none: u64,
    denies_a_thousandth: u64,
    denies_a_hundredth: u64,
}

impl Demand {
    /// Adds what a call asks for at `now`.
    pub(super) fn add(&mut self, plan: &Plan, now: Timestamp) {
        for (matched, _, charge) in plan.matched_charges() {
            let (Matched::Rule(domain, rule), Hits::Charge(hits)) = (matched, charge.hits) else {
                continue;
            };
            let limit = &charge.counter.limit;
            // What they need is not what calls ask for.
            if limit.counts_calls() || limit.hold.is_some() {
                continue;
            }
            let rule_at = Arc::as_ptr(rule).addr();
            let place = (rule_at, limit.algorithm.name(), limit.window.seconds());
            // A class has a share of the limit that the rule has.
            let whole = match &rule.policy {
                Policy::Limited(limits) => limits.iter().find(|one| one.shares_counter(limit)),
                Policy::Unlimited => None,
            };
            let demand = self.limits.entry(place).or_insert_with(|| LimitDemand {
                domain: domain.to_string(),
                rule: rule.path.to_string(),
                limit: whole.unwrap_or(limit).to_string(),
                open: HashMap::new(),
                windows: BTreeMap::new(),
            });
            let start = limit.window.at(now).start;
            let key = charge.counter.hash_of_identity(&self.hasher);
            let (began, asked) = demand.open.entry(key).or_insert((start, 0));
            if *began != start {
                *demand.windows.entry(*asked).or_default() += 1;
                (*began, *asked) = (start, 0);
            }
            *asked = asked.saturating_add(hits);
        }
    }

    /// What each limit would have to be, by domain and rule.
    pub(super) fn suggestions(self) -> Vec<Suggestion> {
        let mut suggestions: Vec<Suggestion> =
            self.limits.into_values().map(LimitDemand::suggestion).collect();
        let name = |one: &Suggestion| (one.domain.clone(), one.rule.clone(), one.limit.clone());
        suggestions.sort_by_key(name);
        suggestions
    }
}

impl LimitDemand {
    fn suggestion(mut self) -> Suggestion {
        for (_, asked) in self.open.drain().map(|(_, window)| window) {
            *self.windows.entry(asked).or_default() += 1;
        }
        let count = self.windows.values().sum();
        let denies = |parts_of_a_thousand| lowest(&self.windows, parts_of_a_thousand);
        Suggestion {
            windows: count,
            p99: percentile(&self.windows, count, 99),
            max: self.windows.keys().next_back().copied().unwrap_or_default(),
            denies_none: denies(0),
            denies_a_thousandth: denies(1),
            denies_a_hundredth: denies(10),
            domain: self.domain,
            rule: self.rule,
            limit: self.limit,
        }
    }
}

/// The lowest limit that denies at most this share of the hits, in thousandths.
fn lowest(windows: &BTreeMap<u64, u64>, parts_of_a_thousand: u128) -> u64 {
    let sum = |hits: fn(u64, u64) -> u64, limit| -> u128 {
        let of_each = windows.iter();
        of_each.map(|(asked, count)| u128::from(hits(*asked, limit)) * u128::from(*count)).sum()
    };
    let all = sum(|asked, _| asked, 0);
    let (mut low, mut high) = (0, windows.keys().next_back().copied().unwrap_or_default());
    while low < high {
        let limit = low + (high - low) / 2;
        let denied = sum(u64::saturating_sub, limit);
        if denied * 1000 <= all * parts_of_a_thousand { high = limit } else { low = limit + 1 }
    }
    low
}

fn percentile(windows: &BTreeMap<u64, u64>, count: u64, percent: u64) -> u64 {
    let mut left = count.saturating_mul(percent).div_ceil(100);
    for (asked, windows) in windows {
        left = left.saturating_sub(*windows);
        if left == 0 {
            return *asked;
        }
    }
    0
}

impl Suggestion {
    pub(super) const MARKDOWN_HEAD: &str = "\n| domain | rule | limit now | windows | p99 | most | denies none | denies 0.1 % | denies 1 % |\n| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";

    pub(super) fn text(&self) -> String {
        let Self { domain, rule, limit, windows, p99, max, .. } = self;
        format!(
            "\n{domain}  {rule}: {limit} now\n  windows of keys: {windows}; 99 % ask for at most {p99} hits, and all for at most {max}\n  \
             denies none: {}; at most 0.1 % of the hits: {}; at most 1 %: {}\n",
            self.denies_none, self.denies_a_thousandth, self.denies_a_hundredth
        )
    }

    pub(super) fn markdown(&self) -> String {
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            cell(&self.domain),
            cell(&self.rule),
            self.limit,
            self.windows,
            self.p99,
            self.max,
            self.denies_none,
            self.denies_a_thousandth,
            self.denies_a_hundredth
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_denies_what_is_asked_for_beyond_it() {
        // 998 windows with 1 hit, one with 2, one with 1,000: 2,000 hits.
        let windows = BTreeMap::from([(1, 998), (2, 1), (1_000, 1)]);
        assert_eq!(lowest(&windows, 0), 1_000);
        // 2 hits are a thousandth, 20 a hundredth.
        assert_eq!(lowest(&windows, 1), 998);
        assert_eq!(lowest(&windows, 10), 980);
        assert_eq!(percentile(&windows, 1_000, 99), 1);
        assert_eq!(lowest(&BTreeMap::new(), 0), 0);
    }
}
