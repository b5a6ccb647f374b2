//! Group commit: calls that come while Redis is asked wait, and go together in the next question. A
//! call that meets an idle lane waits for nobody, and one that meets a late answer not for that.
//!
//! Each worker has a driver, a task that asks when it is its turn, and that hands its own worker's calls
//! their answers: to wake many tasks of another thread costs more than to wake one.

mod driver;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use self::driver::Driver;
use super::{RedisTime, batch::Decider, pool::Pool, script::Scripts};
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
    /// One for each driver. The first is for whoever is no worker.
    desks: Vec<Desk>,
    scripts: Scripts,
    pool: Pool,
    time: Arc<RedisTime>,
    metrics: StoreMetrics,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Call>,
    /// The driver that asks the next question. It is its turn until nobody waits.
    turn: Option<usize>,
}

/// What a driver is told: that it is its turn, or what another has learned for its worker's calls.
#[derive(Debug, Default)]
struct Desk {
    has_driver: AtomicBool,
    told: Notify,
    answers: Mutex<Vec<(oneshot::Sender<Judged>, Judged)>>,
}

/// What a call is told.
type Judged = Result<Vec<Tally>, StoreError>;

#[derive(Debug)]
struct Call {
    charges: Box<[Charge]>,
    decider: Decider,
    /// Whether its window was found to be another one already.
    was_stale: bool,
    since: Instant,
    desk: usize,
    answer: oneshot::Sender<Judged>,
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

    /// Makes all charges of one call, at least one, or none. Dropped before it is sent, it is not
    /// charged.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn charge(&self, charges: &[Charge]) -> Judged {
        let (answer, answered) = oneshot::channel();
        self.0.enqueue(Call {
            charges: charges.into(),
            decider: Decider::of(charges),
            was_stale: false,
            since: Instant::now(),
            desk: workers::share(self.0.desks.len()),
            answer,
        });
        // Without an answer its question was not finished in time.
        answered.await.unwrap_or(Err(StoreError::TimedOut))
    }
}

impl Shared {
    /// Queues a call. If nobody asks, it is the turn of its worker's driver.
    fn enqueue(self: &Arc<Self>, call: Call) {
        let number = call.desk;
        let Some(desk) = self.desks.get(number) else { return };
        if !desk.has_driver.swap(true, Ordering::AcqRel) {
            Driver::start(Arc::clone(self), number);
        }
        let mut queue = self.queue();
        queue.waiting.push_back(call);
        self.offer_turn(queue, number);
    }

    /// Queues calls that are asked once more, in front and in their order.
    fn enqueue_again(&self, calls: Vec<Call>, desk: usize) {
        if calls.is_empty() {
            return;
        }
        let mut queue = self.queue();
        calls.into_iter().rev().for_each(|call| queue.waiting.push_front(call));
        self.offer_turn(queue, desk);
    }

    /// If it is nobody's turn, it is that of this desk's driver.
    fn offer_turn(&self, mut queue: MutexGuard<'_, Queue>, number: usize) {
        if let (None, Some(desk)) = (queue.turn, self.desks.get(number)) {
            queue.turn = Some(number);
            desk.told.notify_one();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held, and if it did, the queue would still be whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    fn answers(&self) -> MutexGuard<'_, Vec<(oneshot::Sender<Judged>, Judged)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
