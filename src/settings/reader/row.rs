//! One setting as a row, from which help, docs/settings.md and the chart's tests are made.

use super::form::Arity;

const PREFIX: &str = "TOLLKEEPER_";

/// Flags that had another name, which still works, also as a variable and in a file.
const FORMER_NAMES: [(&str, &str); 1] = [("exhausted-checks", "exhausted-looks")];

pub(crate) fn former_name(flag: &str) -> Option<&'static str> {
    FORMER_NAMES.iter().find(|(name, _)| *name == flag).map(|(_, former)| *former)
}

/// A setting without the type of its values.
#[derive(Debug, Clone)]
pub struct Row {
    /// The flag without its dashes, such as `grpc-addr`.
    pub flag: &'static str,
    /// Stands for a value in help, such as `IP:PORT`.
    pub value: String,
    pub range: Option<(String, String)>,
    pub arity: Arity,
    /// The default as an operator would type it; a phrase if no value means the same as unset, and empty
    /// if unset has no effect.
    pub default: &'static str,
    /// What it sets, for help and docs/settings.md.
    pub help: &'static str,
    /// The heading under which help lists it.
    pub heading: &'static str,
}

impl Row {
    /// The environment variable: `TOLLKEEPER_GRPC_ADDR` for `grpc-addr`.
    pub fn variable(&self) -> String {
        variable(self.flag)
    }

    pub fn description(&self) -> String {
        let mut text = self.help.to_owned();
        if let Some((min, max)) = &self.range {
            text += &format!(" [range: {min} to {max}]");
        }
        text += &format!(" [env: {}]", self.variable());
        if !self.default.is_empty() {
            text += &format!(" [default: {}]", self.default);
        }
        text
    }
}

pub(crate) fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.replace('-', "_").to_ascii_uppercase())
}

/// Whether a variable is meant for tollkeeper. Kubernetes injects others with our prefix for a Service called
/// `tollkeeper`: `TOLLKEEPER_PORT`, `TOLLKEEPER_SERVICE_HOST`, …
pub(crate) fn is_ours(variable: &str) -> bool {
    let injected = variable.ends_with("_PORT")
        || variable.contains("_PORT_")
        || variable.contains("_SERVICE_");
    variable.starts_with(PREFIX) && !injected
}
