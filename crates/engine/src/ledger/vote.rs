//! Votes: what each charge contributes to the verdict on its call.

use smallvec::SmallVec;

use super::{
    charge::Charge,
    tally::{Fit, JudgedBy, Tally},
};
use crate::rule::{Mode, WhenDenied};

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
    /// The counter is corrupt, or gave no answer.
    Corrupt,
    /// It has no vote, and is not charged: another quota of its group is, or it is a commit.
    Silent,
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
            let (group, fits) = (vote.charge.quota_group, vote.has_room());
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

/// Leaves one vote to each group of quotas that is charged once: the first that fits, or if none does the last.
pub(super) fn choose_in_groups(votes: &mut [Vote<'_>]) {
    let draws =
        |vote: &Vote<'_>| vote.charge.draws_first && vote.mode() != Mode::Enforced && vote.asks();
    let mut drawn: SmallVec<[(usize, usize, bool); 4]> = SmallVec::new();
    for (index, vote) in votes.iter().enumerate().filter(|(_, vote)| draws(vote)) {
        let own = (vote.charge.quota_group, index, vote.has_room());
        match drawn.iter_mut().find(|(group, ..)| *group == own.0) {
            Some((_, _, true)) => {}
            Some(before) => *before = own,
            None => drawn.push(own),
        }
    }
    for (index, vote) in votes.iter_mut().enumerate().filter(|(_, vote)| draws(vote)) {
        if !drawn.iter().any(|(_, of_group, _)| *of_group == index) {
            vote.fit = FitKind::Silent;
        }
    }
}

/// Whether a call of these charges is denied, by their tallies.
pub fn denies(charges: &[Charge], tallies: &[Tally]) -> bool {
    decide(drawn(charges, tallies).into_iter()) != VoteResult::Admitted
}

/// The votes on a call of these charges, by their tallies, once they are [chosen](choose_in_groups).
pub(super) fn drawn<'call>(charges: &'call [Charge], tallies: &[Tally]) -> Vec<Vote<'call>> {
    let votes = charges.iter().zip(tallies).map(|(charge, tally)| Vote::new(charge, tally));
    let mut votes: Vec<Vote<'call>> = votes.collect();
    choose_in_groups(&mut votes);
    votes
}

/// The indices of the quotas in whose place another one of their group is charged.
pub fn skipped(charges: &[Charge], tallies: &[Tally]) -> Vec<usize> {
    let votes = drawn(charges, tallies).into_iter().enumerate();
    let silent = votes.filter(|(_, vote)| vote.fit == FitKind::Silent);
    silent.map(|(index, _)| index).collect()
}

/// Whether a charge with this tally denies its call, and is not charged then.
pub fn denies_uncharged(charge: &Charge, tally: &Tally) -> bool {
    Vote::new(charge, tally).denies_uncharged()
}

impl<'call> Vote<'call> {
    pub(super) fn new(charge: &'call Charge, tally: &Tally) -> Self {
        let fit = match tally.fit {
            _ if tally.judged_by != JudgedBy::Counter => FitKind::Corrupt,
            Fit::Fits { .. } => FitKind::Fits,
            Fit::Commit(_) => FitKind::Silent,
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
            FitKind::Fits | FitKind::Silent => false,
            FitKind::Over => self.mode() == Mode::Enforced && !self.charge.hits.asks_nothing(),
            FitKind::Corrupt => self.charge.denies_by_failure_mode(),
        }
    }

    fn denies_uncharged(self) -> bool {
        self.denies() && self.when_denied() == WhenDenied::Free
    }

    fn is_quota(self) -> bool {
        (self.mode() == Mode::Quota || self.charge.always_fits) && self.asks()
    }

    fn asks(self) -> bool {
        !self.charge.hits.asks_nothing() && matches!(self.fit, FitKind::Fits | FitKind::Over)
    }

    fn has_room(self) -> bool {
        self.fit == FitKind::Fits || self.charge.always_fits
    }

    /// Whether the hits of this charge are charged in a call with this result of its votes.
    pub(super) fn is_charged(self, result: VoteResult) -> bool {
        let is_taken = result == VoteResult::Admitted && self.fit == FitKind::Fits;
        if self.charge.is_take() || self.fit == FitKind::Silent {
            return is_taken;
        }
        is_taken
            || self.when_denied() == WhenDenied::Counted
            || (self.mode() == Mode::Quota
                && !self.charge.draws_first
                && result != VoteResult::DeniedUncharged)
    }
}
