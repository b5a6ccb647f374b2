//! What each charge of a call asks of its counter, and whether that fits.

use smallvec::smallvec;

use super::{
    charge::required,
    hold_action::CommitOutcome,
    holds,
    posting::{Few, Posting},
    tally::{Fit, JudgedBy, Tally},
    vote::{FitKind, Vote},
};
use crate::{algorithm::AnyAccount, request::Hits};

/// A posting, compared with its limit.
pub(super) struct Assessment<'call> {
    pub(super) posting: &'call Posting<'call>,
    /// What has become of it, if it is a commit.
    commit: Option<CommitOutcome>,
    /// The hits that must fit.
    asked: u64,
    pub(super) fit: FitKind,
    /// The tally of a check: it reports the state before the call is charged.
    pub(super) checked: Option<Tally>,
}

impl<'call> Assessment<'call> {
    pub(super) fn new(
        posting: &'call Posting<'call>,
        commit: Option<CommitOutcome>,
        asked: u64,
        accounts: &[AnyAccount],
    ) -> Self {
        let fit = match posting.read(accounts) {
            None => FitKind::Corrupt,
            Some(_) if posting.hits.asks_nothing() || commit.is_some() => FitKind::Fits,
            Some(_) if holds::closed_until(posting, accounts).is_some() => FitKind::Over,
            Some(account) if account.fits(asked, &posting.terms) => FitKind::Fits,
            Some(_) => FitKind::Over,
        };
        let mut assessment = Self { posting, commit, asked, fit, checked: None };
        if posting.hits == Hits::Check && !posting.opens_hold() {
            assessment.checked = Some(assessment.tally(accounts));
        }
        assessment
    }

    pub(super) fn vote(&self) -> Vote<'call> {
        let fit = if self.commit.is_some() { FitKind::Silent } else { self.fit };
        Vote { charge: self.posting.charge, fit }
    }

    pub(super) fn tally(&self, accounts: &[AnyAccount]) -> Tally {
        match self.posting.read(accounts) {
            Some(account) => {
                let fits = self.fit == FitKind::Fits;
                let tally = Tally::of(account, fits, self.asked, &self.posting.terms);
                match (self.commit, holds::closed_until(self.posting, accounts)) {
                    (Some(outcome), _) => Tally { fit: Fit::Commit(outcome), ..tally },
                    (None, Some(until)) if !fits => {
                        Tally { reset: self.posting.terms.now.until(until), ..tally }
                    }
                    (None, _) => tally.less(holds::held(self.posting, accounts)),
                }
            }
            None => Tally::by_failure_mode(self.posting.charge, JudgedBy::Corrupt),
        }
    }
}

/// Compares each posting with its limit.
pub(super) fn assess<'call>(
    postings: &'call [Posting<'call>],
    commits: &[Option<CommitOutcome>],
    accounts: &[AnyAccount],
) -> Few<Assessment<'call>> {
    let sums = sums(postings, commits, accounts.len(), Hits::charged);
    let mut assessments = Few::new();
    for (posting, commit) in postings.iter().zip(commits) {
        let sum = || posting.account.and_then(|index| sums.get(index)).copied().unwrap_or(0);
        let asked = match posting.opens_hold() {
            true => sum(),
            false => required(posting.charge, posting.hits, sum),
        };
        let asked = asked.saturating_add(holds::asked(posting, postings, accounts));
        assessments.push(Assessment::new(posting, *commit, asked, accounts));
    }
    assessments
}

/// The sum of some hits of the postings on each account, without commits.
pub(super) fn sums(
    postings: &[Posting<'_>],
    commits: &[Option<CommitOutcome>],
    accounts: usize,
    hits_of: impl Fn(Hits) -> u64,
) -> Few<u64> {
    let mut sums: Few<u64> = smallvec![0; accounts];
    for (posting, commit) in postings.iter().zip(commits) {
        if commit.is_none()
            && let Some(sum) = posting.account.and_then(|index| sums.get_mut(index))
        {
            *sum = sum.saturating_add(hits_of(posting.hits));
        }
    }
    sums
}
