//! The HOST:PORT to which a client command connects.

mod target;

pub(super) use target::{ClientTarget, UsesTls};

use http::uri::Authority;

use crate::text::printable::printable;

/// The address of a service: the flag, else the variable, else the default.
pub(super) struct ServiceAddr<'a> {
    pub flag: Option<&'a str>,
    pub variable: (&'static str, Option<&'a str>),
    pub default: &'static str,
}

impl<'a> ServiceAddr<'a> {
    pub(super) fn checked(&self) -> Result<&'a str, String> {
        let (name, addr) = match (self.flag, self.variable) {
            (Some(addr), _) => ("--addr", addr),
            (None, (name, Some(addr))) => (name, addr),
            (None, (_, None)) => return Ok(self.default),
        };
        check(name, addr, self.default).map(|()| addr)
    }
}

/// Checks the address that the flag or variable `name` gives.
pub(super) fn check(name: &str, addr: &str, default: &str) -> Result<(), String> {
    if port(addr).is_some() {
        return Ok(());
    }
    let hint = match meant(addr, default) {
        Some(meant) => format!("; did you mean {meant}?"),
        None => format!(", such as {default}"),
    };
    Err(format!("{name}: `{}` is not HOST:PORT{hint}", printable(addr.as_bytes())))
}

/// The address without scheme and path, and with the default port if it has none.
fn meant(addr: &str, default: &str) -> Option<String> {
    let addr = addr.split_once("://").map_or(addr, |(_, rest)| rest);
    let addr = addr.split('/').next()?;
    if port(addr).is_some() {
        return Some(addr.to_owned());
    }
    let (_, port_default) = default.rsplit_once(':')?;
    let with_port = format!("{}:{port_default}", addr.trim_end_matches(':'));
    port(&with_port).map(|_| with_port)
}

fn port(addr: &str) -> Option<u16> {
    let authority: Authority = addr.parse().ok().filter(|_| !addr.contains('@'))?;
    authority.port_u16().filter(|_| !authority.host().is_empty())
}
