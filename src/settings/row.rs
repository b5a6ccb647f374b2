//! One setting as a row: what help, docs/settings.md and the chart's tests show of it.

use super::form::Form;

const PREFIX: &str = "TOLLKEEPER_";

/// A setting, written where the field that it fills is read.
#[derive(Debug)]
pub(super) struct Setting<F> {
    /// The flag without its dashes, such as `grpc-addr`.
    pub flag: &'static str,
    /// The form of its values.
    pub form: F,
    /// The default as an operator would type it; in words where unset means something else than a
    /// value, and empty where it means nothing.
    pub default: &'static str,
    /// What it sets, for help and docs/settings.md.
    pub help: &'static str,
}

/// A setting without the type of its values.
#[derive(Debug, Clone)]
pub struct Row {
    /// The flag without its dashes, such as `grpc-addr`.
    pub flag: &'static str,
    /// What stands for a value in help, such as `IP:PORT`.
    pub value: String,
    /// The least and the greatest value.
    pub range: Option<(String, String)>,
    /// How often and with how many values the flag is written.
    pub arity: Arity,
    /// The default, or words for what holds without one.
    pub default: &'static str,
    /// What it sets.
    pub help: &'static str,
}

/// How a flag is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// `--flag` or `--flag=on|off`.
    Switch,
    /// `--flag VALUE`.
    Single,
    /// `--flag VALUE`, any number of times.
    Repeated,
}

impl<F: Form> Setting<F> {
    pub(super) fn row(&self) -> Row {
        let Self { flag, ref form, default, help } = *self;
        Row { flag, value: form.name(), range: form.range(), arity: form.arity(), default, help }
    }
}

impl Row {
    /// The environment variable: `TOLLKEEPER_GRPC_ADDR` for `grpc-addr`.
    pub fn variable(&self) -> String {
        variable(self.flag)
    }

    /// What help says of the flag.
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

pub(super) fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.replace('-', "_").to_ascii_uppercase())
}

/// Whether a variable is meant for us. Kubernetes injects others with our prefix for a Service called
/// `tollkeeper`: `TOLLKEEPER_PORT`, `TOLLKEEPER_SERVICE_HOST`, …
pub(super) fn is_ours(variable: &str) -> bool {
    let injected = variable.ends_with("_PORT")
        || variable.contains("_PORT_")
        || variable.contains("_SERVICE_");
    variable.starts_with(PREFIX) && !injected
}
