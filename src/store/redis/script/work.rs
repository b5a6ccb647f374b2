//! What one node does: a call, a part of one, a give-back, or reading a counter.

use std::sync::Arc;

use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, GiveBack, HoldAction},
        time::Timestamp,
    },
    store::{Clear, redis::wire::hash_slot::HashSlot},
};

/// What one node does at once.
#[derive(Debug, Clone)]
pub(crate) enum NodeWork {
    /// The charges of a call, at least one: all are made, or none.
    Charges(Arc<[Charge]>),
    /// Hits of a reservation, to be given back.
    GiveBack(Arc<GiveBack>),
    /// A counter to be read, and perhaps reset.
    Read(Box<Counter>, Clear),
}

impl NodeWork {
    /// Whether it is to be done even if no caller waits for the answer: it counts work that is done, or undoes what
    /// was charged.
    pub(crate) fn outlives_caller(&self) -> bool {
        match self {
            Self::Charges(charges) => charges.iter().any(Charge::applies_when_denied),
            Self::GiveBack(_) => true,
            Self::Read(..) => false,
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
            Self::Read(..) => Vec::new(),
        }
    }

    /// The deadline of a commit that is alone. It counts once, however often it is sent.
    pub(crate) fn commit_deadline(&self) -> Option<Timestamp> {
        let Self::Charges(charges) = self else { return None };
        match charges.first()?.hold? {
            HoldAction::Commit { deadline, .. } if charges.len() == 1 => Some(deadline),
            _ => None,
        }
    }

    /// The counters that it needs, at least one.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &Counter> {
        let (charges, other) = match self {
            Self::Charges(charges) => (&charges[..], None),
            Self::GiveBack(give_back) => (&[][..], Some(&give_back.counter)),
            Self::Read(counter, _) => (&[][..], Some(&**counter)),
        };
        charges.iter().map(|charge| &charge.counter).chain(other)
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

    /// Number of charges, give-backs and readings.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Charges(charges) => charges.len(),
            Self::GiveBack(_) | Self::Read(..) => 1,
        }
    }
}
