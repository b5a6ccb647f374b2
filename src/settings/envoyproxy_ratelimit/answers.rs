//! The content of answers, and what is remembered of them.

use super::{Translator, go};

/// Bytes of the old cache that hold one counter: its key, and what the cache adds.
const BYTES_OF_COUNTER: i64 = 128;

/// The most counters that `--over-limit-cache` holds.
const COUNTERS_MAX: i64 = 10_000_000;

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
        if let Some(bytes) = self.text("LOCAL_CACHE_SIZE_IN_BYTES").and_then(go::number) {
            let at_least = bytes.min(1);
            let counters = (bytes / BYTES_OF_COUNTER).clamp(at_least, COUNTERS_MAX);
            self.set("over-limit-cache", &["LOCAL_CACHE_SIZE_IN_BYTES"], counters.to_string());
        }
    }
}
