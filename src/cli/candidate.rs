//! `tollkeeper candidate`: what other rules would change, and orders to put them in force, or to end their trial.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use hyper::Method;
use serde_json::Value;

use super::{
    admin::{self, AdminFlags, ReplicaFlags, instant, list, number, path_and_query, text},
    output::{Ended, OutputFlag, say, usage},
};
use crate::{candidate::OrderKind, settings::Environment, text::printable::printable_lines};

const PATH: &str = "/candidate";

#[derive(Debug, clap::Subcommand)]
pub(super) enum CandidateAction {
    /// Show which verdicts the candidate would change, by rule
    Show(ShowFlags),
    /// Put the candidate in force on all replicas, in place of the rules
    Promote(OrderFlags),
    /// Stop judging calls by the candidate; if it was promoted, the rules are in force again
    Abort(OrderFlags),
    /// Judge calls by the candidate again; if it was promoted, the rules are in force again
    Judge(OrderFlags),
}

#[derive(Debug, clap::Args)]
pub(super) struct ShowFlags {
    #[command(flatten)]
    replicas: ReplicaFlags,
    #[command(flatten)]
    output: OutputFlag,
}

#[derive(Debug, clap::Args)]
pub(super) struct OrderFlags {
    #[command(flatten)]
    admin: AdminFlags,
    /// Version of the candidate, as `show` prints it; without it, the one that the replica has
    version: Option<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    because: Option<String>,
}

pub(super) fn main(action: &CandidateAction, environment: &Environment) -> Ended {
    let (flags, order) = match action {
        CandidateAction::Show(flags) => return show(flags, environment),
        CandidateAction::Promote(flags) => (flags, OrderKind::Promote),
        CandidateAction::Abort(flags) => (flags, OrderKind::Abort),
        CandidateAction::Judge(flags) => (flags, OrderKind::Judge),
    };
    flags.admin.with_server(environment, |server| {
        let version = match &flags.version {
            Some(version) => version.clone(),
            None => text(&server.ask(Method::GET, PATH, String::new())?, "version").to_owned(),
        };
        let because = flags.because.as_deref().map(|because| ("because", because));
        let parameters =
            [("order", order.name()), ("version", &*version)].into_iter().chain(because);
        let path = path_and_query(PATH, parameters);
        let answer = server.ask(Method::POST, &path, String::new())?;
        let others = "other replicas with the same rules and candidate follow within a second";
        Ok(flags.admin.show(server, &answer, |answer| format!("{}; {others}\n", state(answer))))
    })
}

fn show(flags: &ShowFlags, environment: &Environment) -> Ended {
    let servers = flags.replicas.servers(environment).map_err(usage)?;
    let (answers, code) = admin::answers(&servers, PATH)?;
    if flags.output.is_json() {
        return Ok(say(&admin::json_of(&servers, answers), code));
    }
    let mut lines = String::new();
    for (addr, answer) in &answers {
        lines += &format!("{addr}: {}\n", state(answer));
        let problems = list(answer, "problems").iter().filter_map(Value::as_str);
        let own = Some(text(answer, "problem")).filter(|problem| !problem.is_empty());
        problems.chain(own).for_each(|problem| lines += &format!("  {problem}\n"));
    }
    let answers = answers.iter().map(|(_, answer)| answer);
    let judging = answers.filter(|answer| text(answer, "state") == "judged");
    let versions: BTreeSet<&str> = judging.clone().map(|answer| text(answer, "version")).collect();
    if versions.len() > 1 {
        lines += "the replicas judge different candidates, so the numbers below are a mixture\n";
    }
    lines += &changes(judging);
    Ok(say(&printable_lines(&lines), code))
}

/// What the candidate is, in a clause.
fn state(answer: &Value) -> String {
    let [version, rules] = ["version", "rules_version"].map(|name| text(answer, name));
    let (since, one_in) = (instant(number(answer, "since_ms")), number(answer, "one_in"));
    match text(answer, "state") {
        "judged" => {
            let keys = match one_in {
                1 => "every key".to_owned(),
                _ => format!("one key in {one_in}"),
            };
            format!("candidate {version} judges {keys} beside rules {rules} since {since}")
        }
        "in_force" => {
            match answer.get("promoted").filter(|order| text(order, "candidate") == version) {
                Some(order) => {
                    let [by, because] = ["by", "because"].map(|name| text(order, name));
                    let because =
                        if because.is_empty() { String::new() } else { format!(": {because}") };
                    let at = instant(number(order, "at_ms"));
                    format!("candidate {version} is in force, promoted at {at} by {by}{because}")
                }
                None => format!("candidate {version} has the rules that are in force"),
            }
        }
        "waiting" => format!("candidate {version} begins to judge beside rules {rules}"),
        "aborted" => format!("candidate {version} is not judged; rules {rules} are in force"),
        _ => format!("no candidate is loaded; rules {rules} are in force"),
    }
}

/// The changes of the replicas that judge; nothing without one.
fn changes<'a>(answers: impl Iterator<Item = &'a Value>) -> String {
    const COUNTS: [&str; 3] = ["same", "newly_denied", "newly_admitted"];
    let (mut left_out, mut by_rule) = (0, BTreeMap::<(&str, &str), [u64; 3]>::new());
    for answer in answers {
        left_out += number(answer, "left_out");
        for rule in list(answer, "rules") {
            let sums = by_rule.entry((text(rule, "domain"), text(rule, "rule"))).or_default();
            let counts = COUNTS.map(|name| number(rule, name));
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    let mut rules: Vec<_> = by_rule.into_iter().collect();
    rules.sort_by_key(|(_, [_, denied, admitted])| Reverse(denied + admitted));
    let mut lines = String::new();
    for ((domain, rule), [same, denied, admitted]) in rules {
        let compared = same + denied + admitted;
        lines += &format!("\n{domain}  {rule}\n");
        lines += &match compared {
            0 => "  no descriptor of its keys in the sample was compared\n".to_owned(),
            _ => format!(
                "  {denied} newly denied, {admitted} newly admitted, of {compared} that were compared\n"
            ),
        };
    }
    if left_out > 0 {
        lines += &format!(
            "\nnot judged in time: {left_out} calls, so fewer may be newly denied, and more newly admitted\n"
        );
    }
    if !lines.is_empty() {
        lines += "\n`tollkeeper top` lists the keys that are newly denied or admitted.\n";
    }
    lines
}
