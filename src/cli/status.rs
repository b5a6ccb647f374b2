//! `tollkeeper status`: whether the replicas of a service are well, in one line each, and a line for each problem.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    admin::{AdminServer, ReplicaFlags, ask_each},
    output::{Ended, OutputFlag, pretty_json, say, usage},
};
use crate::{settings::Environment, text::printable::printable};

#[derive(Debug, clap::Args)]
pub(super) struct StatusFlags {
    #[command(flatten)]
    replicas: ReplicaFlags,
    #[command(flatten)]
    output: OutputFlag,
}

struct Replica<'a> {
    addr: &'a str,
    /// Or the reason why it cannot be read.
    status: Result<ReplicaStatus, String>,
}

/// The JSON of `/status`. What another version lacks is 0, or `?`.
pub(super) struct ReplicaStatus(pub(super) Value);

pub(super) fn main(flags: &StatusFlags, environment: &Environment) -> Ended {
    let servers = flags.replicas.servers(environment).map_err(usage)?;
    let statuses = ReplicaStatus::of_each(&servers).into_iter();
    let replicas: Vec<_> = statuses.map(|(addr, status)| Replica { addr, status }).collect();
    let differ = differing_rules(&replicas);
    let mut problems: Vec<Vec<String>> = replicas.iter().map(Replica::problems).collect();
    let is_well = problems.iter().all(Vec::is_empty) && differ.is_none();
    let text = if flags.output.is_json() {
        let of_each = replicas.into_iter().zip(problems.iter_mut());
        let of_each = of_each.map(|(replica, problems)| {
            let status = replica.status.ok().map(|status| status.0);
            json!({ "addr": replica.addr, "problems": problems, "status": status })
        });
        let problems: Vec<String> = differ.into_iter().collect();
        pretty_json(&json!({ "replicas": of_each.collect::<Vec<_>>(), "problems": problems }))
    } else {
        let mut text = String::new();
        for (replica, problems) in replicas.iter().zip(&problems) {
            text += &format!("{}: {}\n", replica.addr, replica.summary());
            problems.iter().for_each(|problem| text += &format!("  {problem}\n"));
        }
        differ.iter().for_each(|problem| text += &format!("{problem}\n"));
        text
    };
    Ok(say(&text, if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// The problem of replicas with different rules, which is short-lived while they load new ones.
fn differing_rules(replicas: &[Replica<'_>]) -> Option<String> {
    let known = replicas.iter().filter_map(|replica| replica.status.as_ref().ok());
    let mut versions: Vec<&str> =
        known.filter_map(|status| status.0.pointer("/rules/version")?.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    (versions.len() > 1)
        .then(|| format!("amber: the replicas have different rules: {}", versions.join(", ")))
}

impl Replica<'_> {
    fn summary(&self) -> String {
        let Ok(status) = &self.status else { return "no status".to_owned() };
        let text = |path| printable(text(&status.0, path).as_bytes());
        let (phase, version) = (text("/phase"), text("/tollkeeper_version"));
        format!(
            "{}, {}, tollkeeper {version}, rules {}, {:.0} calls/s, {:.1} % denied, {:.0} late/s",
            text("/severity"),
            phase.replace('_', " "),
            text("/rules/version"),
            status.recent("calls"),
            100.0 * status.recent("denied") / status.recent("decisions").max(f64::MIN_POSITIVE),
            status.recent("late"),
        )
    }

    /// What an operator should look at, the gravest first.
    fn problems(&self) -> Vec<String> {
        match self.status.as_ref().map(ReplicaStatus::conditions) {
            Err(problem) => vec![format!("red: {problem}")],
            Ok(None) => {
                vec!["red: its /status has no conditions; is it another version?".to_owned()]
            }
            Ok(Some(conditions)) => {
                conditions.map(|[_, severity, text]| format!("{severity}: {text}")).collect()
            }
        }
    }
}

impl ReplicaStatus {
    /// The address and the status of each replica.
    pub(super) fn of_each<'a>(
        servers: &'a [AdminServer<'_>],
    ) -> Vec<(&'a str, Result<Self, String>)> {
        let answers = ask_each(servers, "/status").into_iter();
        answers.map(|(addr, answer)| (addr, answer.map(Self))).collect()
    }

    /// A number of the last seconds.
    pub(super) fn recent(&self, name: &str) -> f64 {
        let number = self.0.get("recent").and_then(|recent| recent.get(name)?.as_f64());
        number.unwrap_or(0.0)
    }

    /// What an operator should look at, the gravest first: what each is about, how grave it is, and a sentence; `None` if
    /// the replica does not judge its state.
    pub(super) fn conditions(&self) -> Option<impl Iterator<Item = [&str; 3]>> {
        let conditions = self.0.get("conditions")?.as_array()?.iter();
        Some(conditions.map(|one| ["/about", "/severity", "/text"].map(|path| text(one, path))))
    }
}

fn text<'value>(value: &'value Value, path: &str) -> &'value str {
    value.pointer(path).and_then(Value::as_str).unwrap_or("?")
}
