//! Keeps a store's promise of an answer: every call ends within the decision budget, with what the
//! store says or with what the limits say of its failure. What it has just denied it is not asked.

mod at_fault;

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
    ledger::{self, Charge, Standing, Tally},
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

/// What came of a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// One for each charge, in their order.
    pub tallies: Vec<Tally>,
    /// Whether the call is denied.
    pub denied: bool,
    /// The charges whose counters hold no count; their limits' `on_store_failure` has answered.
    pub unreadable: Vec<usize>,
}

impl Guard {
    /// Guards `store`: no call waits longer than `budget`, and `outage` hears how it went. What is in
    /// `over_limit` the store is not asked.
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
    pub async fn charge(&self, charges: &[Charge]) -> Result<Charged, StoreError> {
        if charges.is_empty() {
            return Ok(Charged::default());
        }
        let now = Instant::now();
        // This is no news of the store.
        if let Some(tallies) = self.over_limit.answer(charges, now) {
            return Ok(Charged { tallies, denied: true, unreadable: Vec::new() });
        }
        let answer = match self.store.charge_at_once(charges) {
            Some(tallies) => Ok(judged(charges, tallies)),
            None => time::timeout(self.budget, self.ask(charges, now))
                .await
                .unwrap_or(Err(StoreError::TimedOut)),
        };
        match answer {
            // A counter at fault is no fault of the store's.
            Ok(_) | Err(StoreError::Unreadable(_)) => {
                self.outage.answered();
                answer
            }
            Err(error) => {
                self.outage.failed(&error);
                let (tallies, denied) = self.fallback.answer(charges, error)?;
                Ok(Charged { tallies, denied, unreadable: Vec::new() })
            }
        }
    }

    /// As [`Store::look`], within the budget.
    ///
    /// # Errors
    /// Those of the store, and [`StoreError::TimedOut`].
    pub async fn look(&self, counter: &Counter, clear: Clear) -> Result<Standing, StoreError> {
        let answer = time::timeout(self.budget, self.store.look(counter, clear)).await;
        if clear == Clear::Yes {
            self.over_limit.forget(counter, Instant::now());
        }
        answer.unwrap_or(Err(StoreError::TimedOut))
    }

    async fn ask(&self, charges: &[Charge], sent: Instant) -> Result<Charged, StoreError> {
        match self.store.charge(charges).await {
            Ok(tallies) => {
                self.over_limit.learn(charges, &tallies, sent);
                Ok(judged(charges, tallies))
            }
            // Boxed, since every call would carry the room for what hardly any needs.
            Err(StoreError::Unreadable(at_fault)) => {
                Box::pin(self.charge_without(charges, &at_fault)).await
            }
            Err(error) => Err(error),
        }
    }
}

fn judged(charges: &[Charge], tallies: Vec<Tally>) -> Charged {
    let denied = ledger::denies(charges, &tallies);
    Charged { tallies, denied, unreadable: Vec::new() }
}
