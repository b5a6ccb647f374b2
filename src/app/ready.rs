//! The line on stdout that says the service is ready: text, or a JSON object under `--log-format json`.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use serde_json::json;

use super::listeners::Addresses;
use crate::{engine::rule_set::RuleSet, printable::printable, rules, telemetry::LogFormat};

/// What the line says.
pub(super) struct ReadyLine {
    pub addresses: Addresses,
    /// The store, with its password masked.
    pub store: String,
    /// Where the rules come from.
    pub rules: Vec<String>,
    /// The domain and the descriptor of a call to try.
    pub call: String,
}

impl ReadyLine {
    pub(super) fn written(&self, format: LogFormat) -> String {
        let Self { addresses, store, rules, call } = self;
        let call = format!("tollkeeper call --addr {} {call}", addresses.grpc);
        match format {
            LogFormat::Text => {
                let rules = rules.join(" ");
                format!("tollkeeper ready: {addresses}, store {store}, rules {rules}; try: {call}")
            }
            LogFormat::Json => json!({
                "message": "tollkeeper ready",
                "grpc": addresses.grpc.to_string(),
                "http": addresses.http.to_string(),
                "admin": addresses.admin.map(|admin| admin.to_string()),
                "store": store,
                "rules": rules,
                "try": call,
            })
            .to_string(),
        }
    }
}

/// Writes a line to stdout. Where nobody can read it the service runs all the same.
pub(super) fn say(line: &str) {
    let mut out = io::stdout().lock();
    drop(writeln!(out, "{}", printable(line.as_bytes())).and_then(|()| out.flush()));
}

/// Where the rules come from, for the ready line.
pub(super) fn rules_named(paths: &[PathBuf]) -> Vec<String> {
    if paths.is_empty() {
        return vec!["examples/rules.yaml (built in)".to_owned()];
    }
    paths.iter().map(|path| rules::file_name(path)).collect()
}

/// A domain and a descriptor that match the first rule.
pub(super) fn a_call_to_try(rules: &RuleSet) -> String {
    for domain in rules.domains() {
        if let Some(rule) = domain.rules().into_iter().next() {
            return format!("--domain {} {}", domain.name, descriptor(&rule.path));
        }
    }
    "--domain NAME key=value".to_owned()
}

/// A descriptor for a rule's path. A configured value that holds a `|` is cut there; this is only a
/// hint.
fn descriptor(path: &str) -> String {
    let mut entries = Vec::new();
    for step in path.split('|') {
        let value = if step.contains('=') { "" } else { "=alice" };
        entries.push(format!("{step}{value}"));
    }
    entries.join(",")
}
