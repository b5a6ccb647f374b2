//! What is asked of one node: a call, a part of one, or a give-back.

use std::sync::Arc;

use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, GiveBack},
    },
    store::redis::wire::hash_slot::HashSlot,
};

/// What is asked of one node at once.
#[derive(Debug, Clone)]
pub(crate) enum NodeWork {
    /// The charges of a call, at least one: all are made, or none.
    Charges(Arc<[Charge]>),
    /// Hits of a reservation, to be given back.
    GiveBack(Arc<GiveBack>),
}

impl NodeWork {
    /// Whether it is to be done even if no caller waits for the answer: it counts work that is done, or undoes what
    /// was charged.
    pub(crate) fn outlives_caller(&self) -> bool {
        match self {
            Self::Charges(charges) => charges.iter().any(Charge::applies_when_denied),
            Self::GiveBack(_) => true,
        }
    }

    /// What of it is to be done although no caller waits: each of these by itself.
    pub(crate) fn outliving(self) -> Vec<Self> {
        match self {
            Self::Charges(charges) => {
                let outliving = charges.iter().filter(|charge| charge.applies_when_denied());
                outliving.map(|charge| Self::Charges([charge.clone()].into())).collect()
            }
            Self::GiveBack(_) => vec![self],
        }
    }

    /// The counters that it needs, at least one.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &Counter> {
        let (charges, give_back) = match self {
            Self::Charges(charges) => (&charges[..], None),
            Self::GiveBack(give_back) => (&[][..], Some(&**give_back)),
        };
        let of_charges = charges.iter().map(|charge| &charge.counter);
        of_charges.chain(give_back.map(|give_back| &give_back.counter))
    }

    /// The hash slot of its first counter.
    pub(crate) fn slot(&self) -> Option<HashSlot> {
        self.counters().next().map(HashSlot::of)
    }

    /// Whether all its counters are in one hash slot.
    pub(crate) fn is_in_one_slot(&self) -> bool {
        let first = self.slot();
        self.counters().all(|counter| Some(HashSlot::of(counter)) == first)
    }

    /// Number of charges and give-backs.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Charges(charges) => charges.len(),
            Self::GiveBack(_) => 1,
        }
    }
}
