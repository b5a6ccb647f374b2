//! What a take has charged, and the charges that commit it.

use crate::ledger::{charge::Charge, hold_action::HoldAction};
use crate::{
    hold_id::HoldId, key::Counter, parameters::Parameters, request::Hits, time::Timestamp,
};

/// A hold that a token names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenHold {
    /// The nonce.
    pub id: HoldId,
    /// What was charged, at least one.
    pub charges: Vec<HeldCharge>,
}

/// A charge of a take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldCharge {
    /// The counter, with a limit that has a [`HoldPolicy`](crate::hold::HoldPolicy).
    pub counter: Counter,
    /// The hits that were charged.
    pub hits: u64,
    /// The store's time when they were charged.
    pub made: Timestamp,
}

impl HeldCharge {
    /// What replaces it by the true number, which the parameters of the commit tell.
    fn commit(&self, id: HoldId, parameters: Parameters<'_>) -> Option<Charge> {
        let policy = self.counter.limit.hold.as_ref()?;
        let (held, made) = (self.hits, self.made);
        let used = parameters.used_of(policy, held);
        let deadline = made.plus_millis(policy.lifetime_ms);
        let hold = HoldAction::Commit { id, held, used, made, deadline };
        let charge = Charge::new(self.counter.clone(), Hits::Commit);
        Some(Charge { hold: Some(hold), ..charge })
    }
}

impl TakenHold {
    /// The charges that commit it.
    pub fn commit(&self, parameters: Parameters<'_>) -> impl Iterator<Item = Charge> {
        self.charges.iter().filter_map(move |charge| charge.commit(self.id, parameters))
    }
}
