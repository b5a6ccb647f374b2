//! `tollkeeper test`: runs tests of rules on simulated time, and reports each answer that is not as
//! expected.

pub(super) mod cases;
pub(super) mod junit;
mod keys;
pub(super) mod report;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

pub(super) use self::keys::schema;
use self::{
    cases::{Case, TestCall},
    report::{CaseReport, TestReport},
};
use super::{
    findings::{self, Finding, ReportFormat},
    output::{complain, say},
    simulated::SimulatedService,
};
use crate::{
    engine::{
        decision::{Code, Committed, Decision, Matched, Outcome, Status},
        ledger::CommitOutcome,
        request::HitsMeaning,
        rule_set::RuleSet,
    },
    rules::{self, LoadOptions},
    settings::{self, Environment},
    text::did_you_mean::hint,
    yaml::Problem,
};

/// The value of `rule:` that expects a descriptor to match no rule.
const NO_RULE: &str = "none";

#[derive(Debug, clap::Args)]
pub(super) struct TestFlags {
    /// Files of tests, and folders: there, every *.test.yaml and *.test.yml at any depth; `-` is standard input
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    report: findings::ReportFlag,
}

pub(super) fn main(flags: &TestFlags, environment: &Environment) -> ExitCode {
    let (files, problems) = cases::find(&flags.paths);
    let (mut report, options) = (TestReport::default(), settings::rule_options(environment));
    report.add_problems(problems);
    for file in files {
        match load(&file, options) {
            Ok((rules, cases)) => {
                for case in &cases {
                    report.tests.push(CaseReport::new(&file, case, run(&rules, case)));
                }
            }
            Err(problems) => report.add_problems(problems),
        }
    }
    let failures = report.failures();
    let findings: Vec<Finding<'_>> =
        report.problems.iter().chain(&failures).map(Finding::Problem).collect();
    let text = match flags.report.format(environment) {
        ReportFormat::Text => {
            for problem in &report.problems {
                complain(problem);
            }
            report.text()
        }
        ReportFormat::Json => report.json(),
        ReportFormat::Github => findings::github(&findings) + &report.text(),
        ReportFormat::Sarif => findings::sarif(&findings),
        ReportFormat::Junit => junit::xml(&report),
    };
    say(&text, if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn load(file: &Path, options: LoadOptions) -> Result<(RuleSet, Vec<Case>), Vec<Problem>> {
    let suite = cases::read(file)?;
    let loaded = rules::load(&suite.rules, &[], options)?;
    Ok((loaded.rules, suite.cases))
}

/// Runs one test, up to the first call whose answer is not as expected.
fn run(rules: &RuleSet, case: &Case) -> Result<(), String> {
    let mut service = SimulatedService::new(rules);
    for call in &case.calls {
        let TestCall { location, at, now, written, request, hold, .. } = call;
        let hold = hold.as_ref().map(String::as_bytes);
        let decision = service.decide(request, HitsMeaning::Charged, *now, hold);
        // A typo explains a difference.
        let found = [difference(call, &decision), unmatched(rules, call, &decision)];
        let mut found: Vec<String> = found.into_iter().flatten().collect();
        if found.is_empty() {
            found.extend(no_hold(call, &decision));
        }
        if !found.is_empty() {
            let (written, found) = (written.join(" "), found.join("\n"));
            return Err(format!("{location}, at {at}: {written}\n{found}"));
        }
    }
    Ok(())
}

fn difference(call: &TestCall, decision: &Decision) -> Option<String> {
    let (expected, actual) = (expected(call), actual(call, decision));
    (expected != actual).then(|| format!("  expected: {expected}\n  actual:   {actual}"))
}

/// The difference if a call takes no hold with a token, or if a commit has no effect, and the test does not expect it.
fn no_hold(call: &TestCall, decision: &Decision) -> Option<String> {
    let problem = match (&call.hold, commit(decision).map(Committed::name)) {
        (Some(name), _) if decision.taken.is_none() => {
            format!("no hold `{name}`: the call is denied, or none of its limits holds by token")
        }
        (_, Some(outcome @ ("repeated" | "late"))) if call.code.is_none() => {
            format!(
                "the commit has no effect: {outcome}\n  if this is intended, write `expect: {outcome}`"
            )
        }
        _ => return None,
    };
    Some(format!("  {problem}"))
}

/// The difference if a descriptor matches no rule: that is probably a typo, unless the test expects it.
fn unmatched(rules: &RuleSet, call: &TestCall, decision: &Decision) -> Option<String> {
    if is_commit(decision) {
        return None;
    }
    let expected = |index| call.rules.as_ref().and_then(|rules| rules.get(index));
    let mut statuses = decision.statuses.iter().enumerate();
    let index = statuses.position(|(index, status)| {
        matched(status) == NO_RULE && expected(index).is_none_or(|rule| rule != NO_RULE)
    })?;
    let problem = match decision.statuses.get(index)?.matched {
        Matched::NoDomain => {
            let domains = rules.domains();
            let domain = &call.request.domain;
            let near = hint(domain, domains.iter().map(|domain| &*domain.name));
            format!("no rule file has the domain `{domain}`{near}")
        }
        _ => format!("{} matches no rule", call.written.get(index)?),
    };
    Some(format!("  {problem}\n  if this is intended, write `rule: {NO_RULE}`"))
}

fn expected(call: &TestCall) -> String {
    spell(call.code, call.remaining.as_deref(), call.rules.as_deref())
}

/// The parts of the decision for which the test has an expectation.
fn actual(call: &TestCall, decision: &Decision) -> String {
    let code = match (commit(decision), decision.code) {
        (Some(commit), _) if is_commit(decision) => commit.name(),
        (_, Code::Ok) => "OK",
        (_, Code::OverLimit) => "OVER_LIMIT",
    };
    let remaining: Vec<u64> = decision.statuses.iter().map(remaining).collect();
    let rules: Vec<String> =
        decision.statuses.iter().map(|status| matched(status).to_owned()).collect();
    spell(
        call.code.and(Some(code)),
        call.remaining.as_ref().map(|_| &*remaining),
        call.rules.as_ref().map(|_| &*rules),
    )
}

/// What has become of the commit of a call, on the first of its limits where it has an effect.
fn commit(decision: &Decision) -> Option<&Committed> {
    let has_effect = |commit: &&Committed| commit.outcome == Some(CommitOutcome::Applied);
    decision.commits.iter().find(has_effect).or_else(|| decision.commits.first())
}

/// Whether the call is a commit by token, which charges nothing else.
fn is_commit(decision: &Decision) -> bool {
    decision.commits.first().is_some_and(|commit| commit.deadline.is_some())
}

fn remaining(status: &Status) -> u64 {
    match status.outcome {
        Outcome::Unlimited => u64::from(u32::MAX),
        Outcome::Within { remaining, .. } => remaining,
        Outcome::NoLimit | Outcome::Over { .. } => 0,
    }
}

fn matched(status: &Status) -> &str {
    match &status.matched {
        Matched::Rule(_, rule) => &rule.path,
        Matched::Override(_) | Matched::NoLimit(_) | Matched::NoRule(_) | Matched::NoDomain => {
            NO_RULE
        }
    }
}

fn spell(code: Option<&str>, remaining: Option<&[u64]>, rules: Option<&[String]>) -> String {
    let mut parts = Vec::new();
    parts.extend(code.map(str::to_owned));
    if let Some(remaining) = remaining {
        let numbers: Vec<String> = remaining.iter().map(ToString::to_string).collect();
        parts.push(format!("remaining {}", numbers.join(", ")));
    }
    parts.extend(rules.map(|rules| format!("rule {}", rules.join(", "))));
    parts.join(", ")
}
