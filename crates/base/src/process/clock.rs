//! The machine's wall clock, which is read at the edges only: everywhere else, time is an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollkeeper_engine::time::Timestamp;

/// Reads a clock. The program uses [`system_clock`]; tests pass their own.
pub type Clock = fn() -> Timestamp;

/// The machine's wall clock; the epoch if it is set before 1970.
#[expect(clippy::disallowed_methods, reason = "the only place that reads the wall clock")]
pub fn system_clock() -> Timestamp {
    // A clock before 1970 means that the machine has none; Redis's time then corrects it.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

pub fn unix_seconds() -> i64 {
    i64::try_from(system_clock().as_secs()).unwrap_or(i64::MAX)
}
