//! Parts of the URLs of Redis and of control planes.

use std::{net::Ipv6Addr, str::FromStr};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::store::redis::wire::endpoint::Address;

pub(crate) fn read_host(text: &str, default_port: u16) -> Result<Address, &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("`]` is missing")?;
            let host: Ipv6Addr = host.parse().map_err(|_| "not an IPv6 address in brackets")?;
            (host.to_string(), port)
        }
        None => {
            let colon = text.find(':').unwrap_or(text.len());
            let (host, port) = text.split_at(colon);
            if host.is_empty() {
                return Err("the host is missing");
            }
            if port.len() > 1 && port.get(1..).is_some_and(|rest| rest.contains(':')) {
                return Err("write an IPv6 address in brackets");
            }
            if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
                return Err("not a host name or IP address");
            }
            (host.to_owned(), port)
        }
    };
    let port = match port.strip_prefix(':') {
        Some(digits) => number(digits).filter(|port| *port > 0).ok_or(PORT)?,
        None if port.is_empty() => default_port,
        None => return Err("after `]` comes a colon and the port"),
    };
    Ok(Address::Tcp { host, port })
}

/// A host and its port; `None` if one of them is missing or malformed.
pub(crate) fn host_and_port(text: &str) -> Option<(String, u16)> {
    match read_host(text, 0) {
        Ok(Address::Tcp { host, port: port @ 1.. }) => Some((host, port)),
        _ => None,
    }
}

const PORT: &str = "the port must be a number from 1 to 65535";

/// Reads digits; `parse` alone would accept a plus sign as well.
pub(crate) fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Replaces each `%XX`.
pub(crate) fn decoded(text: &str, part: &str) -> Result<String, String> {
    let is_hex = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_hex) {
        return Err(format!("two hex digits must follow a `%` in the {part}; write `%` as %25"));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| format!("the {part} must be UTF-8"))
}

/// Writes each byte that has a meaning in a URL as `%XX`.
pub(crate) fn percent_encoded(text: &str) -> String {
    const RESERVED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Longest id of a node, in bytes.
const NODE_BYTES_MAX: usize = 256;

pub(crate) const NODE_FORM: &str = "must be at most 256 bytes without control characters";

/// Whether a control plane accepts this node id.
pub(crate) fn is_node(id: &str) -> bool {
    id.len() <= NODE_BYTES_MAX && !id.chars().any(char::is_control)
}
