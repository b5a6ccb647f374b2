//! Votes: what each charge contributes to the verdict on its call.

use smallvec::SmallVec;

use super::{
    charge::Charge,
    tally::{Fit, Tally},
};
use crate::engine::rule::{Mode, WhenDenied};

/// The result of the votes on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VoteResult {
    Admitted,
    /// Denied by quotas, or by enforced limits that charge denied calls.
    Denied,
    /// Denied by an enforced limit that does not charge denied calls.
    DeniedUncharged,
}

/// How a charge compares with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FitKind {
    Fits,
    Over,
    /// The counter is corrupt.
    Corrupt,
}

/// The vote of one charge on its call. Shadows have no effect, and refunds never deny.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vote<'call> {
    pub(super) charge: &'call Charge,
    pub(super) fit: FitKind,
}

/// Counts these votes: a call is denied if a charge denies it, or if it has quota charges and there is room neither in
/// one of its own nor in all of a group.
pub(super) fn decide<'call>(votes: impl Iterator<Item = Vote<'call>>) -> VoteResult {
    let (mut is_denied, mut has_quota, mut quota_fits) = (false, false, false);
    let mut groups: SmallVec<[(usize, bool); 4]> = SmallVec::new();
    for vote in votes {
        if vote.denies_uncharged() {
            return VoteResult::DeniedUncharged;
        }
        is_denied |= vote.denies();
        if vote.is_quota() {
            has_quota = true;
            let (group, fits) = (vote.charge.quota_group, vote.fit == FitKind::Fits);
            match groups.iter_mut().find(|(known, _)| *known == group) {
                _ if group == 0 => quota_fits |= fits,
                Some((_, has_room)) => *has_room &= fits,
                None => groups.push((group, fits)),
            }
        }
    }
    quota_fits |= groups.iter().any(|(_, has_room)| *has_room);
    if is_denied || (has_quota && !quota_fits) { VoteResult::Denied } else { VoteResult::Admitted }
}

/// Whether a call of these charges is denied, by their tallies.
pub fn denies(charges: &[Charge], tallies: &[Tally]) -> bool {
    let votes = charges.iter().zip(tallies).map(|(charge, tally)| Vote::new(charge, tally));
    decide(votes) != VoteResult::Admitted
}

/// Whether a charge with this tally denies its call, and is not charged then.
pub fn denies_uncharged(charge: &Charge, tally: &Tally) -> bool {
    Vote::new(charge, tally).denies_uncharged()
}

impl<'call> Vote<'call> {
    fn new(charge: &'call Charge, tally: &Tally) -> Self {
        let fit = match tally.fit {
            Fit::Fits { .. } | Fit::Commit(_) => FitKind::Fits,
            Fit::Over => FitKind::Over,
        };
        Self { charge, fit }
    }

    fn mode(self) -> Mode {
        self.charge.counter.limit.mode
    }

    fn when_denied(self) -> WhenDenied {
        self.charge.when_denied()
    }

    /// Whether this charge alone denies the call.
    fn denies(self) -> bool {
        match self.fit {
            FitKind::Fits => false,
            FitKind::Over => self.mode() == Mode::Enforced && !self.charge.hits.is_refund(),
            FitKind::Corrupt => self.charge.denies_by_failure_mode(),
        }
    }

    fn denies_uncharged(self) -> bool {
        self.denies() && self.when_denied() == WhenDenied::Free
    }

    fn is_quota(self) -> bool {
        self.mode() == Mode::Quota && !self.charge.hits.is_refund() && self.fit != FitKind::Corrupt
    }

    /// Whether the hits of this charge are charged in a call with this result of its votes.
    pub(super) fn is_charged(self, result: VoteResult) -> bool {
        let is_taken = result == VoteResult::Admitted && self.fit == FitKind::Fits;
        if self.charge.is_take() {
            return is_taken;
        }
        is_taken
            || self.when_denied() == WhenDenied::Counted
            || (self.mode() == Mode::Quota && result != VoteResult::DeniedUncharged)
    }
}
