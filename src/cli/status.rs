//! `tollkeeper status`: whether the replicas of a service are well, in one line each, and a line for each problem.

use std::process::ExitCode;

use hyper::Method;
use serde_json::{Value, json};

use super::{
    admin::{self, AdminServer},
    output::{Format, USAGE, complain, say},
};
use crate::{settings::Environment, text::printable::printable};

#[derive(Debug, clap::Args)]
pub(super) struct StatusFlags {
    /// Admin address of a replica, repeatable; a name stands for all of its addresses
    /// [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(short, long, alias = "admin-addr", value_name = "HOST:PORT")]
    addr: Vec<String>,
    #[command(flatten)]
    access: admin::AdminAccess,
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// What is known of one replica.
struct Replica {
    addr: String,
    /// The JSON of `/status`, or the reason why it cannot be read.
    status: Result<Value, String>,
}

pub(super) fn main(flags: &StatusFlags, environment: &Environment) -> ExitCode {
    let replicas = match read_all(flags, environment) {
        Ok(replicas) => replicas,
        Err(problem) => {
            complain(problem);
            return ExitCode::from(USAGE);
        }
    };
    let differ = differing_rules(&replicas);
    let mut problems: Vec<Vec<String>> = replicas.iter().map(Replica::problems).collect();
    let is_well = problems.iter().all(Vec::is_empty) && differ.is_none();
    let text = match flags.output {
        Format::Text => {
            let mut text = String::new();
            for (replica, problems) in replicas.iter().zip(&problems) {
                text += &format!("{}: {}\n", replica.addr, replica.summary());
                problems.iter().for_each(|problem| text += &format!("  {problem}\n"));
            }
            differ.iter().for_each(|problem| text += &format!("{problem}\n"));
            text
        }
        Format::Json => {
            let of_each = replicas.into_iter().zip(problems.iter_mut());
            let of_each = of_each.map(|(replica, problems)| {
                json!({ "addr": replica.addr, "problems": problems, "status": replica.status.ok() })
            });
            let problems: Vec<String> = differ.into_iter().collect();
            format!(
                "{:#}\n",
                json!({ "replicas": of_each.collect::<Vec<_>>(), "problems": problems })
            )
        }
    };
    say(&text, if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_all(flags: &StatusFlags, environment: &Environment) -> Result<Vec<Replica>, String> {
    let addrs = admin::addresses(&flags.addr, environment)?;
    let servers: Result<Vec<_>, _> =
        addrs.iter().map(|addr| AdminServer::new(addr, &flags.access)).collect();
    let read = |server: AdminServer<'_>| Replica {
        addr: server.addr.to_owned(),
        status: server.ask(Method::GET, "/status", String::new()),
    };
    Ok(servers?.into_iter().map(read).collect())
}

/// The problem of replicas with different rules, which is short-lived while they load new ones.
fn differing_rules(replicas: &[Replica]) -> Option<String> {
    let mut versions: Vec<&str> =
        replicas.iter().filter_map(|replica| replica.at("/rules/version")?.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    (versions.len() > 1)
        .then(|| format!("amber: the replicas have different rules: {}", versions.join(", ")))
}

impl Replica {
    fn at(&self, path: &str) -> Option<&Value> {
        self.status.as_ref().ok()?.pointer(path)
    }

    fn text(&self, path: &str) -> String {
        let text = self.at(path).and_then(Value::as_str).unwrap_or("?");
        printable(text.as_bytes()).to_string()
    }

    fn summary(&self) -> String {
        if self.status.is_err() {
            return "no status".to_owned();
        }
        let rate =
            |name: &str| self.at(&format!("/recent/{name}")).and_then(Value::as_f64).unwrap_or(0.0);
        let (phase, version) = (self.text("/phase"), self.text("/tollkeeper_version"));
        format!(
            "{}, {}, tollkeeper {version}, rules {}, {:.0} calls/s, {:.1} % denied, {:.0} late/s",
            self.text("/severity"),
            phase.replace('_', " "),
            self.text("/rules/version"),
            rate("calls"),
            100.0 * rate("denied") / rate("decisions").max(f64::MIN_POSITIVE),
            rate("late"),
        )
    }

    /// What an operator should look at, the gravest first, as the replica judges it.
    fn problems(&self) -> Vec<String> {
        if let Err(problem) = &self.status {
            return vec![format!("red: {problem}")];
        }
        let Some(conditions) = self.at("/conditions").and_then(Value::as_array) else {
            return vec!["red: it does not judge its state; is it of another version?".to_owned()];
        };
        let text = |condition: &Value, name: &str| {
            condition.get(name).and_then(Value::as_str).unwrap_or("?").to_owned()
        };
        let line =
            |condition| format!("{}: {}", text(condition, "severity"), text(condition, "text"));
        conditions.iter().map(line).collect()
    }
}
