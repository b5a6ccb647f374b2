//! Throttles repeated log lines: at most one per minute for each cause and subject, with the number of those that were
//! suppressed since the last one.

use std::{
    collections::HashMap,
    sync::LazyLock,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The shortest time between two lines of one cause and subject.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The most causes and subjects that have lines of their own; further ones share the lines of one.
const SUBJECTS_MAX: usize = 1000;

static LINES: LazyLock<LogThrottle> = LazyLock::new(LogThrottle::default);

/// Why a line that may repeat is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogCause {
    Unmatched,
    /// Calls that lack the entries that their domain requires; the subject is the domain.
    Incomplete,
    /// Calls without descriptors; the subject is the peer.
    EmptyCall,
    /// A key in Redis that holds something other than a count; the subject is its rule.
    CorruptCounter,
    Evicted,
    /// Connections that a listener refuses; the subject is the listener and the reason.
    RefusedConnection,
    /// A panic; the subject is its location in the source.
    Panic,
    /// A connection to Redis that cannot be opened; the subject is the server and the reason.
    StoreConnection,
    /// Another cause of an outage of Redis that lasts; the subject is the server and the cause.
    StoreOutage,
    /// This process was without CPU.
    Starved,
    /// Debits and refunds that were dropped; the subject is the reason.
    DroppedDebits,
    /// A commit whose token this service has not made.
    BadHoldToken,
    /// A hold whose token would be too long.
    HoldWithoutToken,
    /// An incomplete answer of the admin address.
    AdminAnswer,
    /// A limit that cannot be assigned to proxies; the subject is its rule.
    NotAssigned,
    /// Calls that cannot be recorded.
    Recording,
    /// A finding of the self-audit; the subject is its rule.
    SelfAudit,
    /// Anything beyond [`SUBJECTS_MAX`].
    Others,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueLine {
    /// The number of lines of the same cause and subject that were suppressed since the last one. `None`, which a line
    /// leaves out, if there were none.
    pub suppressed: Option<u64>,
}

/// Whether a line of this cause and subject is due; if so, the next one is not before a minute has passed. A subject is
/// never anything from a request.
pub fn due_line(cause: LogCause, subject: &str) -> Option<DueLine> {
    LINES.due_at(cause, subject, Instant::now())
}

#[derive(Debug, Default)]
struct LogThrottle(Mutex<HashMap<(LogCause, String), LastLine>>);

#[derive(Debug)]
struct LastLine {
    at: Instant,
    suppressed: u64,
}

impl LogThrottle {
    fn due_at(&self, cause: LogCause, subject: &str, now: Instant) -> Option<DueLine> {
        let mut lines = self.0.lock();
        let mut key = (cause, subject.to_owned());
        if lines.len() >= SUBJECTS_MAX && !lines.contains_key(&key) {
            lines.retain(|_, last| last.is_recent(now));
            if lines.len() >= SUBJECTS_MAX {
                key = (LogCause::Others, String::new());
            }
        }
        let Some(last) = lines.get_mut(&key) else {
            lines.insert(key, LastLine { at: now, suppressed: 0 });
            return Some(DueLine { suppressed: None });
        };
        if last.is_recent(now) {
            last.suppressed = last.suppressed.saturating_add(1);
            return None;
        }
        let suppressed = Some(last.suppressed).filter(|count| *count > 0);
        *last = LastLine { at: now, suppressed: 0 };
        Some(DueLine { suppressed })
    }
}

impl LastLine {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < LOG_EVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_and_subject_has_a_line_a_minute_which_counts_those_that_were_suppressed() {
        use LogCause::{CorruptCounter, Panic};
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        for (seconds, cause, subject, expected) in [
            (0, CorruptCounter, "a", Some(None)),
            (1, CorruptCounter, "a", None),
            (1, CorruptCounter, "b", Some(None)),
            (1, Panic, "a", Some(None)),
            (59, CorruptCounter, "a", None),
            (60, CorruptCounter, "a", Some(Some(2))),
            (60, CorruptCounter, "b", None),
            (61, CorruptCounter, "b", Some(Some(1))),
            (61, Panic, "a", Some(None)),
            (130, CorruptCounter, "a", Some(None)),
        ] {
            let due = throttle.due_at(cause, subject, start + Duration::from_secs(seconds));
            let suppressed = due.map(|line| line.suppressed);
            assert_eq!(suppressed, expected, "{cause:?} {subject} after {seconds} s");
        }
    }

    #[test]
    fn beyond_a_thousand_subjects_the_others_share_one_line_a_minute() {
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        let due_at = |second: u64, subject: u32| {
            let now = start + Duration::from_secs(second);
            throttle.due_at(LogCause::CorruptCounter, &subject.to_string(), now)
        };
        let logged = (0..2000).filter(|subject| due_at(0, *subject).is_some()).count();
        assert_eq!(logged, SUBJECTS_MAX + 1);
        assert_eq!(due_at(1, 2000), None);
        assert_eq!(throttle.0.lock().len(), SUBJECTS_MAX + 1);
        assert_eq!(due_at(60, 3000), Some(DueLine { suppressed: None }), "there is room again");
    }
}
