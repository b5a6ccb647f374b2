//! The content of answers, and what is remembered of them.

use super::{Translator, go};

/// Bytes of the old cache that hold one counter: its key, and what the cache adds.
const BYTES_OF_COUNTER: i64 = 128;

/// The most counters that `--over-limit-cache` holds.
const COUNTERS_MAX: i64 = 10_000_000;

/// Of the request: a switch, and variables with the defaults of names.
const IN_REQUEST: &str = "LIMIT_REQUEST_HEADERS_ENABLED";
const REQUEST_HEADERS: [(&str, &str); 3] = [
    ("LIMIT_REQUEST_LIMIT_HEADER", "RateLimit-Limit"),
    ("LIMIT_REQUEST_REMAINING_HEADER", "RateLimit-Remaining"),
    ("LIMIT_REQUEST_RESET_HEADER", "RateLimit-Reset"),
];

const HEADERS: [(&str, &str); 3] = [
    ("header-limit", "LIMIT_LIMIT_HEADER"),
    ("header-remaining", "LIMIT_REMAINING_HEADER"),
    ("header-reset", "LIMIT_RESET_HEADER"),
];

impl Translator<'_> {
    pub(super) fn answers(&mut self) {
        self.copy_switch("dynamic-metadata", "RESPONSE_DYNAMIC_METADATA");
        if self.is_on("LIMIT_RESPONSE_HEADERS_ENABLED") {
            self.set("headers", &["LIMIT_RESPONSE_HEADERS_ENABLED"], "ratelimit");
        }
        self.copy_if_on("LIMIT_RESPONSE_HEADERS_ENABLED", &HEADERS);
        let variables = REQUEST_HEADERS.map(|(variable, _)| variable);
        if self.is_on(IN_REQUEST) {
            let names = REQUEST_HEADERS.map(|(name, default)| self.text(name).unwrap_or(default));
            self.set("request-headers", &[&variables[..], &[IN_REQUEST]].concat(), names.join(","));
        } else {
            self.warn_all(&variables, "LIMIT_REQUEST_HEADERS_ENABLED is not true");
        }
        if let Some(bytes) = self.text("LOCAL_CACHE_SIZE_IN_BYTES").and_then(go::number) {
            let at_least = bytes.min(1);
            let counters = (bytes / BYTES_OF_COUNTER).clamp(at_least, COUNTERS_MAX);
            self.set("over-limit-cache", &["LOCAL_CACHE_SIZE_IN_BYTES"], counters.to_string());
        }
    }
}
