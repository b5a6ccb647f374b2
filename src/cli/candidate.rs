//! `tollkeeper candidate`: what other rules would change, and orders to put them in force, or to end their trial.

use std::{collections::BTreeMap, process::ExitCode};

use hyper::Method;
use serde_json::Value;

use super::{
    admin::{AdminFlags, AdminServer, ReplicaFlags, instant, list, number, path_and_query, text},
    output::{Ended, OutputFlag, failure, pretty_json, say, usage},
};
use crate::{settings::Environment, text::printable::printable_lines};

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
        CandidateAction::Promote(flags) => (flags, "promote"),
        CandidateAction::Abort(flags) => (flags, "abort"),
        CandidateAction::Judge(flags) => (flags, "judge"),
    };
    flags.admin.with_server(environment, |server| {
        let version = match &flags.version {
            Some(version) => version.clone(),
            None => text(&ask(server)?, "version").to_owned(),
        };
        let because = flags.because.as_deref().map(|because| ("because", because));
        let parameters = [("order", order), ("version", &*version)].into_iter().chain(because);
        let path = path_and_query("/candidate", parameters);
        let answer = server.ask(Method::POST, &path, String::new())?;
        let others = "other replicas with the same rules and candidate follow within a second";
        Ok(flags.admin.show(server, &answer, |answer| format!("{}; {others}\n", state(answer))))
    })
}

fn ask(server: &AdminServer<'_>) -> Result<Value, String> {
    server.ask(Method::GET, "/candidate", String::new())
}

fn show(flags: &ShowFlags, environment: &Environment) -> Ended {
    let servers = flags.replicas.servers(environment).map_err(usage)?;
    let mut answers = servers.iter().map(ask).collect::<Result<Vec<_>, _>>().map_err(failure)?;
    if flags.output.is_json() {
        let json = if answers.len() == 1 { answers.remove(0) } else { Value::Array(answers) };
        return Ok(say(&pretty_json(&json), ExitCode::SUCCESS));
    }
    let mut lines = String::new();
    for (server, answer) in servers.iter().zip(&answers) {
        lines += &format!("{}: {}\n", server.addr, state(answer));
        let problems = list(answer, "problems").iter().filter_map(Value::as_str);
        let own = Some(text(answer, "problem")).filter(|problem| !problem.is_empty());
        problems.chain(own).for_each(|problem| lines += &format!("  {problem}\n"));
    }
    lines += &changes(&answers);
    Ok(say(&printable_lines(&lines), ExitCode::SUCCESS))
}

/// What the candidate is, in a clause.
fn state(answer: &Value) -> String {
    let [version, rules] = ["version", "rules_version"].map(|name| text(answer, name));
    let (since, one_in) = (instant(number(answer, "since_ms")), number(answer, "one_in"));
    match text(answer, "state") {
        "judged" => format!(
            "candidate {version} judges one key in {one_in} beside rules {rules} since {since}"
        ),
        "in_force" => format!("candidate {version} is in force"),
        "aborted" => format!("candidate {version} is not judged; rules {rules} are in force"),
        _ => format!("no candidate is loaded; rules {rules} are in force"),
    }
}

/// The changes of all replicas.
fn changes(answers: &[Value]) -> String {
    const COUNTS: [&str; 3] = ["same", "newly_denied", "newly_admitted"];
    let counts = |value: &Value| COUNTS.map(|name| number(value, name));
    let (mut sums, mut left_out) = ([0; 3], 0);
    let mut by_rule: BTreeMap<(&str, &str), [u64; 3]> = BTreeMap::new();
    let add = |sums: &mut [u64; 3], counts: [u64; 3]| {
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    };
    for answer in answers {
        add(&mut sums, counts(answer));
        left_out += number(answer, "left_out");
        for rule in list(answer, "rules") {
            let name = (text(rule, "domain"), text(rule, "rule"));
            add(by_rule.entry(name).or_default(), counts(rule));
        }
    }
    let [same, denied, admitted] = sums;
    let mut text = format!(
        "descriptors of these keys that were compared: {}\nnewly denied: {denied}\nnewly admitted: {admitted}\n",
        same + denied + admitted
    );
    if left_out > 0 {
        text += &format!("calls that were not judged, so that more may be admitted: {left_out}\n");
    }
    let mut changed: Vec<_> =
        by_rule.into_iter().filter(|(_, [_, denied, admitted])| denied + admitted > 0).collect();
    changed.sort_by_key(|(_, [_, denied, admitted])| std::cmp::Reverse(denied + admitted));
    for ((domain, rule), [same, denied, admitted]) in changed {
        let of = same + denied + admitted;
        text += &format!(
            "\n{domain}  {rule}\n  {denied} newly denied, {admitted} newly admitted, of {of}\n"
        );
    }
    if denied + admitted > 0 {
        text += "\n`tollkeeper top` lists the keys.\n";
    }
    text
}
