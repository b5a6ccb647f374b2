//! Log lines about outages of Redis: one when an outage begins, one when its cause changes, one when it
//! ends. Outages that begin within a second of the last such line are logged only if they last.

use std::{
    collections::BTreeSet,
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::time::Instant;
use tollkeeper_base::telemetry::{EventKind, LogCause, due_line, happened};

use super::StoreError;

/// How long no call may have failed before an outage is over. While some calls fail and others do not, each
/// of them would otherwise add a line.
const QUIET: Duration = Duration::from_secs(1);

/// Whether a server of the store answers; clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Outage(Arc<State>);

/// `: ` and the modes of the rules in force, separated by commas; empty without rules.
static MODES: RwLock<String> = RwLock::new(String::new());

/// Names these modes of `on_store_failure` in the lines about outages.
pub fn modes_in_force(modes: &BTreeSet<&'static str>) {
    let modes: Vec<&str> = modes.iter().copied().collect();
    let start = if modes.is_empty() { "" } else { ": " };
    *MODES.write() = format!("{start}{}", modes.join(", "));
}

#[derive(Debug, Default)]
struct State {
    /// In log lines, which server it is: ` at host:port`; empty where no server is known.
    location: String,
    /// Read by every call; the other fields only after a failure.
    is_down: AtomicBool,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    failed: Option<Instant>,
    cause: String,
    /// When the last line about a beginning was logged, and whether it was about this outage.
    logged: Option<Instant>,
    is_logged: bool,
    /// Why the last connection could not be opened, which explains why calls get no answer in time.
    connection: Option<(Instant, String)>,
}

impl Outage {
    pub fn at(address: impl fmt::Display) -> Self {
        Self(Arc::new(State { location: format!(" at {address}"), ..State::default() }))
    }

    /// Records that a call got no answer.
    pub fn failed(&self, error: &StoreError) {
        let now = Instant::now();
        let mut last = self.0.last.lock();
        last.failed = Some(now);
        let recent = last.connection.as_ref().filter(|(at, _)| now.duration_since(*at) < QUIET);
        let cause = match (error, recent) {
            (StoreError::TimedOut | StoreError::NoConnection, Some((_, cause))) => cause.clone(),
            _ => error.to_string(),
        };
        self.report(now, last, cause);
    }

    /// Records that a connection could not be opened. This alone is no outage: other connections may work.
    pub fn cannot_connect(&self, error: &StoreError) {
        let (now, cause) = (Instant::now(), error.to_string());
        let mut last = self.0.last.lock();
        last.connection = Some((now, cause.clone()));
        if self.lasts() {
            self.report(now, last, cause);
            return;
        }
        let subject = format!("{}: {cause}", self.0.location);
        if let Some(line) = due_line(LogCause::StoreConnection, &subject) {
            let suppressed = line.suppressed;
            tracing::warn!(suppressed, "cannot open a connection to Redis{subject}");
        }
    }

    /// The error of a call for which no connection could be opened.
    pub fn no_connection(&self) -> StoreError {
        let cause = self.0.last.lock().connection.as_ref().map(|(_, cause)| cause.clone());
        cause.map_or(StoreError::NoConnection, StoreError::Unavailable)
    }

    fn report(&self, now: Instant, mut last: MutexGuard<'_, Last>, cause: String) {
        self.0.is_down.store(true, Ordering::Relaxed);
        let begins = last.begins(now);
        let is_new = last.is_logged && last.cause != cause;
        last.cause.clone_from(&cause);
        drop(last);
        if !begins && !is_new {
            return;
        }
        let location = &self.0.location;
        if begins {
            happened(EventKind::StoreLost, format!("Redis{location} is unusable: {cause}"));
        }
        // Causes may alternate.
        let line = due_line(LogCause::StoreOutage, &format!("{location}: {cause}"));
        if begins || line.is_some() {
            let suppressed = line.and_then(|line| line.suppressed);
            tracing::warn!(
                suppressed,
                "Redis{location} is unusable: {cause}; applying on_store_failure{}",
                MODES.read()
            );
        }
    }

    /// Records that a call got an answer. Without an outage this costs a single load.
    pub fn answered(&self) {
        if self.lasts() {
            let failed = self.0.last.lock().failed;
            if failed.is_none_or(|failed| failed.elapsed() >= QUIET) {
                self.ended();
            }
        }
    }

    /// Ends the outage: the store is known to answer.
    pub fn ended(&self) {
        if self.end() {
            let text = format!("Redis{} answers again", self.0.location);
            tracing::info!("{text}");
            happened(EventKind::StoreBack, text);
        }
    }

    /// Whether an outage has begun and has not ended.
    pub fn lasts(&self) -> bool {
        self.0.is_down.load(Ordering::Relaxed)
    }

    /// Ends the outage of a server that is retired.
    pub fn retired(&self) {
        if self.end() {
            tracing::info!("Redis{} is no longer used", self.0.location);
        }
    }

    /// Ends the outage, and returns whether its beginning was logged.
    fn end(&self) -> bool {
        self.0.is_down.swap(false, Ordering::Relaxed)
            && mem::take(&mut self.0.last.lock().is_logged)
    }
}

impl Last {
    /// Whether the line about the beginning of the outage is due; the first is due at once.
    fn begins(&mut self, now: Instant) -> bool {
        let is_due = |at| now.saturating_duration_since(at) >= QUIET;
        let begins = !self.is_logged && self.logged.is_none_or(is_due);
        if begins {
            (self.logged, self.is_logged) = (Some(now), true);
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_that_follow_each_other_quickly_cost_a_pair_of_lines_a_second() {
        let (outage, start) = (Outage::default(), Instant::now());
        // When calls fail in each outage, in milliseconds, and which of them are logged.
        let outages: [(&[u64], &[u64]); 6] = [
            (&[0, 1], &[0]),
            (&[3], &[]),
            (&[999, 1000, 1001], &[1000]),
            (&[1002, 1999], &[]),
            (&[2000], &[2000]),
            (&[9000], &[9000]),
        ];
        for (failures, expected) in outages {
            let is_logged = |ms: &u64| {
                let now = start + Duration::from_millis(*ms);
                outage.report(now, outage.0.last.lock(), "refused".to_owned());
                outage.0.last.lock().logged == Some(now)
            };
            let logged: Vec<u64> = failures.iter().copied().filter(is_logged).collect();
            assert_eq!((&*logged, outage.end()), (expected, !expected.is_empty()));
        }
    }
}
