//! An estimate of Redis's clock, which usually saves a second round trip: the scripts
//! refuse a call whose window is not the present one by Redis's own clock.

use parking_lot::Mutex;
use tokio::time::Instant;
use tollkeeper_base::process::clock::Clock;
use tollkeeper_engine::time::Timestamp;

#[derive(Debug)]
pub(crate) struct RedisClock {
    clock: Clock,
    began: Instant,
    learned: Mutex<Option<Learned>>,
}

/// What an answer has shown.
#[derive(Debug, Clone, Copy)]
struct Learned {
    /// Redis's clock minus the time since `began`, in milliseconds: our own clock may be set meanwhile.
    offset_ms: i64,
    /// When the request was sent from whose answer this is.
    sent: Instant,
}

impl RedisClock {
    /// `clock` is ours, which is a guess before the first answer.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, began: Instant::now(), learned: Mutex::default() }
    }

    /// The time that Redis's clock shows now.
    pub(crate) fn now(&self) -> Timestamp {
        self.known_now().unwrap_or_else(self.clock)
    }

    /// The time that it shows now; `None` before the first answer.
    pub(crate) fn known_now(&self) -> Option<Timestamp> {
        let learned = *self.learned.lock();
        learned.map(|learned| self.passed(Instant::now()).shifted(learned.offset_ms))
    }

    /// Redis's clock minus ours, in milliseconds; 0 before the first answer.
    pub(crate) fn offset_ms(&self) -> i64 {
        self.known_now().map_or(0, |now| now.millis_since((self.clock)()))
    }

    /// Learns from an answer that has just arrived: Redis's clock showed `shown` after the request was
    /// sent and before now.
    pub(crate) fn learn(&self, shown: Timestamp, sent: Instant) {
        self.learn_at(shown, sent, Instant::now());
    }

    /// The offset changes only if the answer proves it wrong, so one that took long to arrive does not
    /// move it; and answers that are older than the last one change nothing.
    fn learn_at(&self, shown: Timestamp, sent: Instant, received: Instant) {
        let least = shown.millis_since(self.passed(received));
        // Times are cut to milliseconds.
        let most = shown.millis_since(self.passed(sent)).saturating_add(1).max(least);
        let mut learned = self.learned.lock();
        let known = *learned;
        if known.is_none_or(|known| known.sent <= sent) {
            let known = known.map(|known| known.offset_ms);
            let proved = known.filter(|offset_ms| (least..=most).contains(offset_ms));
            let offset_ms = proved.unwrap_or_else(|| least.midpoint(most));
            *learned = Some(Learned { offset_ms, sent });
        }
    }

    fn passed(&self, at: Instant) -> Timestamp {
        let passed = at.duration_since(self.began).as_millis();
        Timestamp::from_millis(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Learns from answers `(sent, received, shown)` in milliseconds, of which `sent` also orders them.
    #[track_caller]
    fn check(answers: &[(u64, u64, u64)], offset_ms: i64) {
        let clock = RedisClock::new(|| Timestamp::from_secs(9));
        for (sent, received, shown) in answers {
            let [sent, received] =
                [sent, received].map(|ms| clock.began + Duration::from_millis(*ms));
            clock.learn_at(Timestamp::from_millis(*shown), sent, received);
        }
        let learned = clock.learned.lock().map(|learned| learned.offset_ms);
        assert_eq!(learned, Some(offset_ms), "{answers:?}");
    }

    #[test]
    fn our_clock_is_a_guess_only_before_the_first_answer() {
        let clock = RedisClock::new(|| Timestamp::from_secs(9));
        assert_eq!((clock.now(), clock.known_now()), (Timestamp::from_secs(9), None));
        clock.learn(Timestamp::from_secs(100), Instant::now());
        assert!(clock.now() >= Timestamp::from_secs(100));
        assert!(clock.offset_ms() >= 91_000);
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
