//! `tollkeeper status`: whether the replicas of a service are well, in one line each, and a line for each problem.

use std::{
    net::ToSocketAddrs as _,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use hyper::Method;
use serde_json::{Value, json};

use super::{
    admin::{self, AdminServer},
    output::{USAGE, complain, say},
};
use crate::{settings::Environment, text::printable::printable};

/// The time between the two readings from which rates come.
const BETWEEN: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(super) struct StatusFlags {
    /// Admin address of a replica, repeatable; a name stands for all of its addresses
    /// [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(long, value_name = "HOST:PORT")]
    addr: Vec<String>,
    #[command(flatten)]
    access: admin::AdminAccess,
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// What is known of one replica.
struct Replica {
    addr: String,
    /// The JSON of `/status`, or why there is none.
    status: Result<Value, String>,
    rates: Rates,
}

/// Per second, between two readings.
#[derive(Default)]
struct Rates {
    calls: f64,
    failed: f64,
    late: f64,
    by_failure_mode: f64,
    /// The fraction of the decisions that denied.
    denied: f64,
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
                problems.iter().for_each(|problem| text += &format!("  problem: {problem}\n"));
            }
            differ.iter().for_each(|problem| text += &format!("problem: {problem}\n"));
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

/// Reads every replica twice.
fn read_all(flags: &StatusFlags, environment: &Environment) -> Result<Vec<Replica>, String> {
    let mut addrs = Vec::new();
    for addr in &flags.addr {
        addrs.extend(all_addresses(admin::address(Some(addr), environment)?));
    }
    if addrs.is_empty() {
        addrs.push(admin::address(None, environment)?.to_owned());
    }
    let servers: Result<Vec<_>, _> =
        addrs.iter().map(|addr| AdminServer::new(addr, &flags.access)).collect();
    let servers = servers?;
    let read = |server: &AdminServer<'_>| {
        (Instant::now(), server.ask(Method::GET, "/status", String::new()))
    };
    let first: Vec<_> = servers.iter().map(read).collect();
    if first.iter().any(|(_, status)| status.is_ok()) {
        thread::sleep(BETWEEN);
    }
    let replicas = servers.iter().zip(first).map(|(server, (began, first))| {
        let (first, (ended, status)) = match first {
            Ok(first) => (first, read(server)),
            Err(problem) => (Value::Null, (began, Err(problem))),
        };
        let rates = status.as_ref().map(|last| Rates::between(&first, last, ended - began));
        Replica { addr: server.addr.to_owned(), rates: rates.unwrap_or_default(), status }
    });
    Ok(replicas.collect())
}

/// All addresses of a name, such as a headless service's; HOST:PORT itself if it has one, is local, or is unknown.
fn all_addresses(addr: &str) -> Vec<String> {
    let all: Vec<_> = addr.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if all.len() < 2 || all.iter().any(|addr: &std::net::SocketAddr| addr.ip().is_loopback()) {
        return vec![addr.to_owned()];
    }
    all.iter().map(ToString::to_string).collect()
}

/// The problem of replicas with different rules, which is short-lived while they load new ones.
fn differing_rules(replicas: &[Replica]) -> Option<String> {
    let mut versions: Vec<&str> =
        replicas.iter().filter_map(|replica| replica.at("/rules/version")?.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    (versions.len() > 1)
        .then(|| format!("the replicas have different rules: {}", versions.join(", ")))
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
        let (phase, version) = (self.text("/phase"), self.text("/tollkeeper_version"));
        let Rates { calls, denied, late, .. } = self.rates;
        format!(
            "{}, tollkeeper {version}, rules {}, {calls:.0} calls/s, {:.1} % denied, {late:.0} late/s",
            phase.replace('_', " "),
            self.text("/rules/version"),
            100.0 * denied,
        )
    }

    /// What an operator should look at, the gravest first.
    fn problems(&self) -> Vec<String> {
        if let Err(problem) = &self.status {
            return vec![problem.clone()];
        }
        let mut problems = Vec::new();
        let phase = self.text("/phase");
        if phase != "ready" {
            problems.push(format!("it is not ready: {}", phase.replace('_', " ")));
        }
        let servers = self.at("/numbers/servers").and_then(Value::as_array);
        for server in servers.map_or(&[][..], Vec::as_slice) {
            let address = server.get("address").and_then(Value::as_str).unwrap_or("?");
            let is = |name: &str| server.get(name).and_then(Value::as_bool);
            if is("up") == Some(false) {
                problems.push(format!("{address} does not answer, or takes no writes"));
            } else if is("breaker_open") == Some(true) {
                problems
                    .push(format!("{address}: its breaker is open, so calls do not wait for it"));
            }
        }
        for (rate, what) in [
            (self.rates.failed, "calls/s fail"),
            (self.rates.by_failure_mode, "charges/s are decided by on_store_failure"),
        ] {
            if rate > 0.0 {
                problems.push(format!("{rate:.1} {what}"));
            }
        }
        let refused = self.at("/rules/problems").and_then(Value::as_array);
        for problem in refused.into_iter().flatten().filter_map(Value::as_str) {
            problems.push(format!("newer rules are not in force: {problem}"));
        }
        problems
    }
}

impl Rates {
    #[expect(clippy::cast_precision_loss, reason = "counts of a second are small")]
    fn between(first: &Value, last: &Value, elapsed: Duration) -> Self {
        let grown = |path: &str| {
            let number = |value: &Value| value.pointer(path).and_then(Value::as_u64).unwrap_or(0);
            number(last).saturating_sub(number(first)) as f64
        };
        let rate = |path: &str| grown(path) / elapsed.as_secs_f64();
        let denied = grown("/numbers/decisions/over_limit");
        let passed = grown("/numbers/decisions/ok") + grown("/numbers/decisions/shadow");
        Self {
            calls: rate("/numbers/calls/count"),
            failed: rate("/numbers/calls_failed"),
            late: rate("/numbers/calls_late"),
            by_failure_mode: rate("/numbers/fallbacks"),
            denied: denied / (denied + passed).max(1.0),
        }
    }
}
