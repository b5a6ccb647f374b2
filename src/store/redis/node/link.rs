//! The link to one server: connections, its clock, and whether it answers.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{RedisError, RedisResult};
use tokio::select;

use super::{clock::RedisClock, pool, server_state::ServerState};
use crate::{
    engine::{ledger::Judgement, time::Timestamp},
    store::{
        Clock, StoreError, lateness,
        metrics::{StoreMetrics, in_store_span},
        redis::{
            script::{self, RedisOutcome, Reply},
            wire::connection::Connection,
        },
    },
};

/// How many times a call's window may be found stale before the call fails. It is stale once if the clocks
/// differ, and once more if the window ends meanwhile.
pub(crate) const QUESTIONS_MAX: u8 = 3;

/// The link to one server.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) state: Arc<ServerState>,
    pub(crate) clock: Arc<RedisClock>,
    pub(crate) metrics: StoreMetrics,
    acknowledged: Arc<AtomicU64>,
}

/// A question that goes to a server by itself.
pub(crate) trait Question {
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

/// What a server has decided.
#[derive(Debug, Clone)]
pub(crate) struct Decided<T> {
    pub(crate) answer: T,
    /// The server's time when it decided.
    pub(crate) at: Timestamp,
}

/// Why a server has not answered a question.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The store failed.
    Failed(StoreError),
    /// The store failed before the question was sent.
    NotSent(StoreError),
    /// The server does not have all keys of the question now, and has done nothing.
    Elsewhere(RedisError),
}

impl Link {
    /// A link to the server of this state. `clock` is ours, from which Redis's is guessed.
    pub(crate) fn new(state: ServerState, clock: Clock, metrics: StoreMetrics) -> Self {
        Self {
            state: Arc::new(state),
            clock: Arc::new(RedisClock::new(clock)),
            metrics,
            acknowledged: Arc::default(),
        }
    }

    /// Counts the charges of a call that the server has admitted. Returns their number.
    pub(crate) fn acknowledge(&self, judgement: &Judgement) -> u64 {
        let charges = if judgement.denied { 0 } else { judgement.tallies.len() };
        let charges = u64::try_from(charges).unwrap_or(u64::MAX);
        self.acknowledged.fetch_add(charges, Ordering::Relaxed);
        charges
    }

    /// Number of charges that the server has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Asks a question, and again while Redis says that its window is stale; with `made`, only in the windows that hold
    /// that time, and [`StoreError::ClockUnsteady`] says that they have ended. It is not asked while the breaker is open.
    pub(crate) async fn ask<Q: Question>(
        &self,
        question: &Q,
        made: Option<Timestamp>,
    ) -> Result<Decided<Q::Answer>, Unanswered> {
        if let Some(error) = self.state.breaker.refusal() {
            return Err(Unanswered::NotSent(error));
        }
        let is_sent = AtomicBool::new(false);
        let answer = select! {
            biased;
            answer = self.ask_until_present(question, made, &is_sent) => answer,
            error = self.state.opened() => Err(match is_sent.load(Ordering::Relaxed) {
                true => Unanswered::Failed(error),
                false => Unanswered::NotSent(error),
            }),
        };
        match &answer {
            Err(Unanswered::Failed(StoreError::ClockUnsteady)) if made.is_some() => {
                self.state.answered();
            }
            Err(Unanswered::Failed(error) | Unanswered::NotSent(error))
                if !matches!(error, StoreError::Corrupt(_)) =>
            {
                self.state.failed(error);
            }
            Err(Unanswered::Elsewhere(error)) if script::is_cluster_down(error) => {
                self.state.failed(&pool::unavailable(error));
            }
            _ => self.state.answered(),
        }
        answer
    }

    /// Waits for what the server owes us. If it is not there within `limit`, that counts as this failure.
    pub(crate) async fn owed<F: Future>(
        &self,
        answer: F,
        limit: Duration,
        failure: StoreError,
    ) -> F::Output {
        let mut answer = pin!(answer);
        match lateness::within(limit, answer.as_mut(), &self.metrics).await {
            Some(answer) => answer,
            None => {
                self.state.failed(&failure);
                answer.await
            }
        }
    }

    async fn ask_until_present<Q: Question>(
        &self,
        question: &Q,
        made: Option<Timestamp>,
        is_sent: &AtomicBool,
    ) -> Result<Decided<Q::Answer>, Unanswered> {
        // Less than a caller's own time, at whose end this is dropped.
        let limit = self.state.pool.timeout() / 4 * 3;
        let opened = self.owed(self.state.pool.get(), limit, StoreError::NoConnection).await;
        let mut connection = opened.map_err(Unanswered::NotSent)?;
        is_sent.store(true, Ordering::Relaxed);
        let mut assumed_now = made.unwrap_or_else(|| self.clock.now());
        for _ in 0..QUESTIONS_MAX {
            let sent = self.clock.send();
            let asked = question.ask(&mut connection, assumed_now, &self.metrics);
            let answer = self.owed(asked, limit, StoreError::TimedOut);
            let Reply { now, outcome } = in_store_span("EVALSHA", answer).await?;
            self.clock.learn(now, sent);
            match outcome {
                RedisOutcome::Decided(answer) => return Ok(Decided { answer, at: now }),
                RedisOutcome::Corrupt(charges) => return Err(StoreError::Corrupt(charges).into()),
                RedisOutcome::WriteRefused(refusal) => return Err(StoreError::from(refusal).into()),
                RedisOutcome::Elsewhere => return Err(script::unexpected_reply().into()),
                RedisOutcome::Stale if made.is_some() => break,
                RedisOutcome::Stale => {
                    self.metrics.stale(1);
                    assumed_now = now;
                }
            }
        }
        Err(StoreError::ClockUnsteady.into())
    }
}

impl From<StoreError> for Unanswered {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl From<RedisError> for Unanswered {
    fn from(error: RedisError) -> Self {
        if script::is_elsewhere(&error) {
            Self::Elsewhere(error)
        } else {
            Self::Failed(pool::unavailable(&error))
        }
    }
}

impl From<Unanswered> for StoreError {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Failed(error) | Unanswered::NotSent(error) => error,
            Unanswered::Elsewhere(error) => pool::unavailable(&error),
        }
    }
}
