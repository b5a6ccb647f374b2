//! One variable of envoyproxy/ratelimit: its form, and its effect.

use std::net::IpAddr;

use super::go;
use crate::settings::reader::form::invalid;

#[derive(Debug)]
pub struct EnvoyproxyRatelimitVariable {
    /// The name. A `…` at its end stands for any characters: all variables of a family.
    pub name: &'static str,
    pub(super) form: VariableForm,
    pub(super) effect: Effect,
}

#[derive(Debug)]
pub(super) enum Effect {
    /// It sets this: a phrase with the flags.
    Sets(&'static str),
    Nothing(&'static str),
    /// Nothing, for this reason; the first is the value that asks for what the service does anyway.
    AsAsked(&'static str, &'static str),
}

/// How the values of a variable are written.
#[derive(Debug)]
pub(super) enum VariableForm {
    Switch,
    /// A whole number in this range.
    Number {
        min: i64,
        max: i64,
    },
    Fraction,
    Time,
    Host,
    Among(&'static [&'static str]),
    Text,
}

impl EnvoyproxyRatelimitVariable {
    /// Whether this row is about the variable with this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        match self.name.strip_suffix('…') {
            Some(prefix) => name.starts_with(prefix),
            None => self.name == name,
        }
    }

    /// What it does, for docs/migrating-reference.md.
    pub fn meaning(&self) -> String {
        match self.effect {
            Effect::Sets(what) => what.to_owned(),
            Effect::Nothing(why) => format!("no effect: {why}"),
            Effect::AsAsked(value, why) => format!("always `{value}`: {why}"),
        }
    }
}

impl VariableForm {
    pub(super) fn check(&self, text: &str) -> Result<(), String> {
        let (is_good, allowed) = match self {
            Self::Switch => {
                (go::boolean(text).is_some(), "true or false, also as 1, t, 0 or f".to_owned())
            }
            Self::Number { min, max } => {
                let is_good = go::number(text).is_some_and(|number| (min..=max).contains(&&number));
                let range = match *max {
                    i64::MAX => format!("of {min} or more"),
                    max => format!("from {min} to {max}"),
                };
                (is_good, format!("a whole number {range}, without leading zeros"))
            }
            Self::Fraction => (go::fraction(text).is_some(), "a number, such as 0.8".to_owned()),
            Self::Time => {
                let form = "a duration with units, such as 10s or 1h30m".to_owned();
                (go::duration(text).is_some(), form)
            }
            Self::Host => (host(text).is_some(), "an IP address, such as 0.0.0.0 or ::".to_owned()),
            Self::Among(values) => {
                let is_good = values.iter().any(|value| value.eq_ignore_ascii_case(text));
                (is_good, format!("one of: {}", values.join(", ")))
            }
            Self::Text => return Ok(()),
        };
        if is_good { Ok(()) } else { Err(invalid(text, allowed)) }
    }

    /// Whether two good values have the same effect.
    pub(super) fn is_same(&self, one: &str, other: &str) -> bool {
        match self {
            Self::Switch => go::boolean(one) == go::boolean(other),
            _ => one.eq_ignore_ascii_case(other),
        }
    }
}

/// The address of a listener; `localhost` is the one name that needs no resolver.
pub(super) fn host(text: &str) -> Option<IpAddr> {
    if text == "localhost" {
        return Some(IpAddr::from([127, 0, 0, 1]));
    }
    text.trim_start_matches('[').trim_end_matches(']').parse().ok()
}
