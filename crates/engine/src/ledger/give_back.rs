//! Give-backs: hits that a reservation charged, and that its call does not keep.

use super::hold_action::HoldAction;
use super::tally::Tally;
use crate::{
    algorithm::{AnyAccount, account::Terms, hold_record::HoldRecord},
    key::Counter,
    time::Timestamp,
};

/// Hits that a reservation charged, to be taken back. Nothing else is touched: what has expired, been refilled
/// or been refunded since is not taken from others. So a give-back may return too little, and never too much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiveBack {
    /// The counter, and the limit that the reservation was charged for.
    pub counter: Counter,
    /// Number of hits, 0 if it has only opened a hold beside the counter, to [`Hits::MAX`](crate::request::Hits::MAX).
    pub hits: u64,
    /// The store's time when they were charged.
    pub made: Timestamp,
    /// The caller, as in the reservation's [`Charge`](super::Charge).
    pub caller: Option<Box<str>>,
    /// What the reservation did with holds.
    pub hold: Option<HoldAction>,
}

impl GiveBack {
    /// The numbers of its limit at `now`, all of it, and the window in which the hits were charged.
    pub fn terms(&self, now: Timestamp) -> Terms {
        let limit = &self.counter.limit;
        let (span, requests_per_unit) = (limit.window.at(self.made), limit.requests_per_unit);
        Terms { span, requests_per_unit, ..limit.terms(now) }
    }

    /// Gives the hits back to the account of that window. The tally describes that window, which may have ended.
    ///
    /// `record` is what is known of the hold, if it is a take by id, or the holds that are open on the counter.
    pub fn apply(
        &self,
        account: &mut AnyAccount,
        record: Option<&mut AnyAccount>,
        terms: &Terms,
    ) -> Tally {
        if let (
            AnyAccount::InFlight(account),
            Some(HoldAction::Occupy { id, .. } | HoldAction::ById { id, .. }),
        ) = (&mut *account, self.hold)
        {
            account.expire(terms.now);
            account.end(id, terms.now);
        }
        match (record, self.hold) {
            (Some(AnyAccount::HoldRecord(_)), Some(HoldAction::Ban { .. })) => {}
            (Some(AnyAccount::HoldRecord(record)), _) => **record = HoldRecord::default(),
            (Some(AnyAccount::InFlight(open)), Some(HoldAction::Open { id, .. })) => {
                open.end(id, terms.now);
            }
            _ => {}
        }
        let (hits, caller) = (self.hits, self.caller.as_deref());
        account.write().give_back(hits, hits, self.made, caller, terms);
        Tally::of(account.read(), true, 0, terms)
    }
}
