//! Keeps a line out of the log that was there a moment ago.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How often the log tells of the same.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// When the log last told of something.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Option<Instant>>);

impl Told {
    /// Whether it is to be told now; if so, not again for a minute.
    pub(crate) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY);
        if due {
            *told = Some(now);
        }
        due
    }
}
