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

pub use variable::EnvoyproxyRatelimitVariable;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
};

use self::variable::Effect;
use super::reader::{
    SettingReader,
    environment::{COMPAT, ENVOYPROXY_RATELIMIT, Environment, NO_COMPAT},
    form::OneOf,
    translated::{Translated, TranslatedValue},
};
use crate::text::did_you_mean::misspelt;

/// The file name of its program. A program that is run by this name reads its environment.
pub const ENVOYPROXY_RATELIMIT_PROGRAM: &str = "ratelimit";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compat {
    Off,
    EnvoyproxyRatelimit,
}

const COMPATS: OneOf<Compat> =
    OneOf(&[(NO_COMPAT, Compat::Off), (ENVOYPROXY_RATELIMIT, Compat::EnvoyproxyRatelimit)]);

impl Compat {
    /// Reads the setting, and if it is on, the environment of envoyproxy/ratelimit, which gives other settings.
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let help = "Program whose environment is also read; flags and TOLLKEEPER_… have precedence";
        let compat = reader.read(COMPAT, COMPATS, NO_COMPAT, help);
        if compat == Self::EnvoyproxyRatelimit {
            let given = |flag: &str| Some(reader.given(flag)?.name);
            reader.add(translate(reader.environment, &given));
        }
        compat
    }
}

/// Every variable of envoyproxy/ratelimit, in the order of docs/migrating-reference.md.
pub fn envoyproxy_ratelimit_variables() -> &'static [EnvoyproxyRatelimitVariable] {
    table::VARIABLES
}

/// The name of what gives one of our settings, such as `--store`, unless it is the environment of envoyproxy/ratelimit.
type GivenName<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Translates the environment. A bad value is a problem, and counts as unset.
fn translate(environment: &Environment, given: GivenName<'_>) -> Translated {
    let mut translator = Translator {
        given,
        environment,
        values: BTreeMap::new(),
        bad: BTreeSet::new(),
        warned: BTreeSet::new(),
        out: Translated::default(),
    };
    translator.check_all();
    translator.listeners();
    translator.rules();
    translator.store();
    translator.answers();
    translator.telemetry();
    translator.warn_overridden();
    translator.out
}

struct Translator<'a> {
    given: GivenName<'a>,
    environment: &'a Environment,
    /// The good values of the variables that are set.
    values: BTreeMap<&'static str, &'a str>,
    bad: BTreeSet<&'static str>,
    /// The variables that a warning names: each is named once.
    warned: BTreeSet<String>,
    out: Translated,
}

impl<'a> Translator<'a> {
    /// Checks the form of every variable that is set, and warns about those that have no effect, and those that are misspelt.
    fn check_all(&mut self) {
        for name in self.environment.names() {
            let Some(row) = table::VARIABLES.iter().find(|row| row.is_named(name)) else {
                if let Some(meant) = misspelt(name, table::VARIABLES.iter().map(|row| row.name)) {
                    self.out.warnings.push(format!("{name} has no effect; did you mean {meant}?"));
                }
                continue;
            };
            let Some(text) = self.environment.text(name) else {
                self.bad.insert(row.name);
                self.problem(name, "not UTF-8 text");
                continue;
            };
            if let Err(problem) = row.form.check(text) {
                self.bad.insert(row.name);
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

    fn is_on(&self, name: &'static str) -> bool {
        self.text(name).and_then(go::boolean).unwrap_or(false)
    }

    /// Whether one of our own flags, variables or files gives a setting.
    fn is_given(&self, flag: &str) -> bool {
        (self.given)(flag).is_some()
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

    /// Warns about the variables that are set, but whose settings are all given by our own flags, variables or file.
    fn warn_overridden(&mut self) {
        let mut overridden: BTreeMap<&'static str, Option<String>> = BTreeMap::new();
        for (flag, value) in &self.out.settings {
            let given = (self.given)(flag);
            for variable in &value.variables {
                let by = overridden.entry(variable).or_insert_with(|| given.clone());
                if given.is_none() {
                    *by = None;
                }
            }
        }
        for (variable, by) in overridden {
            if let Some(by) = by {
                self.warn(variable, &format!("{by} is set"));
            }
        }
    }

    /// Gives one of our settings a value, which comes from `variables`.
    fn set(&mut self, flag: &'static str, variables: &[&'static str], value: impl Into<OsString>) {
        let value = TranslatedValue { variables: variables.to_vec(), value: value.into() };
        self.out.settings.insert(flag, value);
    }

    /// The value of a variable within the bounds of our setting. One beyond them is a warning, since envoyproxy/ratelimit
    /// accepts it.
    fn clamp<T: PartialOrd + Copy>(
        &mut self,
        (flag, variable): (&'static str, &'static str),
        value: T,
        (min, max): (T, T),
        spelled: fn(T) -> String,
    ) -> String {
        let (bound, limit) = if value < min {
            (min, "less than the minimum")
        } else if value > max {
            (max, "more than the maximum")
        } else {
            return spelled(value);
        };
        let bound = spelled(bound);
        if !self.is_given(flag) {
            let text = self.text(variable).unwrap_or_default();
            let warning = format!("{variable}: `{text}` is {limit} here: {bound} is used");
            self.out.warnings.push(warning);
        }
        bound
    }

    /// Gives one of our settings the text of a variable, if that is set.
    fn copy(&mut self, flag: &'static str, variable: &'static str) {
        if let Some(text) = self.text(variable) {
            self.set(flag, &[variable], text);
        }
    }

    /// Gives our settings the texts of variables, which have an effect only if a switch is on.
    fn copy_if_on(&mut self, switch: &'static str, settings: &[(&'static str, &'static str)]) {
        for (flag, variable) in settings {
            self.out.variables.insert(flag, variable);
            if !self.is_on(switch) {
                self.warn(variable, &format!("{switch} is not true"));
            } else if let Some(text) = self.text(variable) {
                self.set(flag, &[variable, switch], text);
            }
        }
    }

    /// Gives one of our switches the value of a variable, if that is set.
    fn copy_switch(&mut self, flag: &'static str, variable: &'static str) {
        if self.text(variable).is_some() {
            self.set(flag, &[variable], if self.is_on(variable) { "on" } else { "off" });
        }
    }
}

#[cfg(test)]
mod tests;
