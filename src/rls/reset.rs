//! Times until a reset in whole seconds, as the wire holds them.

use std::time::Duration;

use crate::text::duration::seconds_up;

/// The largest `google.protobuf.Duration`: 10,000 years, in seconds.
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;

/// Rounded up, and at least 1: Envoy drops fractions, and 0 would ask for an immediate retry.
pub(crate) fn seconds(reset: Duration) -> i64 {
    i64::try_from(seconds_up(reset).max(1))
        .unwrap_or(DURATION_SECONDS_MAX)
        .min(DURATION_SECONDS_MAX)
}
