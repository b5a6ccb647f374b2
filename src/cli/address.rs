//! The HOST:PORT to which a client command connects.

mod target;

pub(super) use target::{ClientTarget, UsesTls};

use http::uri::Authority;

use crate::text::printable::printable;

/// The address of a service: the flag, else the variable, else the default.
pub(super) struct ServiceAddr<'a> {
    pub flag: Option<&'a str>,
    /// The variable's name, and its value.
    pub variable: (&'static str, Option<&'a str>),
    pub default: &'static str,
}

impl<'a> ServiceAddr<'a> {
    /// The address, unchanged.
    ///
    /// # Errors
    /// If it is not HOST:PORT; with the address that was probably meant.
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
///
/// # Errors
/// If it is not HOST:PORT; with the address that was probably meant.
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

/// The port of HOST:PORT.
fn port(addr: &str) -> Option<u16> {
    let authority: Authority = addr.parse().ok().filter(|_| !addr.contains('@'))?;
    authority.port_u16().filter(|_| !authority.host().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn accepted(flag: &str, expected: &str) {
        let variable = ("TOLLKEEPER_ADDR", None);
        let address = ServiceAddr { flag: Some(flag), variable, default: "127.0.0.1:8081" };
        assert_eq!(address.checked().unwrap_or_else(|problem| panic!("{problem}")), expected);
    }

    #[track_caller]
    fn refused(variable: &str, hint: &str) {
        let variable = ("TOLLKEEPER_ADDR", Some(variable));
        let address = ServiceAddr { flag: None, variable, default: "127.0.0.1:8081" };
        let problem = address.checked().unwrap_err();
        let expected = format!("TOLLKEEPER_ADDR: `{}` is not HOST:PORT{hint}", variable.1.unwrap());
        assert_eq!(problem, expected);
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        accepted("localhost:1", "localhost:1");
        accepted("[::1]:65535", "[::1]:65535");
    }

    #[test]
    fn the_address_that_was_probably_meant_is_suggested() {
        refused("http://localhost:8081", "; did you mean localhost:8081?");
        refused("grpc://localhost/", "; did you mean localhost:8081?");
        refused("localhost", "; did you mean localhost:8081?");
        refused("localhost:", "; did you mean localhost:8081?");
        refused("[::1]", "; did you mean [::1]:8081?");
        refused("127.0.0.1:8081/json", "; did you mean 127.0.0.1:8081?");
        for nonsense in ["::1", "localhost:x", "localhost:65536", ":8081", "a b", "user@host:1"] {
            refused(nonsense, ", such as 127.0.0.1:8081");
        }
    }
}
