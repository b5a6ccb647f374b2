//! Readings of counters and steps of walks take turns, so that decisions come in between.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{self, Instant},
};
use tollkeeper_base::process::calls::client_has_left;

/// How many counters all requests together read at a time. A step of a walk over the keys counts as this many.
pub(crate) const READ_AT_A_TIME: usize = 16;

/// After a reading, decisions have the store to themselves for as long as the reading took, but at most for this time: if it took
/// longer, the store stood still.
const PAUSE_MAX: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct ReadTurns {
    counters: Semaphore,
    paused_until: Mutex<Instant>,
}

impl Default for ReadTurns {
    fn default() -> Self {
        let counters = Semaphore::new(READ_AT_A_TIME);
        Self { counters, paused_until: Mutex::new(Instant::now()) }
    }
}

impl ReadTurns {
    /// Runs `reading`, which reads this many counters, when its turn comes, and returns what it found. `None` if the turn does not
    /// come before `until`, or the client leaves before.
    pub(crate) async fn read<T>(
        &self,
        counters: usize,
        until: Instant,
        reading: impl Future<Output = T>,
    ) -> Option<T> {
        let counters = u32::try_from(counters.min(READ_AT_A_TIME)).ok()?;
        let turn = async {
            let turn = self.counters.acquire_many(counters).await.ok()?;
            let paused_until = *self.paused_until.lock();
            if client_has_left() {
                return None;
            }
            if paused_until > Instant::now() {
                time::sleep_until(paused_until).await;
            }
            Some(turn)
        };
        let _turn = time::timeout_at(until, turn).await.ok()??;
        let began = Instant::now();
        let found = reading.await;
        let pause = began.elapsed().min(PAUSE_MAX);
        let mut paused_until = self.paused_until.lock();
        *paused_until = (Instant::now() + pause).max(*paused_until);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use futures_util::{FutureExt as _, future::join_all};
    use tokio::task;

    use super::*;

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn all_requests_together_read_so_many_counters_at_a_time() {
        let (turns, until) = (ReadTurns::default(), in_a_minute());
        let (now, most) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let read = |counters| {
            turns.read(counters, until, async move {
                most.fetch_max(now.fetch_add(counters, Relaxed) + counters, Relaxed);
                task::yield_now().await;
                now.fetch_sub(counters, Relaxed);
            })
        };
        let read = join_all((0..40).map(|request| read([4, 16][request % 2]))).await;
        assert!(read.iter().all(Option::is_some));
        assert_eq!(most.load(Relaxed), READ_AT_A_TIME);
    }

    #[tokio::test]
    async fn the_store_is_left_to_decisions_for_as_long_as_a_reading_took() {
        let (turns, until) = (ReadTurns::default(), in_a_minute());
        let slow = async {
            let began = Instant::now();
            time::sleep(Duration::from_millis(20)).await;
            (began, Instant::now())
        };
        let (began, ended) = turns.read(1, until, slow).await.unwrap();
        let next = turns.read(1, until, async { Instant::now() }).await.unwrap();
        assert!(next >= ended + (ended - began));
    }

    #[tokio::test]
    async fn nothing_is_read_whose_turn_comes_too_late() {
        let turns = ReadTurns::default();
        let mut first = Box::pin(turns.read(READ_AT_A_TIME, in_a_minute(), pending::<()>()));
        assert!(first.as_mut().now_or_never().is_none());
        let late = turns.read(1, Instant::now(), async { panic!("it was read") });
        assert_eq!(late.await, None::<()>);
    }
}
