//! The link to one server: connections, its clock, and whether it answers.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tollkeeper_base::process::clock::Clock;
use tollkeeper_engine::ledger::Verdict;

use super::{clock::RedisClock, pool::Connected, server_state::ServerState};
use crate::{StoreError, lateness, metrics::StoreMetrics};

#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) state: Arc<ServerState>,
    pub(crate) clock: Arc<RedisClock>,
    pub(crate) metrics: StoreMetrics,
    acknowledged: Arc<AtomicU64>,
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
    pub(crate) fn acknowledge(&self, verdict: &Verdict) -> u64 {
        let charges = if verdict.denied { 0 } else { verdict.tallies.len() };
        let charges = u64::try_from(charges).unwrap_or(u64::MAX);
        self.acknowledged.fetch_add(charges, Ordering::Relaxed);
        charges
    }

    /// Number of charges that the server has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// A connection. While it is not there, each `limit` counts as a failure.
    pub(crate) async fn connection(&self, limit: Duration) -> Result<Connected<'_>, StoreError> {
        let mut opening = pin!(self.state.pool.get());
        // A server that is silent on its connections may be so while one is opened.
        let opened = loop {
            match lateness::within(limit, opening.as_mut(), &self.metrics).await {
                Some(opened) => break opened,
                None => self.state.failed(&StoreError::NoConnection),
            }
        };
        opened.inspect_err(|error| self.state.failed(error))
    }

    /// Waits for an answer that the server owes us. If it is not there within `limit`, that counts as a failure.
    pub(crate) async fn owed<F: Future>(
        &self,
        mut answer: Pin<&mut F>,
        limit: Duration,
    ) -> F::Output {
        match lateness::within(limit, answer.as_mut(), &self.metrics).await {
            Some(answer) => answer,
            None => {
                self.state.failed(&StoreError::TimedOut);
                answer.await
            }
        }
    }
}
