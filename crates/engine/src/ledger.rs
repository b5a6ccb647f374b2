//! The verdict on one call: all of its charges are made, or none.
//!
//! The memory store and `redis/transactions` run this code. `lua/ledger.lua` is its translation, and
//! `lua/fixed.lua` comes to the same verdict on plain fixed windows. Tests compare them step by step.

mod assessment;
mod charge;
mod counter_state;
mod give_back;
mod hold_action;
mod holds;
mod part;
mod parts;
mod posting;
mod tally;
mod vote;

use std::{mem, slice};

use self::{
    assessment::{Assessment, assess, sums},
    charge::required,
    holds::Begun,
    vote::{FitKind, Vote, VoteResult},
};
pub use self::{
    charge::{Asked, Charge},
    counter_state::{CounterState, foresee},
    give_back::GiveBack,
    hold_action::{CommitOutcome, HoldAction},
    holds::taken::{HeldCharge, TakenHold},
    part::{bound_parts, fitting_by_checks, on_same_counter, part_asked},
    parts::{
        JudgedParts, PartsVerdict, given_back, judge_parts, past_corrupt_counter, reservation,
    },
    posting::{Few, Posting},
    tally::{Fit, JudgedBy, Tally},
    vote::{denies, denies_uncharged, skipped},
};
pub use crate::algorithm::sliding_log::Remembered;
use crate::{
    algorithm::AnyAccount, hold_id::HoldId, request::Hits, rule::FailureMode, time::Timestamp,
};

/// The verdict on one call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the call is denied.
    pub denied: bool,
    /// One for each charge, in their order.
    pub tallies: Vec<Tally>,
    /// The store's times of the charges, in their order; one for all if they are equal.
    pub at: Few<Timestamp>,
    /// The hits of each part that fit, if the call has parts, and is admitted.
    pub part: Option<u64>,
    /// The holds without ids that were ended, and that may be open on other counters too.
    pub ended: Vec<HoldId>,
}

/// The indices of the charges that were judged by this.
pub fn indices_judged_by(judged_by: JudgedBy, tallies: &[Tally]) -> Vec<usize> {
    let tallies = tallies.iter().enumerate();
    tallies.filter(|(_, tally)| tally.judged_by == judged_by).map(|(index, _)| index).collect()
}

/// Judges one call, and changes `accounts` accordingly.
///
/// 1. Refunds are applied first, and always.
/// 2. Hits on one account are summed; each charge is judged by the sum against its own limit. A check
///    fits if one hit would (see [`ExhaustedChecks`](crate::rule::ExhaustedChecks)), and is not part of the sum.
/// 3. If the call is admitted, every charge that fits is made; if it is denied, none. Hits with
///    [`WhenDenied::Counted`](crate::rule::WhenDenied) are always charged. So are hits of a quota, unless
///    an enforced limit denies the call uncharged.
///    Of a group of quotas that draws first, the first one that fits is charged, and no other; if none fits, the last one
///    stands for the group, and is charged only if it is counted when denied.
///    Of parts as many hits are charged as let the call pass. If not even one does, nothing is charged, to quotas neither.
///    A charge that does not fit closes the counter of a limit with a ban, for the time of the ban.
/// 4. For a corrupt counter, the `on_store_failure` of its limit applies: `deny` denies the call, `allow` has no
///    effect, and `error` fails a call that nothing else denies. `local` cannot be answered here.
///
/// `None` if the call fails, or needs the answer of a `local` limit; then nothing has changed. It is
/// never `None` if every posting has an account.
pub fn judge(postings: &[Posting<'_>], accounts: &mut [AnyAccount]) -> Option<Verdict> {
    if let [posting] = postings
        && posting.account.is_some()
        && posting.charge.hold.is_none()
        && !posting.charge.is_part
    {
        return Some(settle_one(posting, accounts));
    }
    let failure_modes: Few<FailureMode> =
        postings.iter().filter_map(Posting::failure_mode).collect();
    if failure_modes.is_empty() {
        return Some(settle(postings, accounts));
    }
    if failure_modes.contains(&FailureMode::Local) {
        return None;
    }
    let mut after = accounts.to_vec();
    let verdict = settle(postings, &mut after);
    if !verdict.denied && failure_modes.contains(&FailureMode::Error) {
        return None;
    }
    accounts.clone_from_slice(&after);
    Some(verdict)
}

/// The same as [`settle`] for one charge without a hold, as most calls have, without the lists.
fn settle_one(posting: &Posting<'_>, accounts: &mut [AnyAccount]) -> Verdict {
    holds::end_expired_calls(posting, accounts);
    refund(slice::from_ref(posting), &[None], accounts);
    let asked = required(posting.charge, posting.hits, || posting.hits.charged());
    let assessment = Assessment::new(posting, None, asked, accounts);
    let mut votes = [assessment.vote()];
    count_votes(&[assessment], &mut votes, accounts)
}

fn settle(postings: &[Posting<'_>], accounts: &mut [AnyAccount]) -> Verdict {
    let Begun { commits, held, ended } = holds::begin(postings, accounts);
    refund(postings, &commits, accounts);
    let asked = part_asked(postings.iter().map(|posting| posting.charge));
    let part = asked.map(|most| part::fitting(most, postings, &commits, accounts));
    let parts = part.map(|hits| part::with_hits(hits, postings));
    let assessments = assess(parts.as_deref().unwrap_or(postings), &commits, accounts);
    let mut votes: Few<Vote<'_>> = assessments.iter().map(Assessment::vote).collect();
    let mut verdict = count_votes(&assessments, &mut votes, accounts);
    for (tally, held) in verdict.tallies.iter_mut().zip(held) {
        tally.held = held;
    }
    Verdict { ended, part: part.filter(|_| !verdict.denied), ..verdict }
}

/// Decides by the votes, and makes the charges.
fn count_votes<'call>(
    assessments: &[Assessment<'call>],
    votes: &mut [Vote<'call>],
    accounts: &mut [AnyAccount],
) -> Verdict {
    vote::choose_in_groups(votes);
    let result = vote::decide(votes.iter().copied());
    let has_parts = || assessments.iter().any(|assessment| assessment.posting.charge.is_part);
    let result = match result {
        VoteResult::Denied if has_parts() => VoteResult::DeniedUncharged,
        result => result,
    };
    charge(assessments, votes, result, accounts);

    let mut verdict = Verdict {
        denied: result != VoteResult::Admitted,
        tallies: Vec::with_capacity(assessments.len()),
        ..Verdict::default()
    };
    verdict.at.extend(assessments.first().map(|assessment| assessment.posting.terms.now));
    for assessment in assessments {
        verdict.tallies.push(match assessment.checked {
            Some(tally) => tally,
            None => assessment.tally(accounts),
        });
    }
    verdict
}

/// All refunds of an account are one: together they end no more calls than one ends.
fn refund(
    postings: &[Posting<'_>],
    commits: &[Option<CommitOutcome>],
    accounts: &mut [AnyAccount],
) {
    let mut sums = sums(postings, commits, accounts.len(), Hits::refunded);
    for (posting, commit) in postings.iter().zip(commits) {
        if let Hits::Refund(_) = posting.hits
            && commit.is_none()
            && let Some(index) = posting.account
            && let (Some(hits), Some(account)) = (sums.get_mut(index), accounts.get_mut(index))
        {
            // Another refund of the account finds 0.
            account.write().refund(mem::take(hits), &posting.terms);
        }
    }
}

fn charge(
    assessments: &[Assessment<'_>],
    votes: &[Vote<'_>],
    result: VoteResult,
    accounts: &mut [AnyAccount],
) {
    for (assessment, vote) in assessments.iter().zip(votes) {
        let posting = assessment.posting;
        if let Hits::Charge(hits) = posting.hits
            && vote.is_charged(result)
            && let Some(account) = posting.account.and_then(|index| accounts.get_mut(index))
        {
            holds::charge(posting, hits, account);
        }
        if assessment.fit == FitKind::Over && posting.hits != Hits::Check {
            holds::close(posting, accounts);
        }
        if result == VoteResult::Admitted && vote.fit == FitKind::Fits {
            holds::take(posting, accounts);
        }
    }
}

#[cfg(test)]
mod tests;
