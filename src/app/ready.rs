//! The line on stdout that reports the service as ready: text, or a JSON object with `--log-format json`.

use std::io::{self, Write as _};

use serde_json::json;

use super::listeners::Addresses;
use crate::{
    engine::rule_set::RuleSet, settings::RuleSource, telemetry::LogFormat,
    text::printable::printable, yaml,
};

pub(super) struct ReadyLine {
    pub addresses: Addresses,
    /// The store, with its password masked.
    pub store: String,
    pub rules: Vec<String>,
    /// The numbers of domains and of rules in force.
    pub counts: (usize, usize),
    /// Arguments of `tollkeeper call` for an example call.
    pub call: String,
}

impl ReadyLine {
    pub(super) fn format(&self, format: LogFormat) -> String {
        let Self { addresses, store, rules, counts: (domains, rule_count), call } = self;
        let call = format!("tollkeeper call {} {call}", addresses.call_flags);
        match format {
            LogFormat::Text => {
                let rules = rules.join(" ");
                format!(
                    "tollkeeper ready: {addresses}, store {store}, \
                     rules {rules} (domains: {domains}, rules: {rule_count}); try: {call}"
                )
            }
            LogFormat::Json => json!({
                "message": "tollkeeper ready",
                "grpc": addresses.grpc.to_string(),
                "http": addresses.http.to_string(),
                "admin": addresses.admin.map(|admin| admin.to_string()),
                "metrics": addresses.metrics.map(|metrics| metrics.to_string()),
                "debug": addresses.debug.map(|debug| debug.to_string()),
                "store": store,
                "rules": rules,
                "domains": domains,
                "rule_count": rule_count,
                "try": call,
            })
            .to_string(),
        }
    }
}

/// Writes a line to stdout. The service runs even if stdout is closed.
pub(super) fn print(line: &str) {
    let mut out = io::stdout().lock();
    drop(writeln!(out, "{}", printable(line.as_bytes())).and_then(|()| out.flush()));
}

pub(super) fn rule_sources(source: &RuleSource) -> Vec<String> {
    match source {
        RuleSource::Files(paths) if paths.is_empty() => {
            vec!["examples/rules.yaml (built in)".to_owned()]
        }
        RuleSource::Files(paths) => paths.iter().map(|path| yaml::file_name(path)).collect(),
        RuleSource::ControlPlane(target) => vec![target.to_string()],
    }
}

/// Arguments of `tollkeeper call` that match the first rule.
pub(super) fn example_call(rules: &RuleSet) -> String {
    for domain in rules.domains() {
        if let Some(rule) = domain.rules().into_iter().next() {
            return format!(
                "--domain {} {}",
                quoted(&domain.name),
                quoted(&descriptor(&rule.path))
            );
        }
    }
    "--domain NAME key=value".to_owned()
}

/// A word of a shell's command line.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A descriptor that matches a rule's path. It is only a hint: a configured value is cut at a `|`.
fn descriptor(path: &str) -> String {
    let mut entries = Vec::new();
    for step in path.split('|') {
        let value = if step.contains('=') { "" } else { "=alice" };
        entries.push(format!("{step}{value}"));
    }
    entries.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_a_meaning_for_the_shell_is_quoted() {
        for (word, expected) in [
            ("shop", "shop"),
            ("path=/login,user=alice", "path=/login,user=alice"),
            ("a b", "'a b'"),
            ("$(id);*", "'$(id);*'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
