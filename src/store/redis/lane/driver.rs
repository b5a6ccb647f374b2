//! Asks Redis for all who wait, and hands out what it answers.

use std::{
    iter, mem,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use tokio::{
    select,
    sync::oneshot,
    task,
    time::{self, Sleep},
};

use super::{Call, Shared, Tray};
use crate::store::{
    StoreError,
    redis::{
        batch::{self, Batch},
        pool::{self, Held},
        script::Answer,
    },
};

/// One worker's. It lives as long as its runtime.
pub(super) struct Driver {
    shared: Arc<Shared>,
    desk: usize,
    /// Whether it is the one that asks.
    asks: bool,
}

/// Also where its runtime ends under it; then the next call's driver asks.
impl Drop for Driver {
    fn drop(&mut self) {
        if self.asks {
            self.shared.queue().asks = false;
        }
    }
}

impl Driver {
    pub(super) fn start(shared: Arc<Shared>, desk: usize) {
        tokio::spawn(Self { shared, desk, asks: false }.run());
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(desk) = shared.desks.get(self.desk) else { return };
        // One for all questions: to set it further on costs next to nothing, and a new one a system call.
        let mut alarm = Box::pin(time::sleep(Duration::ZERO));
        loop {
            desk.told.notified().await;
            let Tray { is_its_turn, answers } = mem::take(&mut *desk.tray());
            for (call, answer) in answers {
                // Who does not wait any more was charged without an answer.
                drop(call.send(answer));
            }
            if is_its_turn {
                self.asks = true;
                let mut held = None;
                while let Some(calls) = self.gather().await {
                    self.ask(&shared, &mut held, calls, alarm.as_mut()).await;
                }
            }
        }
    }

    /// Lets those calls come along that this thread has received already: as long as there are more of
    /// them each time that it has looked, and there is room. It waits for none that is still on its way.
    async fn gather(&mut self) -> Option<Vec<Call>> {
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
    fn next(&mut self) -> Option<Vec<Call>> {
        let mut queue = self.shared.queue();
        let mut calls = Vec::with_capacity(queue.waiting.len());
        let mut room = batch::WEIGHT_MAX;
        while let Some(call) = queue.waiting.front() {
            let is_wanted = call.answer.as_ref().is_some_and(|answer| !answer.is_closed());
            if is_wanted && !calls.is_empty() && call.weight > room {
                break;
            }
            room = room.saturating_sub(call.weight);
            calls.extend(queue.waiting.pop_front().filter(|_| is_wanted));
        }
        queue.asks = !calls.is_empty();
        self.asks = queue.asks;
        self.asks.then_some(calls)
    }

    async fn ask<'pool>(
        &self,
        shared: &'pool Shared,
        held: &mut Option<Held<'pool>>,
        mut calls: Vec<Call>,
        mut alarm: Pin<&mut Sleep>,
    ) {
        let mut waiting: Vec<_> = calls.iter_mut().map(|call| call.answer.take()).collect();
        let answered = {
            let mut exchange = pin!(shared.exchange(held, &calls));
            // The calls in their order, and so those first that have waited longest.
            let mut patient = calls.iter().zip(&mut waiting);
            loop {
                let Some((call, waiting)) = patient.next() else { break None };
                alarm.as_mut().reset(call.deadline);
                select! {
                    biased;
                    answered = &mut exchange => break Some(answered),
                    () = alarm.as_mut() => {
                        let late = waiting.take().map(|it| it.send(Err(StoreError::TimedOut)));
                        drop(late);
                    }
                }
            }
        };
        let calls = calls.into_iter().zip(waiting);
        match answered {
            Some(Ok(answers)) => self.hand_out(calls.zip(answers)),
            Some(Err(error)) => {
                *held = None;
                self.hand_out(calls.zip(iter::repeat_with(|| Err(error.clone()))));
            }
            // Its connection still owes an answer.
            None => *held = None,
        }
    }

    fn hand_out(&self, answered: impl Iterator<Item = (Asked, Result<Answer, StoreError>)>) {
        let mut again = Vec::new();
        for ((call, waiting), answer) in answered {
            let Some(waiting) = waiting else { continue };
            let answer = match answer {
                Ok(Answer::Judged(tallies)) => Ok(tallies),
                Ok(Answer::Unreadable(charges)) => Err(StoreError::Unreadable(charges)),
                // A wrong stamp is refused once at most, unless the window turns meanwhile.
                Ok(Answer::Stale) if call.was_stale => Err(StoreError::ClockUnsteady),
                Ok(Answer::Stale) => {
                    again.push(Call { was_stale: true, answer: Some(waiting), ..call });
                    continue;
                }
                Err(error) => Err(error),
            };
            match self.shared.desks.get(call.desk) {
                Some(desk) if call.desk != self.desk => desk.tray().answers.push((waiting, answer)),
                // Who does not wait any more was charged without an answer.
                _ => drop(waiting.send(answer)),
            }
        }
        for (number, desk) in self.shared.desks.iter().enumerate() {
            if number != self.desk && !desk.tray().answers.is_empty() {
                desk.told.notify_one();
            }
        }
        if !again.is_empty() {
            let mut queue = self.shared.queue();
            again.into_iter().rev().for_each(|call| queue.waiting.push_front(call));
        }
    }
}

/// A call, and who waits for its answer, unless that was too long.
type Asked = (Call, Option<oneshot::Sender<super::Answer>>);

impl Shared {
    async fn exchange<'pool>(
        &'pool self,
        held: &mut Option<Held<'pool>>,
        calls: &[Call],
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
