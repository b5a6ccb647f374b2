//! Keeps a repeated line out of the log: at most one of a kind each minute.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How often a line of one kind is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// How many kinds of lines are told apart in a minute; further ones are not logged.
const KINDS_MAX: usize = 1000;

/// When each kind of line was last logged. A kind is a cause or a rule: never anything from a request.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<HashMap<String, Instant>>);

impl LogThrottle {
    /// Whether a line of this kind is to be logged now; if so, not again for a minute.
    pub(crate) fn should_log(&self, kind: &str) -> bool {
        self.should_log_at(kind, Instant::now())
    }

    fn should_log_at(&self, kind: &str, now: Instant) -> bool {
        let is_recent = |logged: &Instant| now.saturating_duration_since(*logged) < LOG_EVERY;
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.get(kind).is_some_and(is_recent) {
            return false;
        }
        logged.retain(|_, logged| is_recent(logged));
        if logged.len() >= KINDS_MAX {
            return false;
        }
        logged.insert(kind.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_is_logged_once_a_minute() {
        let (throttle, began) = (LogThrottle::default(), Instant::now());
        let at = |seconds, kind: &str| {
            throttle.should_log_at(kind, began + Duration::from_secs(seconds))
        };
        assert_eq!([at(0, "a"), at(1, "a"), at(1, "b"), at(59, "a")], [true, false, true, false]);
        assert_eq!([at(60, "a"), at(60, "b"), at(61, "b")], [true, false, true]);
    }

    #[test]
    fn kinds_are_bounded() {
        let (throttle, now) = (LogThrottle::default(), Instant::now());
        let logged = (0..2000).filter(|kind| throttle.should_log_at(&kind.to_string(), now));
        assert_eq!(logged.count(), KINDS_MAX);
    }
}
