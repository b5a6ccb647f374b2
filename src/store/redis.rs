//! Counters in Redis: one script run decides a call, on Redis's own clock.

pub mod pool;
pub mod script;
mod transaction;

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use tokio::time;

use self::{
    pool::Pool,
    script::{Answer, Looked, Scripts},
};
use super::{Clear, Clock, StoreError};
use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, Standing, Tally},
        time::Timestamp,
    },
    telemetry::StoreMetrics,
};

/// How often an absent Redis is looked for at the start.
const REACH_EVERY: Duration = Duration::from_millis(250);

/// How a call is decided.
#[derive(Debug)]
pub enum How {
    /// In one script run.
    Scripts(Scripts),
    /// By transactions, where the server runs no scripts; fixed windows only.
    Transactions {
        /// What keys begin with.
        key_prefix: String,
    },
}

/// Counters in Redis.
#[derive(Debug)]
pub struct RedisStore {
    pool: Pool,
    how: How,
    clock: Clock,
    /// Redis's clock less ours, in milliseconds, as the last reply told. Only a guess that saves a
    /// second question: the script refuses a stamp that is wrong.
    offset_ms: AtomicI64,
    metrics: StoreMetrics,
}

impl RedisStore {
    /// A store behind `pool`. It connects when it is first asked.
    pub fn new(pool: Pool, how: How, clock: Clock, metrics: StoreMetrics) -> Self {
        Self { pool, how, clock, offset_ms: AtomicI64::new(0), metrics }
    }

    /// Makes all charges of one call, or none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge(&self, charges: &[Charge]) -> Result<Vec<Tally>, StoreError> {
        let mut connection = self.pool.get().await?;
        let mut stamp = self.now();
        // A wrong stamp is refused once at most, unless the window turns under the second question.
        for _ in 0..2 {
            let answer = match &self.how {
                How::Scripts(it) => it.charge(&mut connection, charges, stamp, &self.metrics).await,
                How::Transactions { key_prefix } => {
                    let (connection, metrics) = (&mut connection, &self.metrics);
                    transaction::run(connection, charges, key_prefix, stamp, metrics).await
                }
            };
            let (now, answer) = answer.map_err(|error| pool::unavailable(&error))?;
            self.offset_ms.store(now.millis_since((self.clock)()), Ordering::Relaxed);
            match answer {
                Answer::Judged(tallies) => return Ok(tallies),
                Answer::Unreadable(charges) => return Err(StoreError::Unreadable(charges)),
                Answer::Stale => stamp = now,
            }
        }
        Err(StoreError::ClockUnsteady)
    }

    /// How one counter stands, and `clear` resets it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn look(&self, counter: &Counter, clear: Clear) -> Result<Standing, StoreError> {
        let mut connection = self.pool.get().await?;
        let mut stamp = self.now();
        for _ in 0..2 {
            let (connection, metrics) = (&mut connection, &self.metrics);
            let looked = match &self.how {
                How::Scripts(it) => it.look(connection, counter, clear, stamp, metrics).await,
                How::Transactions { key_prefix } => {
                    transaction::look(connection, counter, clear, key_prefix, stamp, metrics).await
                }
            };
            let (now, looked) = looked.map_err(|error| pool::unavailable(&error))?;
            match looked {
                Looked::Standing(standing) => return Ok(standing),
                Looked::Unreadable => return Err(StoreError::Unreadable(vec![0])),
                Looked::Stale => stamp = now,
            }
        }
        Err(StoreError::ClockUnsteady)
    }

    /// Waits until Redis has answered once.
    pub async fn reached(&self) {
        while self.pool.get().await.is_err() {
            time::sleep(REACH_EVERY).await;
        }
    }

    /// What Redis's clock shows, as far as we know.
    fn now(&self) -> Timestamp {
        (self.clock)().shifted(self.offset_ms.load(Ordering::Relaxed))
    }
}
