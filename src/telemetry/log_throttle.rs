//! Throttles repeated log lines: at most one of each kind per minute.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The shortest time between two lines of one kind.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The most kinds of lines per minute; further kinds are not logged.
const KINDS_MAX: usize = 1000;

/// When each kind of line was last logged. A kind is a cause or a rule: never anything from a request.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<HashMap<String, Instant>>);

impl LogThrottle {
    /// Whether to log a line of this kind now; after `true`, not again for a minute.
    pub(crate) fn should_log(&self, kind: &str) -> bool {
        self.should_log_at(kind, Instant::now())
    }

    fn should_log_at(&self, kind: &str, now: Instant) -> bool {
        let mut logged_at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged_at.get(kind).is_some_and(|at| is_recent(*at, now)) {
            return false;
        }
        logged_at.retain(|_, at| is_recent(*at, now));
        if logged_at.len() >= KINDS_MAX {
            return false;
        }
        logged_at.insert(kind.to_owned(), now);
        true
    }
}

fn is_recent(logged_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(logged_at) < LOG_EVERY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_is_logged_once_a_minute() {
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        for (seconds, kind, expected) in [
            (0, "a", true),
            (1, "a", false),
            (1, "b", true),
            (59, "a", false),
            (60, "a", true),
            (60, "b", false),
            (61, "b", true),
        ] {
            let logged = throttle.should_log_at(kind, start + Duration::from_secs(seconds));
            assert_eq!(logged, expected, "{kind} after {seconds} s");
        }
    }

    #[test]
    fn the_number_of_kinds_is_bounded() {
        let (throttle, now) = (LogThrottle::default(), Instant::now());
        let logged = (0..2000).filter(|kind| throttle.should_log_at(&kind.to_string(), now));
        assert_eq!(logged.count(), KINDS_MAX);
    }
}
