//! What one node does: a call, a part of one, a give-back, or reading a counter.

use std::{sync::Arc, time::Duration};

use tollkeeper_engine::{
    hold::HoldBy,
    key::Counter,
    ledger::{Charge, GiveBack, HoldAction},
    rule::{FailureMode, Limit, Mode},
    time::Timestamp,
};

use crate::{Clear, redis::wire::hash_slot::HashSlot};

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
        matches!(self, Self::GiveBack(_)) || self.charges().iter().any(Charge::outlives_caller)
    }

    /// Whether something of it is to be done if its answer is lost.
    pub(crate) fn outlives_answer(&self) -> bool {
        let has_hold = |charge: &Charge| charge.hold.is_some() || charge.is_take();
        self.outlives_caller() || self.charges().iter().any(has_hold)
    }

    /// What of it is to be done although no caller waits: each of these by itself.
    pub(crate) fn outliving(&self) -> impl Iterator<Item = Self> {
        let charges = self.charges().iter().filter(|charge| charge.outlives_caller());
        let charges = charges.map(|charge| Self::Charges([charge.clone()].into()));
        charges.chain(matches!(self, Self::GiveBack(_)).then(|| self.clone()))
    }

    /// Whether it counts once, however often it is sent. It is a single charge or a give-back.
    pub(crate) fn counts_once(&self) -> bool {
        match self {
            Self::GiveBack(give_back) => {
                let is_open = matches!(give_back.hold, Some(HoldAction::Open { .. }));
                is_open || give_back.counter.limit.counts_calls()
            }
            _ => self.charges().iter().all(|charge| charge.is_commit()),
        }
    }

    /// The name of what counts once: whether it gives back, its counter and its id. Another of this name has no effect.
    pub(crate) fn name_of_once(&self) -> Option<(bool, String)> {
        let (is_back, hold) = match self {
            Self::GiveBack(give_back) => (true, give_back.hold),
            _ => (false, self.charges().first().and_then(|charge| charge.hold)),
        };
        match hold.filter(|_| self.counts_once())? {
            HoldAction::Commit { id, .. }
            | HoldAction::ById { id, .. }
            | HoldAction::Occupy { id, .. }
            | HoldAction::Open { id, .. } => {
                Some((is_back, self.counters().next()?.hold_record_key(id)))
            }
            _ => None,
        }
    }

    /// What releases the places that it occupies in flight, and the holds that it has opened, if it has run: by their ids.
    pub(crate) fn releases(&self, made: Timestamp) -> impl Iterator<Item = Self> {
        self.given_back(made, None, |charge| match charge.hold {
            Some(HoldAction::Occupy { .. }) => true,
            // One that is let through without an answer is ended by its id, or as the oldest.
            Some(HoldAction::Open { .. }) => refuses_without_answer(charge),
            Some(HoldAction::ById { is_end: false, .. }) => {
                charge.counter.limit.counts_calls() && refuses_without_answer(charge)
            }
            _ => false,
        })
    }

    /// What gives back the estimates that it has charged at `at`, and that no one can commit without a token. Of a part, this
    /// many hits were charged.
    pub(crate) fn refunds(&self, at: Timestamp, part: Option<u64>) -> impl Iterator<Item = Self> {
        self.given_back(at, part, move |charge| {
            let Limit { hold, mode, .. } = &*charge.counter.limit;
            let is_by_token = hold.as_ref().is_some_and(|policy| policy.by == HoldBy::Token);
            is_by_token
                && charge.hold.is_none()
                && (!charge.is_part || part.is_some())
                && *mode == Mode::Enforced
                && refuses_without_answer(charge)
        })
    }

    fn given_back(
        &self,
        made: Timestamp,
        part: Option<u64>,
        is_taken: impl Fn(&Charge) -> bool,
    ) -> impl Iterator<Item = Self> {
        let taken = self.charges().iter().filter(move |charge| is_taken(charge));
        taken.map(move |charge| {
            let Charge { counter, caller, hold, .. } = charge.clone();
            let hits = match hold {
                // Its hits count beside the hold.
                Some(HoldAction::Open { .. }) => 0,
                _ if charge.is_part => part.unwrap_or(0),
                _ => charge.hits.charged(),
            };
            Self::GiveBack(Arc::new(GiveBack { counter, hits, made, caller, hold }))
        })
    }

    /// When the hits were charged that it gives back of a lease, if it does.
    pub(crate) fn leased_at(&self) -> Option<Timestamp> {
        self.charges().iter().find_map(Charge::leased_at)
    }

    /// See [`Charge::lose_lease`].
    pub(crate) fn lose_leases(&mut self, is_lost: impl Fn(Timestamp) -> bool) {
        if self.leased_at().is_some()
            && let Self::Charges(charges) = self
        {
            Arc::make_mut(charges).iter_mut().for_each(|charge| charge.lose_lease(&is_lost));
        }
    }

    /// How long after `made` it is of use: until its window or its hold ends.
    pub(crate) fn remaining(&self, made: Timestamp) -> Duration {
        let hold = match self {
            Self::GiveBack(give_back) => give_back.hold,
            _ => self.charges().first().and_then(|charge| charge.hold),
        };
        match hold {
            Some(HoldAction::Commit { deadline, .. }) => made.until(deadline),
            Some(
                HoldAction::ById { lifetime_ms, .. }
                | HoldAction::Occupy { lifetime_ms, .. }
                | HoldAction::Open { lifetime_ms, .. },
            ) => Duration::from_millis(lifetime_ms),
            _ => {
                let windows = self.counters().map(|counter| counter.limit.remaining_window(made));
                windows.max().unwrap_or_default()
            }
        }
    }

    pub(crate) fn charges(&self) -> &[Charge] {
        if let Self::Charges(charges) = self { charges } else { &[] }
    }

    /// The counters that it needs, at least one.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &Counter> {
        let other = match self {
            Self::Charges(_) => None,
            Self::GiveBack(give_back) => Some(&give_back.counter),
            Self::Read(counter, _) => Some(&**counter),
        };
        self.charges().iter().map(|charge| &charge.counter).chain(other)
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

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Charges(charges) => charges.len(),
            Self::GiveBack(_) | Self::Read(..) => 1,
        }
    }
}

/// Whether its call is refused if its counter gives no answer.
fn refuses_without_answer(charge: &Charge) -> bool {
    matches!(charge.counter.limit.failure_mode(), FailureMode::Error | FailureMode::Deny)
}
