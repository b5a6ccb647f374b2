//! Group commit: calls that come while Redis is asked wait, and go together in the next question. A
//! call that meets an idle lane waits for nobody.
//!
//! Each worker has a driver, a task that asks when it is its worker's turn, and that hands its worker's
//! calls their answers: to wake many tasks of another thread costs more than to wake one.

mod driver;

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use self::driver::Driver;
use super::{RedisTime, batch, pool::Pool, script::Scripts};
use crate::{
    engine::ledger::{Charge, Tally},
    store::StoreError,
    telemetry::StoreMetrics,
    workers,
};

/// Where calls wait.
#[derive(Debug, Clone)]
pub(super) struct Lane(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// The first is for whoever is no worker.
    desks: Vec<Desk>,
    scripts: Scripts,
    pool: Pool,
    time: Arc<RedisTime>,
    metrics: StoreMetrics,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Call>,
    /// Whether a driver asks, and will go on until nobody waits.
    asks: bool,
}

/// What one driver is told.
#[derive(Debug, Default)]
struct Desk {
    started: OnceLock<()>,
    told: Notify,
    tray: Mutex<Tray>,
}

#[derive(Debug, Default)]
struct Tray {
    /// Whether it is the one that asks.
    is_its_turn: bool,
    /// What others have learned for its worker's calls.
    answers: Vec<(oneshot::Sender<Answer>, Answer)>,
}

type Answer = Result<Vec<Tally>, StoreError>;

#[derive(Debug)]
struct Call {
    charges: Box<[Charge]>,
    weight: usize,
    /// Whether its window was found to be another one already.
    was_stale: bool,
    /// When it waits no longer.
    deadline: Instant,
    desk: usize,
    /// `None` once it has been answered.
    answer: Option<oneshot::Sender<Answer>>,
}

impl Lane {
    pub(super) fn new(
        scripts: Scripts,
        pool: Pool,
        time: Arc<RedisTime>,
        metrics: StoreMetrics,
    ) -> Self {
        let desks = (0..=pool.workers()).map(|_| Desk::default()).collect();
        Self(Arc::new(Shared { queue: Mutex::default(), desks, scripts, pool, time, metrics }))
    }

    pub(super) fn scripts(&self) -> &Scripts {
        &self.0.scripts
    }

    /// Makes all charges of one call, or none. Dropped before it is sent, it is not charged.
    ///
    /// # Errors
    /// See [`StoreError`]; [`StoreError::TimedOut`] as soon as the pool's patience is over.
    pub(super) async fn charge(&self, charges: &[Charge]) -> Answer {
        let number = workers::here().map_or(0, |worker| worker + 1) % self.0.desks.len().max(1);
        let Some(desk) = self.0.desks.get(number) else { return Err(StoreError::TimedOut) };
        desk.started.get_or_init(|| Driver::start(Arc::clone(&self.0), number));

        let (answer, answered) = oneshot::channel();
        let call = Call {
            charges: charges.into(),
            weight: batch::weight(charges),
            was_stale: false,
            deadline: Instant::now() + self.0.pool.patience(),
            desk: number,
            answer: Some(answer),
        };
        if self.0.enqueue(call) {
            desk.tray().is_its_turn = true;
            desk.told.notify_one();
        }
        answered.await.unwrap_or(Err(StoreError::TimedOut))
    }
}

impl Shared {
    /// Queues a call; tells whether nobody asks, and so the caller's driver must.
    fn enqueue(&self, call: Call) -> bool {
        let mut queue = self.queue();
        queue.waiting.push_back(call);
        !mem::replace(&mut queue.asks, true)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held, and if it did, the queue would still be whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    fn tray(&self) -> MutexGuard<'_, Tray> {
        self.tray.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
