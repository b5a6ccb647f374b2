//! `tollkeeper test`: tries rules on simulated time, and tells where they do something else than is
//! expected.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{complain, say};
use crate::{
    engine::decision::{Code, Outcome},
    engine::{
        decision::Decision, ledger::Judgement, plan::Plan, rule_set::RuleSet, time::Timestamp,
    },
    rules::{
        self, Basis,
        cases::{self, Call, Case},
    },
    store::memory::MemoryStore,
};

#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// Files of tests, and folders: there every file whose name ends in .test.yaml
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn main(flags: &Flags) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    let mut fail = |told: String| {
        complain(told);
        failed += 1;
    };
    for path in &flags.paths {
        let files = match files(path) {
            Ok(files) if !files.is_empty() => files,
            Ok(_) => {
                fail(format!("{}: no file whose name ends in .test.yaml", rules::file_name(path)));
                continue;
            }
            Err(error) => {
                fail(format!("{}: {error}", rules::file_name(path)));
                continue;
            }
        };
        for file in files {
            match load(&file) {
                Ok((rules, cases)) => {
                    for case in &cases {
                        match run(&rules, case) {
                            Ok(()) => passed += 1,
                            Err(difference) => fail(difference),
                        }
                    }
                }
                Err(problems) => fail(problems),
            }
        }
    }
    match failed {
        0 => say(&format!("ok: {passed} passed\n"), ExitCode::SUCCESS),
        _ => {
            complain(format_args!("{passed} passed, {failed} failed"));
            ExitCode::FAILURE
        }
    }
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().ends_with(b".test.yaml") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn load(file: &Path) -> Result<(RuleSet, Vec<Case>), String> {
    let words = |problems: Vec<rules::Problem>| {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let suite = cases::read(file).map_err(words)?;
    let rules = rules::load(&suite.rules, Basis::default()).map_err(words)?;
    Ok((rules.rules, suite.cases))
}

/// Runs one test, up to the first difference.
fn run(rules: &RuleSet, case: &Case) -> Result<(), String> {
    let store = MemoryStore::new(|| Timestamp::from_millis(0));
    for call in &case.calls {
        let plan = Plan::draw(rules, &call.request);
        let Judgement { tallies, denied, .. } = store.charge_at(&plan.charges, call.now);
        let decision = plan.settle(tallies, denied);
        let (expected, happened) = (expected(call), happened(call, &decision));
        if expected != happened {
            let Call { place, at, written, .. } = call;
            let asked = written.join(" ");
            return Err(format!(
                "{place}: {}, at {at}: {asked}\n  expected: {expected}\n  happened: {happened}",
                case.name
            ));
        }
    }
    Ok(())
}

fn expected(call: &Call) -> String {
    spell(call.code.clone(), call.remaining.clone())
}

/// As much of the decision as something is expected of.
fn happened(call: &Call, decision: &Decision) -> String {
    let code = match decision.code {
        Code::Ok => "OK".to_owned(),
        Code::OverLimit => "OVER_LIMIT".to_owned(),
    };
    let remaining = decision.statuses.iter().map(|status| match status.outcome {
        Outcome::Unlimited => u32::MAX,
        Outcome::Within { remaining, .. } => remaining,
        Outcome::NoLimit | Outcome::Shadowed { .. } | Outcome::Over { .. } => 0,
    });
    spell(
        call.code.is_some().then_some(code),
        call.remaining.is_some().then(|| remaining.collect()),
    )
}

fn spell(code: Option<String>, remaining: Option<Vec<u32>>) -> String {
    let remaining = remaining.map(|it| {
        let numbers: Vec<String> = it.iter().map(ToString::to_string).collect();
        format!("remaining {}", numbers.join(", "))
    });
    code.into_iter().chain(remaining).collect::<Vec<_>>().join(", ")
}
