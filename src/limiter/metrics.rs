//! Metrics of calls.

mod labels;
pub(super) mod rule_counters;
pub(crate) mod rule_series;

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use opentelemetry::{
    KeyValue,
    metrics::{BoundHistogram, Counter, Histogram, Meter},
};
use tokio::time::Instant;
use tonic::Code;

use self::{
    labels::RuleLabels,
    rule_counters::{Counts, KnownRule, KnownRules, RuleCounters, STANDINGS},
    rule_series::RuleSeries,
};
use super::matched::{DecidedCode, domain_of, rule_of};
use crate::{
    engine::{
        algorithm::account::real,
        decision::{Decision, Matched, Outcome, Status},
        request::{Entry, Hits, Request},
        rule::{FailureMode, Limit, Rule},
        rule_set::{RequireMode, RuleSet},
    },
    net::grpc::{self, ServedMethod, is_server_error},
    telemetry::instruments,
};

instruments! {
    pub(super) struct CallInstruments {
        duration: Histogram<f64> => DURATION = Histogram(
            "rpc.server.call.duration", ["rpc.system.name", "rpc.method", "rpc.response.status_code", "error.type"],
            "duration of calls that decide, over gRPC or HTTP (`POST /check`), whose statuses have gRPC's names; `error.type`: a status that is the server's fault"
        ) in Seconds;
        decisions: RuleSeries => DECISIONS = Counter(
            "ratelimit.decisions", ["domain", "rule", "code"],
            "descriptors decided: `ok`, `over_limit`, or `shadow` (over a shadow limit only)"
        );
        hits: RuleSeries => HITS = Counter("ratelimit.hits", ["domain", "rule", "standing"],
            "requested hits: `within` the limit, `near` it (beyond `--near-limit-ratio`), `over` it, or over a `shadow` limit");
        by_override: RuleSeries => OVERRIDES_DECISIONS = Counter(
            "ratelimit.overrides.decisions", ["domain", "rule", "action", "code"],
            "descriptors decided by an override, by its action"
        );
        invalid_overrides: Counter<u64> => OVERRIDES_INVALID = Counter(
            "ratelimit.overrides.invalid", [],
            "limit overrides that were ignored"
        );
        refused_debits: RuleSeries => DEBITS_REFUSED = Counter("ratelimit.debits.refused", ["rule"],
            "refused charges of rules without `count_denied` that are checked with 0 hits");
        corrupt_counters: RuleSeries => COUNTERS_CORRUPT = Counter(
            "ratelimit.counters.corrupt", ["rule"],
            "charges to a key in Redis without a count"
        );
        failure_modes: RuleSeries => FALLBACKS = Counter("ratelimit.fallbacks", ["rule", "mode"],
            "charges decided by `on_store_failure` (`mode`)");
        incomplete: Counter<u64> => CALLS_INCOMPLETE = Counter(
            "ratelimit.calls.incomplete", ["domain", "mode"],
            "calls without the entries of `require`, by `require_mode`"
        );
        empty: RuleSeries => EMPTY_CALLS = Counter("ratelimit.empty.calls", ["peer"],
            "calls refused without descriptors; `peer`: the client's first certificate name, or address (1,000, then `other`)");
        late: Counter<u64> => CALLS_LATE = Counter("ratelimit.calls.late", [],
            "calls decided after their timeout; without one, after four thirds of the decision budget");
    }
}

const STATUSES: usize = 17;

/// The most hits of one descriptor that are counted beyond its limit. Callers may send up to 2^53 at once, and
/// Prometheus reads counters as floats, which lose single hits beyond 2^53.
const HITS_MAX: u64 = u32::MAX as u64;

#[derive(Debug, Clone)]
pub struct CallMetrics {
    pub(super) of: CallInstruments,
    durations: [CallDurations; ServedMethod::ALL.len()],
    labels: RuleLabels,
    by_rule: Arc<RuleCounters>,
    /// The part of a limit from which hits are near it.
    near_ratio: f64,
}

impl CallMetrics {
    /// Instruments of `meter`. Hits beyond `near_ratio` of a limit, from 0 to 1, are near it.
    pub fn new(meter: &Meter, near_ratio: f64) -> Self {
        let of = CallInstruments::of_meter(meter);
        let durations = ServedMethod::ALL
            .map(|method| CallDurations::new(of.duration.clone(), "grpc", method.name()));
        Self { of, near_ratio, labels: RuleLabels::default(), by_rule: Arc::default(), durations }
    }

    /// The durations of a request over HTTP, such as `POST /check`.
    pub(crate) fn http_durations(&self, name: &'static str) -> CallDurations {
        CallDurations::new(self.of.duration.clone(), "http", name)
    }

    pub fn call(&self, began: Instant, code: Code) {
        self.call_of(ServedMethod::ShouldRateLimit, began, code);
    }

    pub(crate) fn call_of(&self, method: ServedMethod, began: Instant, code: Code) {
        if let Some(durations) = self.durations.get(method as usize) {
            durations.record(began, code);
        }
    }

    pub(super) fn known_rules(&self) -> KnownRules {
        self.by_rule.known()
    }

    pub(super) fn decided(
        &self,
        rules: &RuleSet,
        known: &KnownRules,
        request: &Request,
        decision: &Decision,
    ) {
        for (descriptor, status) in request.descriptors.iter().zip(&decision.statuses) {
            let counts = Counts {
                code: DecidedCode::of(status),
                hits: match descriptor.hits {
                    Hits::Charge(hits) => hits_by_standing(status, hits, self.near_ratio),
                    _ => [0; STANDINGS.len()],
                },
            };
            if let Some(directive) = &status.directive {
                self.of.by_override.add(
                    1,
                    &[
                        KeyValue::new("domain", domain_of(&status.matched)),
                        KeyValue::new("rule", rule_of(&status.matched)),
                        KeyValue::new("action", directive.action.name()),
                        KeyValue::new("code", counts.code.name()),
                    ],
                );
            }
            let known = match &status.matched {
                Matched::Rule(_, rule) => KnownRule::of(known, rule),
                _ => None,
            };
            match known {
                Some(known) => known.count(&self.of.decisions, &self.of.hits, counts),
                None => self.count(rules, &status.matched, &descriptor.entries, counts),
            }
        }
    }

    /// Counts a descriptor by labels that are looked up.
    fn count(
        &self,
        rules: &RuleSet,
        matched: &Matched,
        entries: &[Entry],
        Counts { code, hits }: Counts,
    ) {
        let (domain, rule) = self.labels.of(rules, matched, entries);
        let [domain, rule] = [KeyValue::new("domain", domain), KeyValue::new("rule", rule)];
        let code = KeyValue::new("code", code.name());
        self.of.decisions.add(1, &[domain.clone(), rule.clone(), code]);
        for (standing, count) in STANDINGS.into_iter().zip(hits) {
            if count > 0 {
                let standing = KeyValue::new("standing", standing);
                self.of.hits.add(count, &[domain.clone(), rule.clone(), standing]);
            }
        }
    }

    /// Binds the counters of these rules, and forgets the series of others. Returns the labels that remain.
    pub fn rules_in_force(&self, rules: &RuleSet) -> HashSet<[String; 2]> {
        let in_force = self.labels.retain(rules);
        let CallInstruments { decisions, hits, by_override, .. } = &self.of;
        let CallInstruments { corrupt_counters, refused_debits, failure_modes, .. } = &self.of;
        for series in
            [decisions, hits, by_override, corrupt_counters, refused_debits, failure_modes]
        {
            series.retain(&in_force);
        }
        self.by_rule.replace(rules);
        in_force
    }

    pub fn overrides_ignored(&self, count: u64) {
        if count > 0 {
            self.of.invalid_overrides.add(count, &[]);
        }
    }

    /// Records hits that were refused by a rule that gets checks.
    pub fn debit_refused(&self, rule: &Rule) {
        self.of.refused_debits.add(1, &[KeyValue::new("rule", rule.path.clone())]);
    }

    /// Records a charge for this rule that was decided without the store.
    pub(crate) fn failure_mode_applied(&self, rule: String, mode: FailureMode) {
        let labels = [KeyValue::new("rule", rule), KeyValue::new("mode", mode.name())];
        self.of.failure_modes.add(1, &labels);
    }

    pub(crate) fn incomplete(&self, domain: Arc<str>, mode: RequireMode) {
        let labels = [KeyValue::new("domain", domain), KeyValue::new("mode", mode.name())];
        self.of.incomplete.add(1, &labels);
    }

    pub(crate) fn empty_call(&self, peer: String) {
        self.of.empty.add_bounded(KeyValue::new("peer", peer));
    }

    /// Records a counter of this rule that holds something other than a count.
    pub fn corrupt_counter(&self, rule: &str) {
        self.of.corrupt_counters.add(1, &[KeyValue::new("rule", rule.to_owned())]);
    }
}

/// The durations of the calls of one name, bound by the number of their status.
#[derive(Debug, Clone)]
pub(crate) struct CallDurations {
    system: &'static str,
    name: &'static str,
    duration: Histogram<f64>,
    bound: Arc<[OnceLock<BoundHistogram<f64>>; STATUSES]>,
}

impl CallDurations {
    fn new(duration: Histogram<f64>, system: &'static str, name: &'static str) -> Self {
        Self { system, name, duration, bound: Arc::default() }
    }

    pub(crate) fn record(&self, began: Instant, code: Code) {
        let bound = usize::try_from(code as i32).ok().and_then(|code| self.bound.get(code));
        if let Some(bound) = bound {
            let bound = bound.get_or_init(|| self.duration.bind(&self.attributes(code)));
            bound.record(began.elapsed().as_secs_f64());
        }
    }

    fn attributes(&self, code: Code) -> Vec<KeyValue> {
        let status = grpc::status_name(code);
        let mut attributes = vec![
            KeyValue::new("rpc.system.name", self.system),
            KeyValue::new("rpc.method", self.name),
            KeyValue::new("rpc.response.status_code", status),
        ];
        if is_server_error(code) {
            attributes.push(KeyValue::new("error.type", status));
        }
        attributes
    }
}

/// The hits of a charge, by how near they came to the limit: in the order of [`STANDINGS`].
fn hits_by_standing(status: &Status, hits: u64, near_ratio: f64) -> [u64; STANDINGS.len()] {
    let (mut within, mut near, mut over, mut shadow) = (0, 0, 0, 0);
    let counted = |limit: &Limit| hits.min(HITS_MAX.max(limit.capacity()));
    match (&status.outcome, &status.over_shadow) {
        (Outcome::Over { limit, .. }, _) => over = counted(limit),
        // A rule in shadow mode.
        (Outcome::Within { limit, .. }, Some((over, _))) if over == limit => {
            shadow = counted(limit);
        }
        (Outcome::Within { limit, remaining, .. }, tried) => {
            let (hits, used) = (counted(limit), limit.capacity().saturating_sub(*remaining));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to 2^53"
            )]
            let threshold = (real(limit.capacity()) * near_ratio) as u64;
            near = used.saturating_sub(threshold.max(used.saturating_sub(hits)));
            let rest = hits.saturating_sub(near);
            *(if tried.is_some() { &mut shadow } else { &mut within }) = rest;
        }
        (Outcome::NoLimit | Outcome::Unlimited, _) => {}
    }
    [within, near, over, shadow]
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::engine::rule::Unit;

    #[track_caller]
    fn check(limit: u64, used: u64, hits: u64, expected: [u64; 2]) {
        let limit = Arc::new(Limit::new(limit, Unit::Hour, 1).expect("a window"));
        let remaining = limit.requests_per_unit - used;
        let within = Outcome::Within { limit, remaining, reset: Duration::ZERO };
        let status = Status::settled(Matched::NoDomain, within, None);
        let [within, near, ..] = hits_by_standing(&status, hits, 0.8);
        assert_eq!([near, within], expected);
    }

    #[test]
    fn hits_near_the_limit_are_not_hidden_by_a_number_that_is_tried() {
        let limit = Arc::new(Limit::new(100, Unit::Hour, 1).expect("a window"));
        let reset = Duration::ZERO;
        let tried = Some((Arc::new(limit.with_requests(60)), reset));
        for (remaining, expected) in [(30, [0, 0, 0, 5]), (18, [0, 2, 0, 3])] {
            let outcome = Outcome::Within { limit: Arc::clone(&limit), remaining, reset };
            let mut status = Status::settled(Matched::NoDomain, outcome, None);
            status.over_shadow.clone_from(&tried);
            assert_eq!(hits_by_standing(&status, 5, 0.8), expected);
        }
    }

    /// The table of envoyproxy/ratelimit's own tests, for admitted hits.
    #[test]
    fn hits_beyond_the_ratio_are_near_the_limit() {
        check(20, 5, 3, [0, 3]);
        check(8, 7, 2, [1, 1]);
        check(20, 19, 3, [3, 0]);
        check(15, 11, 1, [0, 1]);
        check(15, 13, 1, [1, 0]);
        check(0, 0, 0, [0, 0]);
    }
}
