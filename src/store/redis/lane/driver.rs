//! Asks Redis for all who wait, and hands out what it answers.

use std::{
    iter, mem,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    select, task,
    time::{self, Instant},
};

use super::{Call, Desk, Shared};
use crate::store::{
    StoreError,
    redis::{
        batch::{Batch, WEIGHT_MAX},
        pool,
        script::Answer,
    },
};

/// A question that takes longer than this part of a call's patience is late.
const LATE_PART: u32 = 8;

/// One worker's. It lives as long as its runtime.
pub(super) struct Driver {
    shared: Arc<Shared>,
    desk: usize,
    /// How long the last question took.
    round_trip: Duration,
}

/// Its runtime has ended under it. The next call there starts another one; until then others may ask.
impl Drop for Driver {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        if queue.turn == Some(self.desk) {
            queue.turn = None;
        }
        if let Some(desk) = self.shared.desks.get(self.desk) {
            desk.has_driver.store(false, Ordering::Release);
            desk.answers().clear();
        }
    }
}

impl Driver {
    #[expect(clippy::disallowed_methods, reason = "it ends with its worker's runtime")]
    pub(super) fn start(shared: Arc<Shared>, desk: usize) {
        tokio::spawn(Self { shared, desk, round_trip: Duration::ZERO }.run());
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(desk) = shared.desks.get(self.desk) else { return };
        let mut questions = FuturesUnordered::new();
        // One for all questions: to set it further on costs next to nothing, and a new one a system call.
        let mut late = pin!(time::sleep(Duration::ZERO));
        // The number of the last question, and whether it is out and not late.
        let (mut last, mut is_asked) = (0_u64, false);
        loop {
            select! {
                biased;
                Some((number, took)) = questions.next() => {
                    self.round_trip = took;
                    is_asked &= number != last;
                }
                () = desk.told.notified() => self.hand_out(desk),
                // Whoever waits asks on another connection, and not after this answer.
                () = late.as_mut(), if is_asked => is_asked = false,
            }
            if !is_asked && let Some(calls) = self.gather().await {
                last += 1;
                questions.push(ask(&shared, self.desk, calls).map(move |took| (last, took)));
                late.as_mut().reset(Instant::now() + shared.pool.patience() / LATE_PART);
                is_asked = true;
            }
        }
    }

    /// Hands its worker's calls what others have learned for them.
    fn hand_out(&self, desk: &Desk) {
        for (call, answer) in mem::take(&mut *desk.answers()) {
            // Who does not wait any more was charged without an answer.
            drop(call.send(answer));
        }
    }

    /// The calls that go next, if it is its turn and anybody waits. As long as more have come each time
    /// that it looks, it lets this thread read on what has arrived; it waits for none that has not.
    async fn gather(&mut self) -> Option<Vec<Call>> {
        let mut known = 0;
        loop {
            let waiting = {
                let queue = self.shared.queue();
                if queue.turn != Some(self.desk) {
                    return None;
                }
                queue.waiting.len()
            };
            if waiting <= known || waiting >= WEIGHT_MAX {
                return self.next();
            }
            known = waiting;
            task::yield_now().await;
        }
    }

    /// The calls that go next, at least one; `None` if nobody waits, and then its turn is over.
    ///
    /// Those for whom the answer would come too late are not asked for: else, where more calls come than
    /// Redis can answer, all would be.
    fn next(&self) -> Option<Vec<Call>> {
        let patience = self.shared.pool.patience();
        let waits_at_most = patience - self.round_trip.min(patience / 2);
        let now = Instant::now();
        let mut queue = self.shared.queue();
        let mut calls = Vec::with_capacity(queue.waiting.len().min(WEIGHT_MAX));
        let mut room = WEIGHT_MAX;
        while let Some(call) = queue.waiting.front() {
            let is_wanted = !call.answer.is_closed() && now - call.since <= waits_at_most;
            if is_wanted {
                let weight = call.decider.weight(&call.charges);
                if !calls.is_empty() && weight > room {
                    break;
                }
                room = room.saturating_sub(weight);
            }
            calls.extend(queue.waiting.pop_front().filter(|_| is_wanted));
        }
        if calls.is_empty() {
            queue.turn = None;
            return None;
        }
        Some(calls)
    }
}

/// Asks, and hands out what is answered to the calls of `own` and of other desks. Tells how long it took.
async fn ask(shared: &Shared, own: usize, calls: Vec<Call>) -> Duration {
    let began = Instant::now();
    // Nobody who was asked for has more patience than this.
    match time::timeout(shared.pool.patience(), shared.exchange(&calls)).await {
        Ok(Ok(answers)) => shared.hand_out(own, calls.into_iter().zip(answers)),
        Ok(Err(error)) => {
            let answers = iter::repeat_with(|| Err(error.clone()));
            shared.hand_out(own, calls.into_iter().zip(answers));
        }
        Err(_) => shared.metrics.lost("EVALSHA", began.elapsed()),
    }
    began.elapsed()
}

impl Shared {
    fn hand_out(
        &self,
        own: usize,
        answered: impl Iterator<Item = (Call, Result<Answer, StoreError>)>,
    ) {
        let (mut again, mut others) = (Vec::new(), Vec::new());
        for (call, answer) in answered {
            let answer = match answer {
                Ok(Answer::Judged(tallies)) => Ok(tallies),
                Ok(Answer::Unreadable(charges)) => Err(StoreError::Unreadable(charges)),
                // A wrong stamp is refused once at most, unless the window turns meanwhile.
                Ok(Answer::Stale) if call.was_stale => Err(StoreError::ClockUnsteady),
                Ok(Answer::Stale) => {
                    again.push(Call { was_stale: true, ..call });
                    continue;
                }
                Err(error) => Err(error),
            };
            match self.desks.get(call.desk) {
                Some(desk) if call.desk != own => {
                    desk.answers().push((call.answer, answer));
                    others.push(call.desk);
                }
                // Who does not wait any more was charged without an answer.
                _ => drop(call.answer.send(answer)),
            }
        }
        others.dedup();
        for desk in others.into_iter().filter_map(|desk| self.desks.get(desk)) {
            desk.told.notify_one();
        }
        self.enqueue_again(again, own);
    }

    async fn exchange(
        &self,
        calls: &[Call],
    ) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        let mut connection = self.pool.get().await?;
        let stamp = self.time.now();
        let mut batch = Batch::default();
        for Call { charges, decider, .. } in calls {
            batch.add(*decider, charges, stamp, &self.scripts.key_prefix);
        }
        let (now, answers) = batch.ask(&mut connection, &self.scripts, &self.metrics).await;
        if let Some(now) = now {
            self.time.learn(now);
        }
        let answer = |answer: redis::RedisResult<_>| answer.map_err(|it| pool::unavailable(&it));
        Ok(answers.into_iter().map(answer).collect())
    }
}
