//! One Redis server: the connections to it, and its clock.

use std::{sync::Arc, time::Duration};

use redis::RedisResult;
use tokio::time;

use super::{
    clock::RedisClock,
    connection::Connection,
    pool::{self, Pool},
    script::{RedisOutcome, Reply},
};
use crate::{
    engine::time::Timestamp,
    store::{Clock, StoreError},
    telemetry::StoreMetrics,
};

/// How often a Redis that is absent at the start is tried.
const REACH_EVERY: Duration = Duration::from_millis(250);

/// How many times a call's window may be found stale before the call fails. It is stale once if the clocks
/// differ, and once more if the window ends meanwhile.
pub(super) const QUESTIONS_MAX: u8 = 3;

/// One Redis server.
#[derive(Debug, Clone)]
pub struct RedisNode {
    pub(super) pool: Pool,
    pub(super) clock: Arc<RedisClock>,
    pub(super) metrics: StoreMetrics,
}

/// A question that goes to Redis by itself.
pub(super) trait Question {
    /// What it is answered.
    type Answer;

    /// Asks once, in the windows that hold `assumed_now`.
    fn ask(
        &self,
        connection: &mut Connection,
        assumed_now: Timestamp,
        metrics: &StoreMetrics,
    ) -> impl Future<Output = RedisResult<Reply<Self::Answer>>> + Send;
}

impl RedisNode {
    /// The server behind `pool`. `clock` is ours, from which Redis's is guessed.
    pub fn new(pool: Pool, clock: Clock, metrics: StoreMetrics) -> Self {
        Self { pool, clock: Arc::new(RedisClock::new(clock)), metrics }
    }

    /// Asks a question, and again while Redis says that its window is stale.
    pub(super) async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer, StoreError> {
        let mut connection = self.pool.get().await?;
        let mut assumed_now = self.clock.now();
        for _ in 0..QUESTIONS_MAX {
            let sent = self.clock.send();
            let reply = question.ask(&mut connection, assumed_now, &self.metrics).await;
            let Reply { now, outcome } = reply.map_err(|error| pool::unavailable(&error))?;
            self.clock.learn(now, sent);
            match outcome {
                RedisOutcome::Decided(answer) => return Ok(answer),
                RedisOutcome::Corrupt(charges) => return Err(StoreError::Corrupt(charges)),
                RedisOutcome::WriteRefused(refusal) => return Err(refusal.into()),
                RedisOutcome::Stale => assumed_now = now,
            }
        }
        Err(StoreError::ClockUnsteady)
    }

    /// Waits until Redis has answered once.
    pub(super) async fn reached(&self) {
        while self.pool.get().await.is_err() {
            time::sleep(REACH_EVERY).await;
        }
    }
}
