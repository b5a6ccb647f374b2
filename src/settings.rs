//! Settings: flags, environment variables and a file, checked once at the start.
//!
//! Each setting is written in one place: the row with which its component reads it. The command line,
//! docs/settings.md and the tests of the chart are made from [`table`].

mod calls;
mod envoyproxy_ratelimit;
mod listen;
mod notices;
mod otel;
mod process;
mod reader;
mod rules;
mod store;
mod telemetry;
mod tls;

pub(crate) use self::reader::{
    form::{whole_number, whole_numbers},
    row::former_name,
};
pub use self::{
    calls::CallSettings,
    envoyproxy_ratelimit::{
        ENVOYPROXY_RATELIMIT_PROGRAM, EnvoyproxyRatelimitVariable, envoyproxy_ratelimit_variables,
    },
    listen::{ListenSettings, TlsScope},
    process::{HangUp, ProcessSettings},
    reader::{
        CONFIG,
        environment::{Environment, Given, TypedFlags},
        form::Arity,
        row::Row,
    },
    rules::{RuleSettings, RulesNeeded, source::RuleSource},
    store::{
        ReadyNeeds, StoreSettings,
        url::{RedisUrl, StoreUrl, TopologyKind},
    },
    telemetry::TelemetrySettings,
};

use std::net::SocketAddr;

use self::{envoyproxy_ratelimit::Compat, reader::SettingReader};
use crate::rules::{Algorithms, LoadOptions};

#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the service listens, and what it serves there.
    pub listen: ListenSettings,
    /// Which rules are in force, and the defaults for all rules.
    pub rules: RuleSettings,
    /// Where counters are kept, and how long a decision may wait for them.
    pub store: StoreSettings,
    /// Bounds on a request, and the content of its answer.
    pub calls: CallSettings,
    pub telemetry: TelemetrySettings,
    pub process: ProcessSettings,
    /// Probable mistakes, which do not keep the service from starting.
    pub warnings: Vec<String>,
}

#[derive(Debug)]
pub struct Resolved {
    /// The settings, with the default in place of each bad value.
    pub settings: Settings,
    /// Every problem, under the flag or variable that was used. The service does not start if there is one.
    pub problems: Vec<String>,
    /// How many of them come before the problems of the rules' paths, by the line of the file that names these.
    pub before_rules: usize,
}

/// Reads every setting: the flag, else the variable, else the file, else the default.
pub fn resolve(flags: &TypedFlags, environment: &Environment) -> Resolved {
    let mut reader = SettingReader::new(flags, environment);
    let mut settings = read(&mut reader);
    reader.warn_unknown_variables();
    let rows = std::mem::take(&mut reader.rows);
    reader.refuse_unknown_names(&rows);
    settings.warnings = std::mem::take(&mut reader.warnings);
    let rules = reader.given("rules").and_then(|given| given.location);
    let before_rules = reader.problems.iter().filter(|(location, _)| *location <= rules).count();
    Resolved { settings, problems: reader.into_problems(), before_rules }
}

/// The options of rules of a service with this environment, for commands that load rules themselves.
pub fn rule_options(environment: &Environment) -> LoadOptions {
    resolve(&TypedFlags::new(), environment).settings.rules.options
}

/// The address of gRPC that a service with these flags and variables has, for its health checks.
pub fn grpc_address(
    flags: &TypedFlags,
    environment: &Environment,
) -> Result<SocketAddr, Vec<String>> {
    let mut reader = SettingReader::new(flags, environment);
    reader.read_file();
    Compat::read(&mut reader);
    let address = ListenSettings::read_grpc(&mut reader);
    reader.refuse_unknown_names(&table());
    if reader.problems.is_empty() { Ok(address.value) } else { Err(reader.into_problems()) }
}

/// Every setting, in the order of help and docs/settings.md.
pub fn table() -> Vec<Row> {
    let (flags, environment) = Default::default();
    let mut reader = SettingReader::new(&flags, &environment);
    read(&mut reader);
    reader.rows
}

fn read(reader: &mut SettingReader<'_>) -> Settings {
    reader.read_file();
    let hang_up = match Compat::read(reader) {
        Compat::Off => HangUp::Ignored,
        Compat::EnvoyproxyRatelimit => HangUp::Stops,
    };
    let settings = Settings {
        listen: ListenSettings::read(reader.under("Addresses, TLS and access")),
        rules: RuleSettings::read(reader.under("Rules and limits")),
        store: StoreSettings::read(reader.under("Store")),
        calls: CallSettings::read(reader.under("Calls and answers")),
        telemetry: TelemetrySettings::read(reader.under("Telemetry")),
        process: ProcessSettings::read(reader.under("Process"), hang_up),
        warnings: Vec::new(),
    };
    if let StoreUrl::Redis(RedisUrl { topology: TopologyKind::Cluster, .. }) = settings.store.url
        && settings.rules.options.algorithms == Algorithms::FixedWindow
    {
        reader.problem("redis-scripts", "must be on for a cluster");
    }
    settings
}

#[cfg(test)]
mod tests;
