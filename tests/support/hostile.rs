//! What clients send that mean harm, or that read nothing.

use super::{
    http2::{self, Frames},
    prelude::*,
};

pub const RULES: &str = "
domain: shop
descriptors:
  - { key: good, rate_limit: { unit: year, requests_per_unit: 1000000 } }
";

pub fn good_message() -> Vec<u8> {
    shop("bad=client").encode_to_vec()
}

/// Rules whose answer to [`long_call`] takes 1 MB with dynamic metadata.
pub fn long_rules() -> String {
    let limit = "unit: year, requests_per_unit: 100000000";
    let text = "x".repeat(1_000_000);
    format!("{RULES}  - {{ key: long, metadata: {{ text: {text} }}, rate_limit: {{ {limit} }} }}\n")
}

pub fn long_call() -> Vec<u8> {
    shop("long=v").encode_to_vec()
}

/// Calls on a connection whose streams may send this many bytes each: h2 takes over an answer of which a byte fits.
pub fn unread_calls(window: u32, count: usize, message: &[u8]) -> Vec<u8> {
    let settings = [&4_u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
    let first = Frames::default().frame(http2::SETTINGS, 0, 0, &settings);
    let calls = (0..count).fold(first, |frames, _| frames.call(message));
    [http2::opening(), calls.bytes()].concat()
}

/// A header block of one-byte references to a header, each of which takes 72 bytes, that does not end.
pub fn open_header_block() -> Vec<u8> {
    let first = Frames::default().frame(http2::HEADERS, 0, 1, b"\x83\x86\x40\x01a\x00");
    let references = Frames::default().frame(http2::CONTINUATION, 0, 1, &[0xbe; 16_000]).bytes();
    [http2::opening(), first.bytes(), references.repeat(17)].concat()
}

/// How much memory a process holds, or has held at most, in MiB: `VmRSS` or `VmHWM`.
pub fn resident_mib(process: u32, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let kib = status.split(&format!("{what}:")).nth(1).unwrap().split_whitespace().next().unwrap();
    kib.parse::<u64>().unwrap() / 1024
}
