//! Turns for work that takes long: each worker does that of one call at a time, and what is ready comes in between.

use std::{future::poll_fn, iter, pin::pin};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task,
};

use super::workers::share;

/// One permit for each worker, and before them as many for all other threads, which share their tasks.
#[derive(Debug)]
pub struct WorkTurns(Box<[Semaphore]>);

/// It ends when it is dropped.
#[derive(Debug)]
pub struct Turn<'turns>(#[expect(dead_code, reason = "held")] Option<SemaphorePermit<'turns>>);

impl WorkTurns {
    pub fn of_workers(count: usize) -> Self {
        let others = Semaphore::new(count.max(1));
        Self(iter::once(others).chain((0..count).map(|_| Semaphore::new(1))).collect())
    }

    /// Waits for the turn of this worker. It comes after what is ready, and what has arrived.
    pub async fn take(&self) -> Turn<'_> {
        let turn = match self.0.get(share(self.0.len())) {
            Some(turn) => turn.acquire().await.ok(),
            None => None,
        };
        // The runtime runs what is ready, and looks for input, before it goes on here.
        task::yield_now().await;
        Turn(turn)
    }
}

impl Turn<'_> {
    /// Does work in this turn, which ends when the work first waits.
    pub async fn begin<T>(self, work: impl Future<Output = T>) -> T {
        let (mut turn, mut work) = (Some(self), pin!(work));
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            turn = None;
            polled
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::LazyLock};

    use parking_lot::Mutex;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn what_is_ready_comes_between_the_work_of_one_call_and_that_of_the_next() {
        static TURNS: LazyLock<WorkTurns> = LazyLock::new(|| WorkTurns::of_workers(0));
        static DONE: Mutex<String> = Mutex::new(String::new());
        let long = || async { TURNS.take().await.begin(async { DONE.lock().push('L') }).await };
        let mut running = JoinSet::from_iter([long(), long(), long()]);
        while !running.is_empty() {
            drop(running.try_join_next());
            DONE.lock().push('s');
            task::yield_now().await;
        }
        let done = DONE.lock();
        assert!(done.matches('L').count() == 3 && !done.contains("LL"), "{done}");
    }

    #[tokio::test]
    async fn work_that_waits_leaves_the_turn_to_others() {
        let turns = WorkTurns::of_workers(0);
        let waits = async { turns.take().await.begin(pending()).await };
        let next = async { turns.take().await.begin(async { "the next" }).await };
        let done = tokio::select! {
            biased;
            done = waits => done,
            done = next => done,
        };
        assert_eq!(done, "the next");
    }
}
