//! Postings: charges, each with the account that it changes.

use smallvec::SmallVec;

use super::{
    charge::{self, Charge},
    hold_action::HoldAction,
};
use crate::{
    algorithm::{
        AnyAccount,
        account::{Account, Terms},
    },
    request::Hits,
    rule::FailureMode,
};

/// A list that needs no allocation for most calls, since they are short.
pub type Few<T> = SmallVec<[T; 4]>;

/// A charge, and the account that it is posted to.
#[derive(Debug, Clone, Copy)]
pub struct Posting<'call> {
    /// An index into the accounts; `None` if the counter is corrupt.
    pub account: Option<usize>,
    /// The index of what is known of its hold: the record of its id, or the open holds of its counter.
    pub hold: Option<usize>,
    /// The index of the record of the last reset of its counter, if it is a commit.
    pub reset: Option<usize>,
    /// The charge.
    pub charge: &'call Charge,
    /// Its hits; of a part, as many as fit.
    pub hits: Hits,
    /// The numbers of its limit, at the time of the call.
    pub terms: Terms,
}

impl Posting<'_> {
    pub(super) fn opens_hold(&self) -> bool {
        matches!(self.charge.hold, Some(HoldAction::Open { .. }))
    }

    /// The failure mode of a charge on a corrupt counter; `None` if the counter is not corrupt.
    pub(super) fn failure_mode(&self) -> Option<FailureMode> {
        if self.account.is_some() {
            return None;
        }
        Some(charge::applied_failure_mode(self.charge))
    }

    pub(super) fn read<'accounts>(
        &self,
        accounts: &'accounts [AnyAccount],
    ) -> Option<&'accounts dyn Account> {
        Some(accounts.get(self.account?)?.read())
    }
}
