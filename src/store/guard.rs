//! Keeps the promise of an answer: every call ends within the decision budget, with the store's answer
//! or with what its limits say of a store failure. Recent denials are answered without asking the store.

mod corrupt_counter;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time;

use super::{
    Clear, Store, StoreError, fallback::Fallback, outage::Outage, over_limit_cache::OverLimitCache,
};
use crate::engine::{
    key::Counter,
    ledger::{Charge, CounterState, Judgement},
    rule::OnStoreFailure,
};

/// A store with a limit on waiting, and an answer for its failures.
#[derive(Debug, Clone)]
pub struct Guard {
    store: Arc<Store>,
    over_limit: Arc<OverLimitCache>,
    fallback: Arc<Fallback>,
    budget: Duration,
    outage: Outage,
}

impl Guard {
    /// Guards `store`: no call waits longer than `budget`. `outage` hears whether the store answers, and
    /// what `over_limit` can answer the store is not asked.
    pub fn new(
        store: Arc<Store>,
        over_limit: OverLimitCache,
        fallback: Fallback,
        budget: Duration,
        outage: Outage,
    ) -> Self {
        let (over_limit, fallback) = (Arc::new(over_limit), Arc::new(fallback));
        Self { store, over_limit, fallback, budget, outage }
    }

    /// As [`Store::charge`], within the budget.
    ///
    /// # Errors
    /// Those of the store, and [`StoreError::TimedOut`], where a limit wants an error.
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
        // Also without an answer, the refunds of this call may have been applied.
        self.over_limit.forget_refunded(charges, Instant::now());
        match answer {
            // A corrupt counter is not the store's failure.
            Ok(_) | Err(StoreError::Corrupt(_)) => {
                self.outage.answered();
                answer
            }
            Err(error) => {
                self.outage.failed(&error);
                self.fallback.answer(charges, error)
            }
        }
    }

    /// As [`Store::look`], within the budget.
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
        if let Err(StoreError::Corrupt(corrupt)) = &answer {
            let is_local = |index: &usize| failure_mode(charges, *index) == OnStoreFailure::Local;
            let local: Vec<usize> = corrupt.iter().copied().filter(is_local).collect();
            if !local.is_empty() {
                // Boxed, since every call's future would have to make room for this rare case.
                answer = Box::pin(self.charge_with_local(charges, &local)).await;
            }
        }
        if let Ok(judgement) = &answer {
            self.over_limit.learn(charges, judgement, sent);
        }
        answer
    }
}

fn failure_mode(charges: &[Charge], index: usize) -> OnStoreFailure {
    charges.get(index).map_or(OnStoreFailure::Error, |it| it.counter.limit.failure_mode())
}
