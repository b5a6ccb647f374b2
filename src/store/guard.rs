//! Every call is answered within the decision budget: by the store, or by the `on_store_failure` of its
//! limits. Recent denials are answered without asking the store.

mod without_counter;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time;

use super::{Clear, Store, StoreError, fallback::Fallback, over_limit_cache::OverLimitCache};
use crate::engine::{
    key::Counter,
    ledger::{Charge, CounterState, Judgement},
    rule::OnStoreFailure,
};

/// A store whose calls have a time limit, and an answer if it fails.
#[derive(Debug, Clone)]
pub struct Guard {
    store: Arc<Store>,
    over_limit: Arc<OverLimitCache>,
    fallback: Arc<Fallback>,
    budget: Duration,
}

impl Guard {
    /// Guards `store`: no call waits longer than `budget`. `over_limit` answers first, and `fallback` if
    /// the store fails.
    pub fn new(
        store: Arc<Store>,
        over_limit: OverLimitCache,
        fallback: Fallback,
        budget: Duration,
    ) -> Self {
        let (over_limit, fallback) = (Arc::new(over_limit), Arc::new(fallback));
        Self { store, over_limit, fallback, budget }
    }

    /// Like [`Store::charge`], within the budget.
    ///
    /// # Errors
    /// Those of the store and [`StoreError::TimedOut`], if the `on_store_failure` of a limit is `error`.
    pub async fn charge(&self, charges: &[Charge]) -> Result<Judgement, StoreError> {
        if charges.is_empty() {
            return Ok(Judgement::default());
        }
        let now = Instant::now();
        // The cache's answer says nothing about the store's health.
        if let Some(tallies) = self.over_limit.answer(charges, now) {
            return Ok(Judgement { denied: true, tallies, corrupt: Vec::new() });
        }
        let answer = match self.store.charge_at_once(charges) {
            Some(judgement) => Ok(judgement),
            None => time::timeout(self.budget, self.ask(charges, now))
                .await
                .unwrap_or(Err(StoreError::TimedOut)),
        };
        // Even without an answer, the refunds of this call may have been applied.
        self.over_limit.forget_refunded(charges, Instant::now());
        match answer {
            // The store has applied the failure modes of the charges that have no counter.
            Ok(_) | Err(StoreError::Corrupt(_) | StoreError::Unreachable { .. }) => answer,
            Err(error) => self.fallback.answer(charges, error),
        }
    }

    /// Like [`Store::look`], within the budget.
    ///
    /// # Errors
    /// Those of the store, and [`StoreError::TimedOut`].
    pub async fn look(&self, counter: &Counter, clear: Clear) -> Result<CounterState, StoreError> {
        let answer = time::timeout(self.budget, self.store.look(counter, clear)).await;
        if clear == Clear::Yes {
            self.over_limit.forget(counter, Instant::now());
        }
        answer.unwrap_or(Err(StoreError::TimedOut))
    }

    async fn ask(&self, charges: &[Charge], sent: Instant) -> Result<Judgement, StoreError> {
        let mut answer = self.store.charge(charges).await;
        let without = match &answer {
            Err(StoreError::Corrupt(charges)) => WithoutCounter::corrupt(charges),
            Err(StoreError::Unreachable { charges, refunded, .. }) => {
                WithoutCounter { charges, absent: charges, refunded }
            }
            Ok(_) | Err(_) => WithoutCounter::corrupt(&[]),
        };
        let is_local = |index: &usize| failure_mode(charges, *index) == OnStoreFailure::Local;
        if without.charges.iter().any(is_local) {
            // Boxed, so that this rare case does not enlarge the future of every call.
            answer = Box::pin(self.charge_with_local(charges, without)).await;
        }
        if let Ok(judgement) = &answer {
            self.over_limit.learn(charges, judgement, sent);
        }
        answer
    }
}

/// What a store says of the charges whose counters give no answer.
struct WithoutCounter<'answer> {
    /// Their indices.
    charges: &'answer [usize],
    /// Those whose counters need not be asked again.
    absent: &'answer [usize],
    /// The indices of refunds that have been applied.
    refunded: &'answer [usize],
}

impl<'answer> WithoutCounter<'answer> {
    const fn corrupt(charges: &'answer [usize]) -> Self {
        Self { charges, absent: &[], refunded: &[] }
    }
}

fn failure_mode(charges: &[Charge], index: usize) -> OnStoreFailure {
    let charge = charges.get(index);
    charge.map_or(OnStoreFailure::Error, |charge| charge.counter.limit.failure_mode())
}
