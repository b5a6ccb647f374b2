//! An estimate of Redis's clock, which usually saves a second round trip: the scripts
//! refuse a call whose window is not the present one by Redis's own clock.

use parking_lot::Mutex;
use tokio::time::Instant;
use tollkeeper_base::process::clock::Clock;
use tollkeeper_engine::time::Timestamp;

#[derive(Debug)]
pub(crate) struct RedisClock {
    clock: Clock,
    learned: Mutex<Learned>,
}

#[derive(Debug, Default)]
struct Learned {
    /// Redis's clock minus ours, in milliseconds.
    offset_ms: i64,
    /// When the request was sent from whose answer this is.
    sent: Option<Instant>,
}

/// When a request was sent to Redis, by two clocks: the first orders requests, the second may be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    at: Instant,
    clock: Timestamp,
}

impl RedisClock {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, learned: Mutex::default() }
    }

    /// The time that Redis's clock shows now.
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)().shifted(self.learned.lock().offset_ms)
    }

    /// Redis's clock minus ours, in milliseconds; 0 before the first answer.
    pub(crate) fn offset_ms(&self) -> i64 {
        self.learned.lock().offset_ms
    }

    /// Now, for a request that is about to be sent.
    pub(crate) fn send(&self) -> Sent {
        Sent { at: Instant::now(), clock: (self.clock)() }
    }

    /// Learns from an answer that has just arrived: Redis's clock showed `shown` after the request was
    /// sent and before now.
    pub(crate) fn learn(&self, shown: Timestamp, sent: Sent) {
        self.learned.lock().learn(shown, sent, (self.clock)());
    }
}

impl Learned {
    /// The offset changes only if the answer proves it wrong, so one that took long to arrive does not
    /// move it; and answers that are older than the last one change nothing.
    fn learn(&mut self, shown: Timestamp, sent: Sent, received: Timestamp) {
        if self.sent.is_some_and(|last| sent.at < last) {
            return;
        }
        self.sent = Some(sent.at);
        let least = shown.millis_since(received);
        // Redis's time is cut to milliseconds.
        let most = shown.millis_since(sent.clock).saturating_add(1).max(least);
        if !(least..=most).contains(&self.offset_ms) {
            self.offset_ms = least.midpoint(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Learns from answers `(sent, received, shown)` in milliseconds, of which `sent` also orders them.
    #[track_caller]
    fn check(answers: &[(u64, u64, u64)], offset_ms: i64) {
        let (began, mut learned) = (Instant::now(), Learned::default());
        for (sent, received, shown) in answers {
            let at = began + Duration::from_millis(*sent);
            let sent = Sent { at, clock: Timestamp::from_millis(*sent) };
            let [shown, received] = [*shown, *received].map(Timestamp::from_millis);
            learned.learn(shown, sent, received);
        }
        assert_eq!(learned.offset_ms, offset_ms, "{answers:?}");
    }

    #[test]
    fn the_offset_is_what_an_answer_proves() {
        check(&[(1000, 1002, 6001)], 5000);
        check(&[(6000, 6002, 1001)], -4999);
        check(&[(1000, 1002, 1001)], 0);
    }

    #[test]
    fn an_answer_that_took_long_moves_nothing() {
        check(&[(1000, 1002, 6001), (1010, 1021, 6010)], 5000);
        check(&[(1000, 1002, 6001), (1010, 1021, 6020)], 5000);
        // A clock that was set does.
        check(&[(1000, 1002, 6001), (1010, 1012, 9011)], 8000);
    }

    #[test]
    fn an_answer_older_than_the_last_says_nothing() {
        check(&[(1010, 1012, 9011), (1000, 1020, 6001)], 8000);
    }
}
