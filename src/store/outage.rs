//! Whether Redis answers, as the log reports it: one line when an outage begins, one when its cause
//! changes, one when it ends.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::StoreError;
use crate::telemetry::LogThrottle;

/// An outage is over once the store has not failed for this long. Where some calls fail and others do
/// not, the log would otherwise follow the traffic.
const QUIET: Duration = Duration::from_secs(1);

/// Shared by all that notice whether the store answers.
#[derive(Debug, Clone, Default)]
pub struct Outage(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Read by every call; all else only where something has failed.
    is_down: AtomicBool,
    last: Mutex<Last>,
    /// One line for each cause in a minute: causes may alternate.
    causes: LogThrottle,
    connections: LogThrottle,
}

#[derive(Debug, Default)]
struct Last {
    failed: Option<Instant>,
    cause: String,
    /// Why the last connection could not be made. It explains why calls get no answer in time.
    connection: Option<(Instant, String)>,
}

impl Outage {
    /// A call got no answer.
    pub fn failed(&self, error: &StoreError) {
        let now = Instant::now();
        let mut last = self.last();
        last.failed = Some(now);
        let recent = last.connection.as_ref().filter(|(at, _)| now.duration_since(*at) < QUIET);
        let cause = match (error, recent) {
            (StoreError::TimedOut | StoreError::NoConnection, Some((_, cause))) => cause.clone(),
            _ => error.to_string(),
        };
        self.report(last, cause);
    }

    /// A connection could not be made. Others may still serve, so this alone is no outage.
    pub fn cannot_connect(&self, error: &StoreError) {
        let cause = error.to_string();
        let mut last = self.last();
        last.connection = Some((Instant::now(), cause.clone()));
        if self.0.is_down.load(Ordering::Relaxed) {
            self.report(last, cause);
        } else if self.0.connections.should_log(&cause) {
            tracing::warn!("cannot open a connection to Redis: {cause}");
        }
    }

    fn report(&self, mut last: std::sync::MutexGuard<'_, Last>, cause: String) {
        let began = !self.0.is_down.swap(true, Ordering::Relaxed);
        let changed = last.cause != cause;
        last.cause.clone_from(&cause);
        drop(last);
        let due = (began || changed) && self.0.causes.should_log(&cause);
        if began || due {
            tracing::warn!("Redis is unusable: {cause}; applying on_store_failure");
        }
    }

    /// A call got an answer. While all is well this is a single load.
    pub fn answered(&self) {
        if self.0.is_down.load(Ordering::Relaxed) {
            let failed = self.last().failed;
            if failed.is_none_or(|failed| failed.elapsed() >= QUIET) {
                self.ended();
            }
        }
    }

    /// The store is known to be back.
    pub fn ended(&self) {
        if self.0.is_down.swap(false, Ordering::Relaxed) {
            tracing::info!("Redis answers again");
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
