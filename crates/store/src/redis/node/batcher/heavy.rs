//! Calls that are heavier than a full batch. A server gets one of them at a time, since several would delay the calls of all other
//! clients.

use std::time::Duration;

use crate::sync::time::Instant;

/// How long a measured time counts. Then a heavy call is tried again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct HeavyCalls {
    /// Until when one is under way, if it has no answer before.
    pub(super) until: Option<Instant>,
    /// How long the weight of a full batch took, on average, and when that was last measured.
    took: Option<(Duration, Instant)>,
}

impl HeavyCalls {
    pub(super) fn is_under_way(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// How long the weight of a full batch is likely to take. It is assumed to take less, the longer none was sent.
    pub(super) fn takes(&self, now: Instant) -> Duration {
        let Some((took, measured)) = self.took else { return Duration::ZERO };
        let counts = FORGOTTEN_AFTER.saturating_sub(now.saturating_duration_since(measured));
        took.mul_f64(counts.div_duration_f64(FORGOTTEN_AFTER))
    }

    /// Notes that none is under way. One that weighs as much as these full batches was answered in this time, if at all.
    pub(super) fn ended(&mut self, full_batches: u32, answered_in: Option<Duration>, now: Instant) {
        self.until = None;
        if let Some(took) = answered_in {
            self.took = Some(((3 * self.takes(now) + took / full_batches) / 4, now));
        }
    }
}
