//! The forms of values: addresses, durations, sizes and the like.
//!
//! Each reads its text, and says in its error which values are allowed.

use std::{
    fmt::Display,
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use crate::{
    net::tls::client::is_certificate_name,
    text::duration::{duration, spelled},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// `--flag` or `--flag=on|off`.
    Switch,
    /// `--flag VALUE`.
    Single,
    /// `--flag VALUE`, any number of times.
    Repeated,
}

pub(crate) trait Form {
    type Value;

    /// Stands for a value in help.
    fn name(&self) -> String;

    fn read(&self, text: &str) -> Result<Self::Value, String>;

    /// The least and the greatest value, as they are written.
    fn range(&self) -> Option<(String, String)> {
        None
    }

    fn arity(&self) -> Arity {
        Arity::Single
    }
}

/// The usual error. It repeats the text, so it is not for values that may hold a secret.
pub(crate) fn invalid(text: &str, allowed: impl Display) -> String {
    format!("invalid value `{text}`: must be {allowed}")
}

/// A form that is read by a function.
#[derive(Debug)]
pub(crate) struct Custom<T> {
    pub name: &'static str,
    pub read: fn(&str) -> Result<T, String>,
}

impl<T> Form for Custom<T> {
    type Value = T;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn read(&self, text: &str) -> Result<T, String> {
        (self.read)(text)
    }
}

pub(crate) const ADDRESS: Custom<SocketAddr> = Custom { name: "IP:PORT", read: address };

fn address(text: &str) -> Result<SocketAddr, String> {
    const ALLOWED: &str = "an IP address and a port, such as 127.0.0.1:8081";
    text.parse().map_err(|_| {
        let meant = text.replacen("localhost", "127.0.0.1", 1);
        let meant = if meant.starts_with(':') { format!("[::]{meant}") } else { meant };
        let is_address = meant.parse::<SocketAddr>().is_ok();
        let hint = if is_address { format!("{HINT} {meant}?") } else { String::new() };
        invalid(text, format_args!("{ALLOWED}{hint}"))
    })
}

/// Begins the end of a problem whose value may be meant for another.
const HINT: &str = "; did you mean";

/// A value of another form, or `off`.
#[derive(Debug)]
pub(crate) struct OrOff<F>(pub F);

impl<F: Form> Form for OrOff<F> {
    type Value = Option<F::Value>;

    fn name(&self) -> String {
        format!("{}|off", self.0.name())
    }

    fn read(&self, text: &str) -> Result<Option<F::Value>, String> {
        if text == "off" {
            return Ok(None);
        }
        self.0.read(text).map(Some).map_err(|problem| {
            let (problem, hint) = problem.split_at(problem.rfind(HINT).unwrap_or(problem.len()));
            format!("{problem}, or off{hint}")
        })
    }
}

/// Reads a number; `parse` alone would accept `+5` as well.
fn without_plus<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

#[derive(Debug)]
pub(crate) struct WholeNumber<T>(pub RangeInclusive<T>);

impl<T: FromStr + Display + PartialOrd> Form for WholeNumber<T> {
    type Value = T;

    fn name(&self) -> String {
        "N".to_owned()
    }

    fn read(&self, text: &str) -> Result<T, String> {
        whole_number(text, self.0.start(), self.0.end())
    }

    fn range(&self) -> Option<(String, String)> {
        Some((self.0.start().to_string(), self.0.end().to_string()))
    }
}

/// Reads a whole number, without a plus sign.
pub(crate) fn whole_number<T>(text: &str, min: &T, max: &T) -> Result<T, String>
where
    T: FromStr + Display + PartialOrd,
{
    let number = without_plus(text).filter(|number| (min..=max).contains(&number));
    number.ok_or_else(|| invalid(text, format_args!("a whole number from {min} to {max}")))
}

/// [`whole_number`] as a parser of arguments.
pub(crate) fn whole_numbers<T>(
    min: T,
    max: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + Display + PartialOrd + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = whole_number(text, &min, &max).ok();
        number.ok_or_else(|| format!("must be a whole number from {min} to {max}"))
    }
}

#[derive(Debug)]
pub(crate) struct Ratio;

impl Form for Ratio {
    type Value = f64;

    fn name(&self) -> String {
        "RATIO".to_owned()
    }

    fn read(&self, text: &str) -> Result<f64, String> {
        let ratio = without_plus(text).filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.ok_or_else(|| invalid(text, "a number from 0 to 1, such as 0.8"))
    }

    fn range(&self) -> Option<(String, String)> {
        Some(("0".to_owned(), "1".to_owned()))
    }
}

#[derive(Debug)]
pub(crate) struct Time(pub RangeInclusive<Duration>);

impl Form for Time {
    type Value = Duration;

    fn name(&self) -> String {
        "TIME".to_owned()
    }

    fn read(&self, text: &str) -> Result<Duration, String> {
        duration(text, *self.0.start(), *self.0.end())
            .map_err(|problem| format!("invalid value `{text}`: {problem}"))
    }

    fn range(&self) -> Option<(String, String)> {
        Some((spelled(*self.0.start()), spelled(*self.0.end())))
    }
}

/// A number of bytes, such as `512`, `64KiB` or `4MiB`.
#[derive(Debug)]
pub(crate) struct Size(pub RangeInclusive<usize>);

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

impl Form for Size {
    type Value = usize;

    fn name(&self) -> String {
        "SIZE".to_owned()
    }

    fn read(&self, text: &str) -> Result<usize, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = match unit {
            "" => Some(1_usize),
            "KiB" => Some(KIB),
            "MiB" => Some(MIB),
            _ => None,
        };
        let size = unit.and_then(|unit| unit.checked_mul(number.parse().ok()?));
        size.filter(|size| self.0.contains(size)).ok_or_else(|| {
            let (min, max) = (bytes(*self.0.start()), bytes(*self.0.end()));
            invalid(text, format_args!("a size from {min} to {max}, such as 4MiB"))
        })
    }

    fn range(&self) -> Option<(String, String)> {
        Some((bytes(*self.0.start()), bytes(*self.0.end())))
    }
}

fn bytes(size: usize) -> String {
    if size.is_multiple_of(MIB) {
        format!("{}MiB", size / MIB)
    } else {
        format!("{}KiB", size / KIB)
    }
}

#[derive(Debug)]
pub(crate) struct OneOf<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy> Form for OneOf<T> {
    type Value = T;

    fn name(&self) -> String {
        self.names().join("|")
    }

    fn read(&self, text: &str) -> Result<T, String> {
        let found = self.0.iter().find(|(name, _)| *name == text);
        let value = found.map(|(_, value)| *value);
        value.ok_or_else(|| invalid(text, format_args!("one of: {}", self.names().join(", "))))
    }
}

impl<T> OneOf<T> {
    fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

/// On or off. `true` and `false` are accepted too.
#[derive(Debug)]
pub(crate) struct OnOff<T> {
    pub on: T,
    pub off: T,
    pub arity: Arity,
}

/// A flag that needs no value to mean `on`.
pub(crate) const SWITCH: OnOff<bool> = switch(true, false);

pub(crate) const fn switch<T: Copy>(on: T, off: T) -> OnOff<T> {
    OnOff { on, off, arity: Arity::Switch }
}

impl<T: Copy> Form for OnOff<T> {
    type Value = T;

    fn name(&self) -> String {
        "on|off".to_owned()
    }

    fn read(&self, text: &str) -> Result<T, String> {
        match text {
            "on" | "true" => Ok(self.on),
            "off" | "false" => Ok(self.off),
            _ => Err(invalid(text, "on or off")),
        }
    }

    fn arity(&self) -> Arity {
        self.arity
    }
}

pub(crate) const PATH: Custom<PathBuf> = Custom { name: "PATH", read: path };

fn path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    check_path(&path)?;
    Ok(path)
}

/// Refuses standard input, since most files are read again.
pub(super) fn check_path(path: &Path) -> Result<(), &'static str> {
    if path.as_os_str().is_empty() {
        return Err("must not be empty");
    }
    if path == Path::new("-") {
        return Err("must be a path; standard input is not supported here");
    }
    Ok(())
}

pub(crate) const HEADER_NAME: Custom<String> = Custom { name: "NAME", read: header_name };

fn header_name(text: &str) -> Result<String, String> {
    let name = text.parse::<http::HeaderName>();
    name.map(|_| text.to_owned()).map_err(|_| invalid(text, "a valid header name"))
}

pub(crate) const CERTIFICATE_NAME: Custom<String> = Custom { name: "NAME", read: certificate_name };

fn certificate_name(text: &str) -> Result<String, String> {
    if is_certificate_name(text) {
        Ok(text.to_owned())
    } else {
        Err(invalid(text, "a host name or an IP address"))
    }
}
