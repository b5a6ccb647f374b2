//! The environment of envoyproxy/ratelimit, translated into our settings. `table` lists its variables, and the other
//! files translate one group of them each.

mod answers;
mod go;
mod listen;
mod rules;
mod store;
mod table;
mod telemetry;
mod variable;

pub use variable::IncumbentVariable;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
};

use self::variable::Effect;
use super::environment::{Environment, TypedFlags};

/// The file name of its program. A program that is run by this name reads its environment.
pub const INCUMBENT_PROGRAM: &str = "ratelimit";

/// Whose environment the service reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compat {
    /// Ours alone.
    Off,
    /// Also the one of envoyproxy/ratelimit.
    EnvoyproxyRatelimit,
}

/// Every variable of envoyproxy/ratelimit, in the order of docs/migrating.md.
pub fn incumbent_variables() -> &'static [IncumbentVariable] {
    table::VARIABLES
}

/// What its environment says in our terms.
#[derive(Default)]
pub(super) struct Translated {
    /// Our settings by their flags.
    pub settings: BTreeMap<&'static str, TranslatedValue>,
    /// The standard variables of OpenTelemetry that follow.
    pub otel: Vec<(String, OsString)>,
    /// What describes this service in spans.
    pub resource: Vec<(&'static str, String)>,
    /// The user, if there is one, and the password at the Sentinels.
    pub sentinel_login: Option<(Option<String>, String)>,
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

/// A value of one of our settings.
pub(super) struct TranslatedValue {
    /// The variable that it comes from, for messages.
    pub variable: &'static str,
    /// Whether that variable is set; if not, the value is the default of envoyproxy/ratelimit.
    pub is_set: bool,
    /// As it is written for our flag.
    pub value: OsString,
}

/// Translates the environment. A bad value is a problem, and counts as unset.
pub(super) fn translate(flags: &TypedFlags, environment: &Environment) -> Translated {
    let mut translator = Translator {
        flags,
        environment,
        values: BTreeMap::new(),
        warned: BTreeSet::new(),
        out: Translated::default(),
    };
    translator.check_all();
    translator.listeners();
    translator.rules();
    translator.store();
    translator.answers();
    translator.telemetry();
    translator.out
}

struct Translator<'a> {
    flags: &'a TypedFlags,
    environment: &'a Environment,
    /// The good values of the variables that are set.
    values: BTreeMap<&'static str, &'a str>,
    /// The variables that a warning names: each is named once.
    warned: BTreeSet<String>,
    out: Translated,
}

impl<'a> Translator<'a> {
    /// Checks the form of every variable that is set, and warns about those that have no effect.
    fn check_all(&mut self) {
        for name in self.environment.names() {
            let Some(row) = table::VARIABLES.iter().find(|row| row.is_named(name)) else {
                continue;
            };
            let Some(text) = self.environment.text(name) else {
                self.problem(name, "not UTF-8 text");
                continue;
            };
            if let Err(problem) = row.form.check(text) {
                self.problem(name, &problem);
                continue;
            }
            match row.effect {
                Effect::Sets(_) => drop(self.values.insert(row.name, text)),
                Effect::Nothing(why) => self.warn(name, why),
                Effect::AsAsked(asked, _) if row.form.is_same(text, asked) => {}
                Effect::AsAsked(_, why) => self.warn(name, why),
            }
        }
    }

    /// The value of a variable, if it is set and good.
    fn text(&self, name: &'static str) -> Option<&'a str> {
        self.values.get(name).copied()
    }

    /// Whether a switch is on.
    fn is_on(&self, name: &'static str) -> bool {
        self.text(name).and_then(go::boolean).unwrap_or(false)
    }

    fn problem(&mut self, name: &str, problem: &str) {
        self.out.problems.push(format!("{name}: {problem}"));
    }

    /// Warns that a variable has no effect, if it is set, and no other warning names it.
    fn warn(&mut self, name: &str, why: &str) {
        if self.environment.text(name).is_some() && self.warned.insert(name.to_owned()) {
            self.out.warnings.push(format!("{name} has no effect: {why}"));
        }
    }

    fn warn_all(&mut self, names: &[&str], why: &str) {
        for name in names {
            self.warn(name, why);
        }
    }

    /// Gives one of our settings a value, which comes from `variable`.
    fn set(&mut self, flag: &'static str, variable: &'static str, value: impl Into<OsString>) {
        let is_set = self.values.contains_key(variable);
        let value = TranslatedValue { variable, is_set, value: value.into() };
        self.out.settings.insert(flag, value);
    }

    /// Gives one of our settings the text of a variable, if that is set.
    fn copy(&mut self, flag: &'static str, variable: &'static str) {
        if let Some(text) = self.text(variable) {
            self.set(flag, variable, text);
        }
    }

    /// Gives one of our switches the value of a variable, if that is set.
    fn copy_switch(&mut self, flag: &'static str, variable: &'static str) {
        if self.text(variable).is_some() {
            self.set(flag, variable, if self.is_on(variable) { "on" } else { "off" });
        }
    }
}

/// Writes each byte that has a meaning in a URL as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests;
