//! Times until a reset, as the wire has them: whole seconds.

use std::time::Duration;

/// The most that a `google.protobuf.Duration` may hold: 10,000 years.
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;

/// Rounded up, and at least 1: Envoy drops fractions, and 0 would ask for a retry at once.
pub(crate) fn seconds(reset: Duration) -> i64 {
    let whole = reset.as_secs() + u64::from(reset.subsec_nanos() > 0);
    i64::try_from(whole.max(1)).unwrap_or(DURATION_SECONDS_MAX).min(DURATION_SECONDS_MAX)
}
