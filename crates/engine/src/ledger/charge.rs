//! Charges: the hits that descriptors charge to counters.

use std::{cell::OnceCell, hash::RandomState};

use hashbrown::HashTable;

use super::hold_action::HoldAction;
use crate::{
    algorithm::account::Terms,
    hold::HoldBy,
    key::Counter,
    request::Hits,
    rule::{Algorithm, FailureMode, Lease, WhenDenied},
    time::Timestamp,
};

/// What one descriptor charges to one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The counter, and the limit that it is counted for.
    pub counter: Counter,
    /// What to do with the counter.
    pub hits: Hits,
    /// The caller, if the limit remembers callers: visible ASCII, see
    /// [`caller`](crate::key::caller).
    pub caller: Option<Box<str>>,
    /// What it does with holds.
    pub hold: Option<HoldAction>,
    /// The number of its group, if it is one of several quotas that have room together; else 0.
    pub quota_group: usize,
    /// Whether its group is charged once: the first of its quotas that fits, or else none. All quotas of group 0 are one
    /// then. A shadow of such a quota is charged as the quota would be.
    pub draws_first: bool,
    /// Whether it is a quota with room whatever its counter holds, since an operator has exempted it.
    pub always_fits: bool,
    /// Whether it charges nothing unless it fits, whatever its limit says, since the call asks before its work.
    pub only_if_fits: bool,
    /// Whether as many of its hits are charged as fit, to each part of the call as many; none, if the call is denied. It
    /// is not set where there are no hits to charge, as on a quota that an operator has exempted.
    pub is_part: bool,
    /// Whether it reserves hits of a quota, which its part charges although other parts may deny the call: no work is done yet.
    pub is_reserved: bool,
    /// Whether calls that were sent before this one, and are judged with it, come first on its counter.
    pub keeps_order: bool,
}

impl Charge {
    /// The numbers of its limit at `now`, and the window whose account it changes: a commit gives back to the window in
    /// which its take was charged.
    pub fn terms(&self, now: Timestamp) -> Terms {
        let limit = &self.counter.limit;
        let terms = limit.terms(now);
        match self.hold {
            Some(HoldAction::Commit { held, used, made, .. }) if used < held => {
                Terms { span: limit.window.at(made), ..terms }
            }
            _ => terms,
        }
    }

    /// Whether it takes, commits or could take a hold, or closes its counter.
    pub(crate) fn has_hold(&self) -> bool {
        self.hold.is_some() || self.counter.limit.hold.is_some()
    }

    /// A charge without a hold, whose caller is not remembered.
    pub const fn new(counter: Counter, hits: Hits) -> Self {
        Self {
            counter,
            hits,
            caller: None,
            hold: None,
            quota_group: 0,
            draws_first: false,
            always_fits: false,
            only_if_fits: false,
            is_part: false,
            is_reserved: false,
            keeps_order: false,
        }
    }

    /// What it costs a store at most, relative to a charge that neither searches nor holds.
    pub(crate) fn weight(&self) -> usize {
        let limit = &self.counter.limit;
        let by = limit.hold.as_ref().map(|policy| policy.by);
        let is_heavy = self.is_part
            || matches!(limit.algorithm, Algorithm::SlidingLog { .. } | Algorithm::InFlight { .. })
            || matches!(by, Some(HoldBy::Id | HoldBy::Counter));
        if is_heavy { 4 } else { 1 }
    }

    /// Makes it a charge of a call that is denied whatever its votes are: only work that is done is charged.
    pub(crate) fn refuse(&mut self) {
        if self.is_take() || !self.applies_when_denied() {
            self.hits = Hits::Check;
        }
        if !self.is_end() {
            self.hold = None;
        }
    }

    /// When the hits were charged that it gives back of a lease, if it does.
    pub fn leased_at(&self) -> Option<Timestamp> {
        let limit = &self.counter.limit;
        match self.hold {
            Some(HoldAction::Commit { held, used, made, .. })
                if used < held && (limit.is_lent() || limit.lease == Lease::Auto) =>
            {
                Some(made)
            }
            _ => None,
        }
    }

    /// Makes it too late to give hits of a lease back if those may be lost that were charged at that time, as `is_lost` says:
    /// it would take hits of others.
    pub fn lose_lease(&mut self, is_lost: impl FnOnce(Timestamp) -> bool) {
        if self.leased_at().is_some_and(is_lost)
            && let Some(HoldAction::Commit { deadline, .. }) = &mut self.hold
        {
            *deadline = Timestamp::default();
        }
    }

    /// The check by which a counter is read, with the holds that are open on it.
    pub fn reading(counter: Counter) -> Self {
        let limit = &counter.limit;
        let is_in_flight = matches!(limit.algorithm, Algorithm::InFlight { .. });
        let policy = limit.hold.as_ref();
        let policy = policy.filter(|policy| policy.by == HoldBy::Counter && !is_in_flight);
        let hold = policy.map(|policy| HoldAction::Beside { abandoned: policy.abandoned });
        let ban = limit.ban_ms.map(|for_ms| HoldAction::Ban { for_ms });
        Self { hold: hold.or(ban), ..Self::new(counter, Hits::Check) }
    }

    /// What it charges for a call that is denied. A commit without a token is the true number, and always charged; a take
    /// and a part never are.
    pub fn when_denied(&self) -> WhenDenied {
        match self.counter.limit.when_denied {
            _ if self.is_end() => WhenDenied::Counted,
            _ if self.is_part || self.is_take() => WhenDenied::Free,
            of_limit => of_limit,
        }
    }

    /// Whether it charges an estimate, or hits of a call before its work on a limit where denied calls would keep others from
    /// ever fitting, and so only a call that is admitted.
    pub fn is_take(&self) -> bool {
        let by = self.counter.limit.hold.as_ref().map(|policy| policy.by);
        (self.only_if_fits || matches!(by, Some(HoldBy::Token | HoldBy::Id)))
            && matches!(self.hits, Hits::Charge(_))
            && !self.is_end()
    }

    /// Whether it commits a hold without a token by stating what was used: that counts whatever becomes of the call, and
    /// even if there is no such hold.
    pub const fn is_end(&self) -> bool {
        matches!(
            self.hold,
            Some(HoldAction::EndOldest { .. } | HoldAction::ById { is_end: true, .. })
        )
    }

    /// Whether it states the true number of a hold that has an id: it counts once, however often it is made.
    pub fn is_commit(&self) -> bool {
        matches!(self.hold, Some(HoldAction::Commit { .. } | HoldAction::ById { is_end: true, .. }))
    }

    /// Whether it is to be done even if no caller waits for the answer: it counts work that is done, or gives back.
    pub fn outlives_caller(&self) -> bool {
        self.applies_when_denied() && !self.is_reserved || self.is_commit()
    }

    /// Whether the call with these charges cannot be decided without an answer for this one, if that is an error: commits are kept
    /// for later, so that a call that does more is decided by the rest.
    pub fn needs_answer(&self, of_call: &[Self]) -> bool {
        !self.is_commit() || of_call.iter().all(Self::is_commit)
    }

    /// Whether it changes its counter even if an enforced limit denies the call uncharged.
    pub fn applies_when_denied(&self) -> bool {
        match self.hits {
            Hits::Charge(_) => self.when_denied() == WhenDenied::Counted,
            Hits::Refund(_) | Hits::Commit => true,
            Hits::Check => false,
        }
    }

    /// Whether it denies its call if its counter gives no answer. A refund or a commit never does.
    pub fn denies_by_failure_mode(&self) -> bool {
        self.counter.limit.failure_mode() == FailureMode::Deny && !self.hits.asks_nothing()
    }
}

/// The failure mode that applies to a call if the counter of this charge gives no answer.
pub(super) fn applied_failure_mode(charge: &Charge) -> FailureMode {
    match charge.counter.limit.failure_mode() {
        // It denies nothing, but its loss must not go unnoticed.
        FailureMode::Deny if charge.hits.asks_nothing() => FailureMode::Error,
        mode => mode,
    }
}

/// The most charges of a call that are each compared with all others.
const FEW: usize = 16;

/// What the charges of one call ask for together.
pub struct Asked<'call> {
    charges: &'call [Charge],
    /// The hits that are charged to each counter of a call of more than [`FEW`] charges.
    sums: OnceCell<Sums<'call>>,
}

struct Sums<'call> {
    by_counter: HashTable<(&'call Counter, u64)>,
    /// It has a secret key, since end users choose values.
    hasher: RandomState,
}

impl<'call> Asked<'call> {
    /// Of the charges of a call.
    pub const fn by(charges: &'call [Charge]) -> Self {
        Self { charges, sums: OnceCell::new() }
    }

    /// The hits that must fit for one of the charges to fit: the sum on its counter, what its limit requires of a check, 0 for a
    /// refund or a commit.
    pub fn of(&self, charge: &Charge) -> u64 {
        required(charge, charge.hits, || match self.charges.len() {
            ..=FEW => sum(self.charges, &charge.counter, Hits::charged),
            _ => self.sums.get_or_init(|| Sums::of(self.charges)).on(&charge.counter),
        })
    }
}

impl<'call> Sums<'call> {
    fn of(charges: &'call [Charge]) -> Self {
        let (mut by_counter, hasher) =
            (HashTable::with_capacity(charges.len()), RandomState::new());
        for Charge { counter, hits, .. } in charges {
            let is_same = |(known, _): &(&Counter, u64)| known.same_counter(counter);
            let hash_of = |(counter, _): &(&Counter, u64)| counter.hash_of_identity(&hasher);
            let entry = by_counter.entry(counter.hash_of_identity(&hasher), is_same, hash_of);
            let (_, sum) = entry.or_insert((counter, 0)).into_mut();
            *sum = sum.saturating_add(hits.charged());
        }
        Self { by_counter, hasher }
    }

    fn on(&self, counter: &Counter) -> u64 {
        let hash = counter.hash_of_identity(&self.hasher);
        let sum = self.by_counter.find(hash, |(known, _)| known.same_counter(counter));
        sum.map_or(0, |(_, sum)| *sum)
    }
}

/// The hits that must fit for these hits of a charge to fit. `sum` are those that are charged to its counter.
pub(super) fn required(charge: &Charge, hits: Hits, sum: impl FnOnce() -> u64) -> u64 {
    match hits {
        Hits::Charge(_) => sum(),
        Hits::Check => charge.counter.limit.exhausted_checks.asked(),
        Hits::Refund(_) | Hits::Commit => 0,
    }
}

/// The hits that these charges give back to a counter.
pub(super) fn refunded(charges: &[Charge], counter: &Counter) -> u64 {
    sum(charges, counter, given_back)
}

fn sum(charges: &[Charge], counter: &Counter, hits: fn(Hits) -> u64) -> u64 {
    let same = charges.iter().filter(|charge| charge.counter.same_counter(counter));
    same.fold(0, |sum, charge| sum.saturating_add(hits(charge.hits)))
}

fn given_back(hits: Hits) -> u64 {
    if let Hits::Refund(hits) = hits { hits } else { 0 }
}
