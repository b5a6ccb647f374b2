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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        algorithm::{
            fixed_window::FixedWindow,
            hold_record::HoldState,
            in_flight::{InFlight, Occupant},
        },
        hold::Abandoned,
        hold_id::HoldId,
        rule::{Limit, Unit},
    };

    const NOW: Timestamp = Timestamp::from_secs(1_795_215_600);

    #[test]
    fn a_give_back_forgets_its_own_hold_and_opens_no_closed_counter() {
        let id = HoldId::new(1);
        let until = NOW.plus_millis(3000);
        let closed = HoldRecord { state: Some(HoldState::Closed { for_ms: 3000 }), until };
        let taken = HoldState::Taken { hits: 2, made: NOW, deadline: until };
        let taken = HoldRecord { state: Some(taken), until };
        let by_id = HoldAction::ById { id, used: None, is_end: false, lifetime_ms: 3000 };
        for (hold, before, after) in [
            (HoldAction::Ban { for_ms: 3000 }, &closed, &closed),
            (by_id, &taken, &HoldRecord::default()),
        ] {
            let mut record = AnyAccount::HoldRecord(Box::new(before.clone()));
            assert_eq!(given_back(hold, Some(&mut record)), 3, "{hold:?}");
            assert_eq!(record, AnyAccount::HoldRecord(Box::new(after.clone())), "{hold:?}");
        }
        let open = |id| {
            let abandoned = Abandoned::Keep;
            HoldAction::Open { id, estimate: 4, lifetime_ms: 3000, abandoned }
        };
        for (hold, held) in [(open(id), 0), (open(HoldId::new(2)), 4)] {
            let mut holds = InFlight::default();
            holds.occupy(id, Occupant { hits: 4, lifetime_ms: 3000, caller: None }, NOW);
            let mut record = AnyAccount::InFlight(Box::new(holds));
            assert_eq!(given_back(hold, Some(&mut record)), 3, "{hold:?}");
            let terms = give_back(None).terms(NOW);
            assert_eq!(record.read().used(&terms), held, "{hold:?}");
        }
    }

    fn give_back(hold: Option<HoldAction>) -> GiveBack {
        let limit = Arc::new(Limit::new(10, Unit::Year, 1).unwrap());
        GiveBack {
            counter: Counter::new("shop", &[], limit),
            hits: 2,
            made: NOW,
            caller: None,
            hold,
        }
    }

    /// The hits that are left of 5.
    fn given_back(hold: HoldAction, record: Option<&mut AnyAccount>) -> u64 {
        let give_back = give_back(Some(hold));
        let mut account = AnyAccount::FixedWindow(FixedWindow { used: 5 });
        give_back.apply(&mut account, record, &give_back.terms(NOW));
        account.read().used(&give_back.terms(NOW))
    }
}
