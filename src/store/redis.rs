//! Counters in Redis: one script run decides a call, on Redis's own clock.

mod batch;
mod connection;
mod lane;
pub mod pool;
mod resp;
pub mod script;
mod transaction;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::time;

use self::{
    lane::Lane,
    pool::Pool,
    script::{Answer, Scripts, counter::Looked},
};
use super::{Clear, Clock, StoreError};
use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, Standing, Tally},
        time::Timestamp,
    },
    telemetry::{StoreMetrics, in_span, store_span},
};

/// How often an absent Redis is looked for at the start.
const REACH_EVERY: Duration = Duration::from_millis(250);

/// How calls are decided.
#[derive(Debug)]
pub enum How {
    /// By scripts: in one run all that wait.
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
    way: Way,
    time: Arc<RedisTime>,
    metrics: StoreMetrics,
}

#[derive(Debug)]
enum Way {
    Scripts(Lane),
    Transactions { key_prefix: String },
}

impl RedisStore {
    /// A store behind `pool`. It connects when it is first asked.
    pub fn new(pool: Pool, how: How, clock: Clock, metrics: StoreMetrics) -> Self {
        let time = Arc::new(RedisTime { clock, offset_ms: AtomicI64::new(0) });
        let way = match how {
            How::Scripts(scripts) => {
                let (pool, time, metrics) = (pool.clone(), Arc::clone(&time), metrics.clone());
                Way::Scripts(Lane::new(scripts, pool, time, metrics))
            }
            How::Transactions { key_prefix } => Way::Transactions { key_prefix },
        };
        Self { pool, way, time, metrics }
    }

    /// Makes all charges of one call, or none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge(&self, charges: &[Charge]) -> Result<Vec<Tally>, StoreError> {
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        match &self.way {
            Way::Scripts(lane) => {
                let span = store_span("EVALSHA");
                match span.is_disabled() {
                    true => lane.charge(charges).await,
                    false => Box::pin(in_span(span, lane.charge(charges))).await,
                }
            }
            Way::Transactions { key_prefix } => {
                Box::pin(self.charge_by_transaction(charges, key_prefix)).await
            }
        }
    }

    async fn charge_by_transaction(
        &self,
        charges: &[Charge],
        key_prefix: &str,
    ) -> Result<Vec<Tally>, StoreError> {
        let mut connection = self.pool.get().await?;
        let mut stamp = self.time.now();
        // A wrong stamp is refused once at most, unless the window turns under the second question.
        for _ in 0..2 {
            let (connection, metrics) = (&mut connection, &self.metrics);
            let answer = transaction::run(connection, charges, key_prefix, stamp, metrics).await;
            let (now, answer) = answer.map_err(|error| pool::unavailable(&error))?;
            self.time.learn(now);
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
        let mut stamp = self.time.now();
        for _ in 0..2 {
            let (connection, metrics) = (&mut connection, &self.metrics);
            let looked = match &self.way {
                Way::Scripts(lane) => {
                    lane.scripts().look(connection, counter, clear, stamp, metrics).await
                }
                Way::Transactions { key_prefix } => {
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
}

/// What Redis's clock shows, as far as we know.
#[derive(Debug)]
struct RedisTime {
    clock: Clock,
    /// Redis's clock less ours, in milliseconds, as the last reply told. Only a guess that saves a
    /// second question: the script refuses a stamp that is wrong.
    offset_ms: AtomicI64,
}

impl RedisTime {
    fn now(&self) -> Timestamp {
        (self.clock)().shifted(self.offset_ms.load(Ordering::Relaxed))
    }

    fn learn(&self, now: Timestamp) {
        self.offset_ms.store(now.millis_since((self.clock)()), Ordering::Relaxed);
    }
}
