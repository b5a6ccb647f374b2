//! One variable of envoyproxy/ratelimit: its form, and its effect.

use std::{net::IpAddr, time::Duration};

use super::go;
use crate::settings::form::{invalid, spelled};

/// A variable of envoyproxy/ratelimit.
#[derive(Debug)]
pub struct IncumbentVariable {
    /// The name. A `…` at its end stands for any characters.
    pub name: &'static str,
    pub(super) form: VariableForm,
    pub(super) effect: Effect,
}

/// What a variable does here.
#[derive(Debug)]
pub(super) enum Effect {
    /// It sets this, in words with the flags.
    Sets(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Nothing, for this reason; the first is the value that asks for what the service does anyway.
    AsAsked(&'static str, &'static str),
}

/// How the values of a variable are written.
#[derive(Debug)]
pub(super) enum VariableForm {
    /// A truth value.
    Switch,
    /// A whole number in this range.
    Number { min: i64, max: i64 },
    /// A number from 0 to 1.
    Ratio,
    /// A duration of at most this.
    Time { max: Duration },
    /// An IP address.
    Host,
    /// One of these, in any case.
    Among(&'static [&'static str]),
    /// Text.
    Text,
    /// Text that may hold a secret.
    Secret,
}

impl IncumbentVariable {
    /// Whether this row is about the variable with this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        match self.name.strip_suffix('…') {
            Some(prefix) => name.starts_with(prefix),
            None => self.name == name,
        }
    }

    /// The values, for docs/migrating.md.
    pub fn values(&self) -> String {
        match &self.form {
            VariableForm::Switch => "true, false".to_owned(),
            VariableForm::Number { min, max: i64::MAX } => format!("{min} or more"),
            VariableForm::Number { min, max } => format!("{min} to {max}"),
            VariableForm::Ratio => "0 to 1".to_owned(),
            VariableForm::Time { max } if is_unbounded(*max) => "time".to_owned(),
            VariableForm::Time { max } => format!("time, 0s to {}", spelled(*max)),
            VariableForm::Host => "IP address".to_owned(),
            VariableForm::Among(values) => values.join(", "),
            VariableForm::Text | VariableForm::Secret => "text".to_owned(),
        }
    }

    /// What it does, for docs/migrating.md.
    pub fn meaning(&self) -> String {
        match self.effect {
            Effect::Sets(what) => what.to_owned(),
            Effect::Nothing(why) => format!("no effect: {why}"),
            Effect::AsAsked(value, why) => format!("always as with `{value}`: {why}"),
        }
    }
}

impl VariableForm {
    /// Checks a value.
    ///
    /// # Errors
    /// A sentence with the allowed values.
    pub(super) fn check(&self, text: &str) -> Result<(), String> {
        let (is_good, allowed) = match self {
            Self::Switch => {
                (go::boolean(text).is_some(), "true or false, also as 1, t, 0 or f".to_owned())
            }
            Self::Number { min, max } => {
                let is_good = go::number(text).is_some_and(|number| (min..=max).contains(&&number));
                (is_good, format!("a whole number from {min} to {max}, without leading zeros"))
            }
            Self::Ratio => {
                let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                (ratio.is_some(), "a number from 0 to 1, such as 0.8".to_owned())
            }
            Self::Time { max } => {
                let is_good = go::duration(text).is_some_and(|time| time <= *max);
                let form = "a duration with units, such as 10s or 1h30m";
                let bound = if is_unbounded(*max) {
                    String::new()
                } else {
                    format!(", from 0s to {}", spelled(*max))
                };
                (is_good, format!("{form}{bound}"))
            }
            Self::Host => (host(text).is_some(), "an IP address, such as 0.0.0.0 or ::".to_owned()),
            Self::Among(values) => {
                let is_good = values.iter().any(|value| value.eq_ignore_ascii_case(text));
                (is_good, format!("one of: {}", values.join(", ")))
            }
            Self::Text | Self::Secret => return Ok(()),
        };
        if is_good { Ok(()) } else { Err(invalid(text, allowed)) }
    }

    /// Whether two good values mean the same.
    pub(super) fn is_same(&self, one: &str, other: &str) -> bool {
        match self {
            Self::Switch => go::boolean(one) == go::boolean(other),
            _ => one.eq_ignore_ascii_case(other),
        }
    }
}

fn is_unbounded(max: Duration) -> bool {
    max > Duration::from_secs(365 * 24 * 3600)
}

/// The address of a listener; `localhost` is the one name that needs no resolver.
pub(super) fn host(text: &str) -> Option<IpAddr> {
    if text == "localhost" {
        return Some(IpAddr::from([127, 0, 0, 1]));
    }
    text.trim_start_matches('[').trim_end_matches(']').parse().ok()
}
