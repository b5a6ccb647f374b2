//! Keeps a store's promise of an answer: every call ends within the decision budget.

use std::{sync::Arc, time::Duration};

use tokio::time;

use super::{Store, StoreError, outage::Outage};
use crate::engine::ledger::{Charge, Tally};

/// A store with a limit on waiting.
#[derive(Debug, Clone)]
pub struct Guard {
    store: Arc<Store>,
    budget: Duration,
    outage: Outage,
}

impl Guard {
    /// Guards `store`: no call waits longer than `budget`, and `outage` hears how it went.
    pub fn new(store: Arc<Store>, budget: Duration, outage: Outage) -> Self {
        Self { store, budget, outage }
    }

    /// As [`Store::charge`], within the budget.
    ///
    /// # Errors
    /// Those of the store, and [`StoreError::TimedOut`].
    pub async fn charge(&self, charges: &[Charge]) -> Result<Vec<Tally>, StoreError> {
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let answer = time::timeout(self.budget, self.store.charge(charges))
            .await
            .unwrap_or(Err(StoreError::TimedOut));
        match &answer {
            // A counter at fault is no fault of the store's.
            Ok(_) | Err(StoreError::Unreadable(_)) => self.outage.answered(),
            Err(error) => self.outage.failed(error),
        }
        answer
    }
}
