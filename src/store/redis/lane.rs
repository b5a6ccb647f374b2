//! Group commit: calls that come while Redis is asked wait, and go together in the next question. A
//! call that meets an idle lane waits for nobody.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::oneshot, task, time};

use super::{
    RedisTime,
    batch::{self, Batch},
    pool::{self, Held, Pool},
    script::{Answer, Scripts},
};
use crate::{
    engine::ledger::{Charge, Tally},
    store::StoreError,
    telemetry::StoreMetrics,
};

/// How many questions may be under way at once. One makes the fullest batches, which is what Redis is
/// spared by; docs/performance.md has the measure.
const QUESTIONS_MAX: usize = 1;

/// Where calls wait.
#[derive(Debug, Clone)]
pub(super) struct Lane(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    scripts: Scripts,
    pool: Pool,
    time: Arc<RedisTime>,
    metrics: StoreMetrics,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Questions that are under way.
    questions: usize,
}

#[derive(Debug)]
struct Waiting {
    charges: Box<[Charge]>,
    weight: usize,
    /// Whether its window was found to be another one already.
    was_stale: bool,
    answer: oneshot::Sender<Result<Vec<Tally>, StoreError>>,
}

impl Lane {
    pub(super) fn new(
        scripts: Scripts,
        pool: Pool,
        time: Arc<RedisTime>,
        metrics: StoreMetrics,
    ) -> Self {
        let queue = Mutex::default();
        Self(Arc::new(Shared { queue, scripts, pool, time, metrics }))
    }

    pub(super) fn scripts(&self) -> &Scripts {
        &self.0.scripts
    }

    /// Makes all charges of one call, or none. Dropped before it is sent, it is not charged.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn charge(&self, charges: &[Charge]) -> Result<Vec<Tally>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let weight = batch::weight(charges);
        let charges = charges.into();
        let is_idle = {
            let mut queue = self.0.queue();
            queue.waiting.push_back(Waiting { charges, weight, was_stale: false, answer });
            let is_idle = queue.questions < QUESTIONS_MAX;
            queue.questions += usize::from(is_idle);
            is_idle
        };
        if is_idle {
            // It runs behind the calls that this thread has read already, and so takes them along. It
            // ends with the last call that waits; each of them waits for its answer.
            tokio::spawn(Driver { shared: Arc::clone(&self.0), asks: true }.run());
        }
        answered.await.unwrap_or(Err(StoreError::TimedOut))
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held, and if it did, the queue would still be whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks until nobody waits.
struct Driver {
    shared: Arc<Shared>,
    asks: bool,
}

/// Also where its runtime ends under it; then the next call begins anew.
impl Drop for Driver {
    fn drop(&mut self) {
        if self.asks {
            self.shared.queue().questions -= 1;
        }
    }
}

impl Driver {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut held = None;
        while let Some(calls) = self.gather().await {
            // Whoever waits has waited longer; nobody is left to be answered after this.
            let asked = shared.ask(&mut held, calls);
            if time::timeout(shared.pool.patience(), asked).await.is_err() {
                held = None;
            }
        }
    }

    /// Lets those calls come along that this thread has received already: as long as there are more of
    /// them each time that it has looked, and there is room. It waits for none that is still on its way.
    async fn gather(&mut self) -> Option<Vec<Waiting>> {
        let mut known = 0;
        loop {
            let waiting = self.shared.queue().waiting.len();
            if waiting <= known || waiting >= batch::WEIGHT_MAX {
                return self.next();
            }
            known = waiting;
            task::yield_now().await;
        }
    }

    /// The calls that go next, at least one; `None` if nobody waits, and then the lane is idle.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        let mut queue = self.shared.queue();
        let mut calls = Vec::with_capacity(queue.waiting.len());
        let mut room = batch::WEIGHT_MAX;
        while let Some(call) = queue.waiting.front() {
            let is_wanted = !call.answer.is_closed();
            if is_wanted && !calls.is_empty() && call.weight > room {
                break;
            }
            room = room.saturating_sub(call.weight);
            calls.extend(queue.waiting.pop_front().filter(|_| is_wanted));
        }
        if calls.is_empty() {
            queue.questions -= 1;
            self.asks = false;
            return None;
        }
        Some(calls)
    }
}

impl Shared {
    async fn ask<'pool>(&'pool self, held: &mut Option<Held<'pool>>, calls: Vec<Waiting>) {
        let answers = match self.exchange(held, &calls).await {
            Ok(answers) => answers,
            Err(error) => {
                *held = None;
                calls.iter().map(|_| Err(error.clone())).collect()
            }
        };
        // Those that are asked again go first, and in their order.
        for (call, answer) in calls.into_iter().zip(answers).rev() {
            let answer = match answer {
                Ok(Answer::Judged(tallies)) => Ok(tallies),
                Ok(Answer::Unreadable(charges)) => Err(StoreError::Unreadable(charges)),
                // A wrong stamp is refused once at most, unless the window turns meanwhile.
                Ok(Answer::Stale) if call.was_stale => Err(StoreError::ClockUnsteady),
                Ok(Answer::Stale) => {
                    self.queue().waiting.push_front(Waiting { was_stale: true, ..call });
                    continue;
                }
                Err(error) => Err(error),
            };
            // Who does not wait any more was charged without an answer.
            drop(call.answer.send(answer));
        }
    }

    async fn exchange<'pool>(
        &'pool self,
        held: &mut Option<Held<'pool>>,
        calls: &[Waiting],
    ) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        let connection = match held {
            Some(held) => held,
            None => held.insert(self.pool.get().await?),
        };
        let stamp = self.time.now();
        let mut batch = Batch::default();
        calls.iter().for_each(|call| batch.add(&call.charges, stamp, &self.scripts.key_prefix));
        let answered = batch.ask(connection, &self.scripts, &self.metrics).await;
        let (now, answers) = answered.map_err(|error| pool::unavailable(&error))?;
        if let Some(now) = now {
            self.time.learn(now);
        }
        if !connection.is_usable() {
            *held = None;
        }
        let answer = |answer: redis::RedisResult<_>| answer.map_err(|it| pool::unavailable(&it));
        Ok(answers.into_iter().map(answer).collect())
    }
}
