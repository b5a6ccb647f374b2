//! What an operator should look at, the gravest first: judged here only, for `/status`, the page and `tollkeeper status`.

use std::time::Duration;

use serde::Serialize;

use super::{history::Recent, numbers::ServerStatus};
use crate::{
    edge::health::Phase, engine::rule::FailureMode, rules::xds::ControlPlaneReport, text::counted,
};

/// Shares of calls from which calls that fail, or that are decided without the store, are grave; and from which late calls
/// are reported and grave.
const FAILED_RED: f64 = 0.01;
const LATE_AMBER: f64 = 0.001;
const LATE_RED: f64 = 0.01;

/// How grave a condition is. The order is from the least to the gravest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// All is well.
    #[default]
    Green,
    /// Something is wrong, and calls are still decided as the rules say.
    Amber,
    /// Calls are not decided as the rules say.
    Red,
}

use Severity::{Amber, Red};

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Condition {
    /// What it is about, such as `store`; the page marks the number with this name.
    about: &'static str,
    pub(super) severity: Severity,
    text: String,
}

pub(super) struct Situation<'a> {
    pub(super) phase: Phase,
    pub(super) recent: &'a Recent,
    pub(super) servers: &'a [ServerStatus],
    pub(super) decision_budget: Duration,
    pub(super) has_rules: bool,
    /// Why overrides may not be in force.
    pub(super) override_problem: Option<String>,
    /// Why the candidate is not what its files say.
    pub(super) candidate_problem: Option<String>,
    /// Why newer rules are not in force.
    pub(super) rule_problems: &'a [String],
    pub(super) control_plane: Option<&'a ControlPlaneReport>,
}

impl Situation<'_> {
    /// What is wrong; nothing if all is well.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let recent = self.recent;
        let of_calls = |rate: f64| rate / recent.calls.max(rate).max(f64::MIN_POSITIVE);
        let (failed, late) = (of_calls(recent.failed), of_calls(recent.late));
        let budget = self.decision_budget;
        let p99 = recent.p99.map_or(Duration::ZERO, Duration::from_secs_f64);
        let refused = self.rule_problems.first();
        let lost = self.control_plane.filter(|report| !report.connected);
        let failure =
            lost.and_then(|report| report.failure.as_deref()).unwrap_or("not connected yet");

        let openings = usize::try_from(recent.breaker_openings).unwrap_or(usize::MAX);

        #[rustfmt::skip]
        let table = [
            (self.phase == Phase::Starting, "phase", Amber, "starting: waiting for the store or the control plane".to_owned()),
            (self.phase == Phase::Draining, "phase", Amber, "draining: new calls should go to other replicas".to_owned()),
            (self.phase == Phase::WithoutStore, "phase", Red, "it is not ready: the store does not answer".to_owned()),
            (self.phase == Phase::WithoutRules, "phase", Red, "it is not ready: there are no rules".to_owned()),
            (recent.failed > 0.0, "failed", if failed < FAILED_RED { Amber } else { Red }, format!("{} calls/s fail", shown(recent.failed))),
            (late >= LATE_AMBER, "late", if late < LATE_RED { Amber } else { Red }, format!("{} calls/s are decided after their caller has given up", shown(recent.late))),
            (p99 > budget, "p99", Amber, format!("p99 is {:.1} ms, above the decision budget of {budget:?}", 1e3 * p99.as_secs_f64())),
            (recent.breaker_openings > 0, "breaker", Amber, format!("{} in the last 10 minutes", counted(openings, "breaker opening"))),
            (!self.has_rules, "rules", Red, "there are no rules, so every call passes".to_owned()),
            (refused.is_some(), "rules", Amber, format!("newer rules are not in force: {}", refused.map_or("", String::as_str))),
            (self.override_problem.is_some(), "overrides", Amber, self.override_problem.clone().unwrap_or_default()),
            (self.candidate_problem.is_some(), "candidate", Amber, self.candidate_problem.clone().unwrap_or_default()),
            (lost.is_some(), "control_plane", Amber, format!("no connection to the control plane: {failure}")),
        ];
        let mut conditions: Vec<_> = (table.into_iter())
            .filter_map(|(holds, about, severity, text)| {
                holds.then_some(Condition { about, severity, text })
            })
            .chain(self.servers.iter().filter_map(server))
            .chain(
                FailureMode::ALL
                    .into_iter()
                    .zip(recent.fallbacks)
                    .filter_map(|(mode, rate)| fallback(mode, rate, of_calls(rate))),
            )
            .collect();
        // The store is the cause of what follows from it.
        conditions.sort_by_key(|condition| {
            (std::cmp::Reverse(condition.severity), condition.about != "store")
        });
        conditions
    }
}

fn server(server: &ServerStatus) -> Option<Condition> {
    let address = &server.address;
    // How grave it is that some calls fail is said by how many of them do.
    let (severity, text) = match (server.up, server.breaker_open) {
        (Some(false), true) => (Red, format!("{address} does not answer, or takes no writes")),
        (_, true) => (Red, format!("{address}: its breaker is open, so calls do not wait for it")),
        (Some(false), false) => {
            (Amber, format!("{address} has not answered its last calls, or takes no writes"))
        }
        _ => return None,
    };
    Some(Condition { about: "store", severity, text })
}

fn fallback(mode: FailureMode, rate: f64, of_calls: f64) -> Option<Condition> {
    let (grave, effect) = match mode {
        FailureMode::Error => (Red, "get an error, so their callers decide"),
        FailureMode::Deny => (Red, "are denied"),
        FailureMode::Allow => (Red, "pass without a limit"),
        FailureMode::Local => (Amber, "are counted by each replica alone"),
    };
    let severity = if of_calls < FAILED_RED { Amber } else { grave };
    let (rate, name) = (Some(rate).filter(|rate| *rate > 0.0)?, mode.name());
    let text = format!("{} charges/s {effect} (on_store_failure: {name})", shown(rate));
    Some(Condition { about: "fallbacks", severity, text })
}

/// A rate above 0.
fn shown(rate: f64) -> String {
    if rate < 0.1 { "under 0.1".to_owned() } else { format!("{rate:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(
        recent: &'a Recent,
        change: impl FnOnce(&mut Situation<'a>),
    ) -> Vec<(Severity, String)> {
        let mut situation = Situation {
            phase: Phase::Ready,
            recent,
            servers: &[],
            decision_budget: Duration::from_millis(15),
            has_rules: true,
            override_problem: None,
            candidate_problem: None,
            rule_problems: &[],
            control_plane: None,
        };
        change(&mut situation);
        let conditions = situation.conditions();
        conditions.into_iter().map(|condition| (condition.severity, condition.text)).collect()
    }

    fn of(recent: Recent) -> Vec<(Severity, String)> {
        found(&Recent { calls: 1000.0, ..recent }, |_| {})
    }

    #[test]
    fn a_replica_without_problems_is_green() {
        assert_eq!(of(Recent { p99: Some(0.001), ..Recent::default() }), []);
    }

    #[test]
    fn failed_and_late_calls_are_grave_from_a_hundredth_of_the_calls() {
        let severities =
            |recent| of(recent).iter().map(|(severity, _)| *severity).collect::<Vec<_>>();
        for (rate, of_failed, of_late) in [
            (0.5, vec![Amber], vec![]),
            (2.0, vec![Amber], vec![Amber]),
            (10.0, vec![Red], vec![Red]),
        ] {
            assert_eq!(
                severities(Recent { failed: rate, ..Recent::default() }),
                of_failed,
                "{rate}"
            );
            assert_eq!(severities(Recent { late: rate, ..Recent::default() }), of_late, "{rate}");
        }
    }

    #[test]
    fn the_mode_that_decides_without_the_store_is_named() {
        let recent = Recent { fallbacks: [0.0, 0.0, 12.0, 0.01], ..Recent::default() };
        let expected = [
            (Red, "12.0 charges/s pass without a limit (on_store_failure: allow)"),
            (
                Amber,
                "under 0.1 charges/s are counted by each replica alone (on_store_failure: local)",
            ),
        ];
        assert_eq!(of(recent), expected.map(|(severity, text)| (severity, text.to_owned())));
    }

    #[test]
    fn a_server_that_fails_is_grave_once_its_breaker_is_open() {
        let recent = Recent { calls: 1000.0, ..Recent::default() };
        let severity = |up, breaker_open| {
            let mut servers = [ServerStatus::default()];
            (servers[0].up, servers[0].breaker_open) = (up, breaker_open);
            let found = found(&recent, |situation| situation.servers = &servers);
            found.first().map(|(severity, _)| *severity)
        };
        assert_eq!(severity(Some(true), false), None);
        assert_eq!(severity(Some(false), false), Some(Amber), "one lost event");
        assert_eq!(severity(Some(false), true), Some(Red));
        assert_eq!(severity(None, true), Some(Red));
    }

    #[test]
    fn the_gravest_condition_is_first() {
        let recent = Recent { p99: Some(0.068), breaker_openings: 20, ..Recent::default() };
        let lost = ControlPlaneReport { failure: Some("refused".to_owned()), ..Default::default() };
        let found = found(&recent, |situation| {
            situation.has_rules = false;
            situation.control_plane = Some(&lost);
        });
        let texts: Vec<_> = found.iter().map(|(_, text)| &**text).collect();
        let expected = [
            "there are no rules, so every call passes",
            "p99 is 68.0 ms, above the decision budget of 15ms",
            "20 breaker openings in the last 10 minutes",
            "no connection to the control plane: refused",
        ];
        assert_eq!(texts, expected);
    }
}
