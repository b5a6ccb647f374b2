//! Turns for work that takes long: each worker does that of one call at a time, and what is ready comes in between.

use std::{future::poll_fn, iter, pin::pin};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::{self, JoinSet},
};

use super::workers::share;

/// One permit for each worker, and before them as many for all other threads, which share their tasks.
#[derive(Debug)]
pub struct WorkTurns {
    of_each: Box<[Semaphore]>,
    /// One permit for each call that may wait.
    waiting: Semaphore,
}

/// The most that wait in all, so that they take little memory: as when there were no turns, work beyond is done as it comes, and keeps
/// more from being read.
const WAITING_MAX: usize = 4096;

/// It ends when it is dropped.
#[derive(Debug)]
pub struct Turn<'turns>(#[expect(dead_code, reason = "held")] Option<SemaphorePermit<'turns>>);

impl WorkTurns {
    pub fn of_workers(count: usize) -> Self {
        let others = Semaphore::new(count.max(1));
        let of_each = iter::once(others).chain((0..count).map(|_| Semaphore::new(1))).collect();
        Self { of_each, waiting: Semaphore::new(WAITING_MAX) }
    }

    /// Waits for the turn of this worker. It comes after what is ready, and what has arrived.
    pub async fn take(&self) -> Turn<'_> {
        let (Ok(_waiting), Some(turn)) =
            (self.waiting.try_acquire(), self.of_each.get(share(self.of_each.len())))
        else {
            return Turn(None);
        };
        let turn = turn.acquire().await.ok();
        yield_to_others().await;
        Turn(turn)
    }
}

/// Waits until the runtime has run what is ready, and looked for input. Unlike [`yield_now`](task::yield_now), it goes on waiting
/// when it is polled again before that, as `select!` does when another branch is ready.
pub async fn yield_to_others() {
    JoinSet::from_iter([task::yield_now()]).join_all().await;
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
    use std::{
        future::pending,
        sync::LazyLock,
        task::{Context, Waker},
    };

    use super::*;
    use parking_lot::Mutex;

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
    async fn of_4_097_that_wait_for_their_turn_the_last_has_it_at_once() {
        let turns = WorkTurns::of_workers(0);
        let _taken = turns.take().await;
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(turns.take())).collect();
        let context = &mut Context::from_waker(Waker::noop());
        assert!(waiting.iter_mut().all(|turn| turn.as_mut().poll(context).is_pending()));
        assert!(pin!(turns.take()).poll(context).is_ready());
        waiting.pop();
        assert!(pin!(turns.take()).poll(context).is_pending());
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
