//! Follows the overrides in the store, and ends each when its time has come, so that the path of a call reads no clock.

use std::time::Duration;

use tokio::{
    select,
    time::{self, Instant},
};

use super::Overrides;
use crate::store::StoreError;

/// How often the store is queried for changes.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// How often a store is queried whose user may not read them.
const POLL_UNPERMITTED_EVERY: Duration = Duration::from_secs(10);

impl Overrides {
    /// Follows the store, and ends what is due whatever the store does; never ends.
    pub async fn follow(&self) {
        tokio::join!(self.follow_store(), self.follow_ends());
    }

    async fn follow_store(&self) {
        loop {
            let polled = self.poll().await;
            self.report(&polled);
            let pause = match polled {
                Err(StoreError::NotPermitted(_)) => POLL_UNPERMITTED_EVERY,
                _ => POLL_EVERY,
            };
            time::sleep(pause).await;
        }
    }

    async fn follow_ends(&self) {
        loop {
            self.end_due();
            let next = Instant::now() + POLL_EVERY;
            select! {
                biased;
                () = time::sleep_until(next) => {}
                () = time::sleep_until(self.next_end().unwrap_or(next)) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    fn next_end(&self) -> Option<Instant> {
        let known = self.known.lock();
        let ends = known.in_force().map(|one| one.directive.until).min()?;
        Some(Instant::now() + known.now().until(ends))
    }

    /// Takes out of force what has ended, and notes the time.
    fn end_due(&self) {
        let in_force = self.in_force.load();
        let Some(directives) = &*in_force else { return };
        let mut known = self.known.lock();
        let now = known.now();
        directives.learn(now);
        if directives.all().iter().any(|directive| directive.until <= now) {
            self.put_in_force(&mut known);
        }
    }

    /// Logs that they are not known, once, and that they are again.
    fn report(&self, polled: &Result<(), StoreError>) {
        let mut known = self.known.lock();
        let count = known.in_force().count();
        match polled {
            Ok(()) if known.is_reported => {
                known.is_reported = false;
                tracing::info!("overrides are known: {count} in force");
            }
            Err(error @ StoreError::NotPermitted(_)) => {
                known.is_reported = true;
                // They are read again once they may be.
                known.fields = usize::MAX;
                let state = if known.is_known {
                    "the last known overrides apply"
                } else {
                    "overrides are off"
                };
                known.note_problem(Some(format!("{state}: {error}")));
            }
            Err(error) if !known.is_known && !known.is_reported => {
                known.is_reported = true;
                tracing::warn!(
                    "overrides are not known, and calls are decided without them until the store answers: {error}"
                );
            }
            Err(StoreError::WrongType) if known.is_known => {
                // It is read again once it can be.
                known.fields = usize::MAX;
                let problem =
                    "the key of the overrides holds something else; the last known overrides apply";
                known.note_problem(Some(problem.to_owned()));
            }
            _ => {}
        }
    }
}
