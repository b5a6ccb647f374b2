//! `tollkeeper replay`: decides recorded calls with other rules, on simulated time, and shows which verdicts change.

mod condition;
mod report;
mod suggest;

use std::{path::PathBuf, process::ExitCode};

use self::{condition::Condition, report::Changes, suggest::Demand};
use super::{
    output::{Ended, Failed, complain, pretty_json, say},
    recorded::{Call, Recording},
    simulated::SimulatedService,
};
use crate::{
    engine::{rule::ModeOverride, rule_set::RuleSet},
    rules::{self, LoadOptions},
    settings::{self, Environment},
};

/// How long a repeated commit is recognized.
const REPEATED_WITHIN_MS: i64 = 600_000;

#[derive(Debug, clap::Args)]
pub(super) struct ReplayFlags {
    /// Recorded files, or folders of them; recordings of several replicas are merged
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Rules to replay with: files, and folders
    #[arg(long, required = true, value_name = "PATH")]
    rules: Vec<PathBuf>,
    /// Compare with a replay with these rules, not with the recorded verdicts
    #[arg(long, value_name = "PATH")]
    against: Vec<PathBuf>,
    /// Overlay for the rules of --rules and of --against: a file or folder; may be repeated
    #[arg(long, value_name = "PATH")]
    rules_overlay: Vec<PathBuf>,
    /// Exit 1 if this is so, such as 'denied > 0.1 %': the newly denied of the compared calls; also with `admitted`
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Condition>,
    /// Also show what the keys of each limit need, and the limits that would deny 0, 0.1 and 1 % of it
    #[arg(long)]
    suggest: bool,
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: ReplayFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum ReplayFormat {
    #[default]
    Text,
    Json,
    /// For a pull request
    Markdown,
}

pub(super) fn main(flags: &ReplayFlags, environment: &Environment) -> Ended {
    let options = settings::rule_options(environment);
    let load = |paths: &[PathBuf]| load(paths, &flags.rules_overlay, options);
    let rules = load(&flags.rules)?;
    let against = match &flags.against[..] {
        [] => None,
        paths => Some(load(paths)?),
    };
    if options.defaults.mode_override != ModeOverride::AsWritten {
        complain(
            "TOLLKEEPER_SHADOW_MODE or a similar setting applies to this replay: no limit denies a call alone",
        );
    }
    let mut recording = Recording::open(&flags.paths)?;
    let mut changes = replay(&rules, against.as_ref(), &mut recording, flags.suggest);
    let conditions = flags.fail_if.iter();
    let mut problems: Vec<String> =
        conditions.filter_map(|condition| condition.problem(&changes)).collect();
    if changes.calls == 0 {
        problems.push("the recording has no calls".to_owned());
    } else if changes.calls == changes.without_store + changes.overridden {
        problems
            .push("no call can be compared: the store or overrides have decided all".to_owned());
    } else if changes.unmatched == changes.calls {
        problems.push(
            "no call matches a rule: do the rules name this domain and these keys?".to_owned(),
        );
    }
    changes.finish();
    let code = recording.end();
    let text = match flags.output {
        ReplayFormat::Text => changes.text(),
        ReplayFormat::Json => pretty_json(&changes),
        ReplayFormat::Markdown => changes.markdown(),
    };
    let code = if problems.is_empty() { code } else { ExitCode::FAILURE };
    let code = say(&text, code);
    problems.iter().for_each(complain);
    Ok(code)
}

fn load(paths: &[PathBuf], overlays: &[PathBuf], options: LoadOptions) -> Result<RuleSet, Failed> {
    let loaded = rules::load(paths, overlays, options);
    let loaded = loaded
        .map_err(|problems| Failed::problems(problems.iter().map(ToString::to_string).collect()))?;
    Ok(loaded.rules)
}

fn replay(
    rules: &RuleSet,
    against: Option<&RuleSet>,
    recording: &mut Recording,
    suggests: bool,
) -> Changes {
    let (mut new, mut old) = (SimulatedService::new(rules), against.map(SimulatedService::new));
    let (mut changes, mut demand) = (Changes::default(), Demand::default());
    for call in recording {
        let Call { at, request, meaning, hold, .. } = &call;
        let hold = (!hold.is_empty()).then_some(hold.as_bytes());
        let after = new.decide_seeing(request, *meaning, *at, hold, |plan| {
            if suggests {
                demand.add(plan, *at);
            }
        });
        let before = old.as_mut().map(|old| old.decide(request, *meaning, *at, hold));
        changes.add(&call, before.as_ref(), &after);
        for service in [Some(&mut new), old.as_mut()].into_iter().flatten() {
            service.forget_committed_before(at.shifted(-REPEATED_WITHIN_MS));
        }
    }
    changes.suggestions = suggests.then(|| demand.suggestions());
    changes
}
