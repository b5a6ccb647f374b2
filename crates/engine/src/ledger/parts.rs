//! Calls that are judged in parts, because no single step reaches all of their counters. Each part is reserved as
//! a call of its own; when all parts are known, the verdict on the whole call decides which hits stay.

use super::{
    charge::{Charge, applied_failure_mode},
    hold_action::HoldAction,
    tally::{JudgedBy, Tally},
    vote::{FitKind, Vote, VoteResult, decide, drawn},
};
use crate::{
    request::Hits,
    rule::{FailureMode, Limit, Mode, WhenDenied},
};
use std::sync::Arc;

/// A call in parts, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedParts {
    /// The verdict.
    pub verdict: PartsVerdict,
    /// For each charge: whether what its part has reserved is given back.
    pub gives_back: Vec<bool>,
}

/// The verdict on a call in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartsVerdict {
    /// Every part that is known was admitted, and no part denies.
    Admitted,
    /// A charge denies the call.
    Denied,
    /// A charge without a counter fails it, by its `on_store_failure`.
    Failed,
    /// The call must be tried again: a `local` limit without a counter must be judged in memory first.
    Again,
}

/// A charge as its part makes it. A part does not know whether quotas of other parts fit, so that quotas
/// neither admit nor deny it, and are charged in full, but for takes; see rule 3 of [`judge`](super::judge).
#[must_use]
pub fn reservation(charge: &Charge) -> Charge {
    let limit = &charge.counter.limit;
    let alone = Charge { draws_first: false, always_fits: false, is_part: false, ..charge.clone() };
    if limit.mode != Mode::Quota {
        return alone;
    }
    // One that may not be drawn is charged only if it fits.
    let when_denied = if charge.draws_first { limit.when_denied } else { WhenDenied::Counted };
    let limit = Limit { mode: Mode::Shadow, when_denied, ..Limit::clone(limit) };
    let is_reserved = !charge.applies_when_denied();
    Charge { counter: charge.counter.with_limit(Arc::new(limit)), is_reserved, ..alone }
}

/// A charge of a part that has a corrupt counter. What that means for the call is decided when all parts are known, so
/// it fails no part; one that denies the call denies its part too.
#[must_use]
pub fn past_corrupt_counter(charge: &Charge) -> Charge {
    if charge.denies_by_failure_mode() {
        return charge.clone();
    }
    let limit =
        Limit { on_store_failure: FailureMode::Allow, ..Limit::clone(&charge.counter.limit) };
    Charge { counter: charge.counter.with_limit(Arc::new(limit)), ..charge.clone() }
}

/// Judges a call by the tallies of its [reservations](reservation). `parts` names each charge's part.
pub fn judge_parts(charges: &[Charge], tallies: &[Tally], parts: &[usize]) -> JudgedParts {
    let verdict = verdict(charges, tallies);
    JudgedParts { verdict, gives_back: given_back(charges, tallies, parts, verdict) }
}

/// For each charge: whether what its part has reserved is given back under this verdict, which may have been found before
/// all of these tallies were known.
pub fn given_back(
    charges: &[Charge],
    tallies: &[Tally],
    parts: &[usize],
    verdict: PartsVerdict,
) -> Vec<bool> {
    let votes = drawn(charges, tallies);
    let result = match verdict {
        PartsVerdict::Admitted => Some(VoteResult::Admitted),
        PartsVerdict::Denied => Some(match decide(votes.iter().copied()) {
            // What denied the call was the want of an answer.
            VoteResult::Admitted => VoteResult::DeniedUncharged,
            _ if charges.iter().any(|charge| charge.is_part) => VoteResult::DeniedUncharged,
            denied => denied,
        }),
        // Nothing stays of a call that is not decided, but for work that is done.
        PartsVerdict::Failed => Some(VoteResult::DeniedUncharged),
        PartsVerdict::Again => None,
    };
    let mut gives_back = Vec::with_capacity(charges.len());
    for (((charge, tally), part), vote) in charges.iter().zip(tallies).zip(parts).zip(&votes) {
        let is_of_part = |index: usize| parts.get(index) == Some(part);
        let opens = matches!(charge.hold, Some(HoldAction::Open { .. }));
        let alone = Vote::new(charge, tally);
        let is_reserved = (opens || matches!(charge.hits, Hits::Charge(_)))
            && matches!(alone.fit, FitKind::Fits | FitKind::Over)
            && stands_in_part(alone, &votes, is_of_part);
        let stays = result.is_some_and(|result| vote.is_charged(result));
        gives_back.push(is_reserved && !stays);
    }
    gives_back
}

fn verdict(charges: &[Charge], tallies: &[Tally]) -> PartsVerdict {
    let judged = charges.iter().zip(tallies);
    let failure_modes = judged.filter(|(_, tally)| tally.judged_by != JudgedBy::Counter);
    let failure_modes = failure_modes.filter(|(charge, _)| charge.needs_answer(charges));
    let failure_modes: Vec<FailureMode> =
        failure_modes.map(|(charge, _)| applied_failure_mode(charge)).collect();
    if failure_modes.contains(&FailureMode::Local) {
        return PartsVerdict::Again;
    }
    match decide(drawn(charges, tallies).into_iter()) {
        VoteResult::Admitted if failure_modes.contains(&FailureMode::Error) => PartsVerdict::Failed,
        VoteResult::Admitted => PartsVerdict::Admitted,
        VoteResult::Denied | VoteResult::DeniedUncharged => PartsVerdict::Denied,
    }
}

/// Whether the reservation of a charge was charged, by the verdict on its part.
fn stands_in_part(alone: Vote<'_>, votes: &[Vote<'_>], is_of_part: impl Fn(usize) -> bool) -> bool {
    // A reserved quota has no vote, and is always charged, but for a take.
    let has_vote = |charge: &Charge| charge.counter.limit.mode != Mode::Quota;
    let votes = votes.iter().copied().enumerate();
    let votes = votes.filter(|(index, vote)| is_of_part(*index) && has_vote(vote.charge));
    let result = decide(votes.map(|(_, vote)| vote));
    let charge = alone.charge;
    let is_always_charged = !has_vote(charge) && !charge.is_take() && !charge.draws_first;
    is_always_charged || alone.is_charged(result)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        key::Counter,
        ledger::{CommitOutcome, Fit},
        rule::Unit,
    };

    const FITS: Tally = Tally::new(Fit::Fits { remaining: 1 }, Duration::ZERO);
    const OVER: Tally = Tally::new(Fit::Over, Duration::ZERO);
    const ABSENT: Tally = Tally { judged_by: JudgedBy::Absent, ..FITS };
    const CORRUPT: Tally = Tally { judged_by: JudgedBy::Corrupt, ..FITS };

    fn charge(mode: Mode, when_denied: WhenDenied, on_store_failure: FailureMode) -> Charge {
        let limit =
            Limit { mode, when_denied, on_store_failure, ..Limit::new(10, Unit::Hour, 1).unwrap() };
        Charge::new(Counter::new("shop", &[], Arc::new(limit)), Hits::Charge(1))
    }

    fn enforced() -> Charge {
        charge(Mode::Enforced, WhenDenied::Free, FailureMode::Error)
    }

    fn counted() -> Charge {
        charge(Mode::Enforced, WhenDenied::Counted, FailureMode::Error)
    }

    fn quota() -> Charge {
        charge(Mode::Quota, WhenDenied::Free, FailureMode::Error)
    }

    fn shadow() -> Charge {
        charge(Mode::Shadow, WhenDenied::Free, FailureMode::Error)
    }

    fn draws(charge: Charge) -> Charge {
        Charge { draws_first: true, ..charge }
    }

    fn part(charge: Charge) -> Charge {
        Charge { is_part: true, ..charge }
    }

    fn failing(mode: FailureMode) -> Charge {
        charge(Mode::Enforced, WhenDenied::Free, mode)
    }

    /// Judges charges that are each a part of its own.
    #[track_caller]
    fn check(charges: &[(Charge, Tally)], verdict: PartsVerdict, gives_back: &[bool]) {
        let parts: Vec<usize> = (0..charges.len()).collect();
        let (charges, tallies): (Vec<_>, Vec<_>) = charges.iter().cloned().unzip();
        let gives_back = gives_back.to_vec();
        assert_eq!(judge_parts(&charges, &tallies, &parts), JudgedParts { verdict, gives_back });
    }

    #[test]
    fn an_admitted_call_keeps_every_part() {
        check(&[(enforced(), FITS), (enforced(), FITS)], PartsVerdict::Admitted, &[false, false]);
        check(&[(enforced(), FITS), (shadow(), OVER)], PartsVerdict::Admitted, &[false, false]);
        check(&[(quota(), OVER), (quota(), FITS)], PartsVerdict::Admitted, &[false, false]);
    }

    #[test]
    fn a_denied_call_gives_back_what_other_parts_reserved() {
        check(&[(enforced(), FITS), (enforced(), OVER)], PartsVerdict::Denied, &[true, false]);
        check(&[(shadow(), FITS), (enforced(), OVER)], PartsVerdict::Denied, &[true, false]);
        check(&[(enforced(), FITS), (quota(), OVER)], PartsVerdict::Denied, &[true, false]);
    }

    #[test]
    fn a_part_neither_admits_nor_denies_by_its_quotas_and_charges_them_in_full() {
        for (charge, mode, when_denied) in [
            (enforced(), Mode::Enforced, WhenDenied::Free),
            (counted(), Mode::Enforced, WhenDenied::Counted),
            (quota(), Mode::Shadow, WhenDenied::Counted),
            (draws(quota()), Mode::Shadow, WhenDenied::Free),
            (Charge { always_fits: true, ..part(enforced()) }, Mode::Enforced, WhenDenied::Free),
        ] {
            let reserved = reservation(&charge);
            let expected = Limit { mode, when_denied, ..Limit::clone(&charge.counter.limit) };
            let counter = charge.counter.with_limit(Arc::new(expected));
            let is_reserved = charge.counter.limit.mode == Mode::Quota;
            let expected = Charge { is_reserved, ..Charge::new(counter, Hits::Charge(1)) };
            assert_eq!(reserved, expected, "{charge:?}");
        }
    }

    #[test]
    fn a_reserved_quota_is_no_work_that_is_done_unless_it_counts_denied_calls_or_gives_back() {
        let of_quota = |charge: Charge| {
            let limit = Limit { mode: Mode::Quota, ..Limit::clone(&charge.counter.limit) };
            Charge { counter: charge.counter.with_limit(Arc::new(limit)), ..charge }
        };
        let refund = Charge { hits: Hits::Refund(1), ..quota() };
        for (charge, is_done) in [(quota(), false), (of_quota(counted()), true), (refund, true)] {
            assert_eq!(reservation(&charge).outlives_caller(), is_done, "{charge:?}");
        }
    }

    #[test]
    fn a_corrupt_counter_fails_no_part_but_denies_it_if_it_denies_the_call() {
        use FailureMode::{Allow, Deny, Error, Local};
        for (mode, expected) in [(Allow, Allow), (Deny, Deny), (Error, Allow), (Local, Allow)] {
            assert_eq!(past_corrupt_counter(&failing(mode)), failing(expected));
        }
    }

    #[test]
    fn a_lost_refund_of_a_limit_that_denies_fails_the_call() {
        let refund = Charge { hits: Hits::Refund(1), ..failing(FailureMode::Deny) };
        check(&[(enforced(), FITS), (refund, ABSENT)], PartsVerdict::Failed, &[true, false]);
    }

    #[test]
    fn hits_that_count_when_denied_stay() {
        check(&[(counted(), FITS), (enforced(), OVER)], PartsVerdict::Denied, &[false, false]);
        check(&[(quota(), FITS), (counted(), OVER)], PartsVerdict::Denied, &[false, false]);
        check(&[(quota(), FITS), (enforced(), OVER)], PartsVerdict::Denied, &[true, false]);
    }

    #[test]
    fn a_part_that_denies_itself_has_nothing_to_give_back() {
        let charges = [enforced(), enforced(), enforced()];
        let judged = judge_parts(&charges, &[FITS, OVER, FITS], &[0, 0, 1]);
        assert_eq!(judged.gives_back, [false, false, true]);
        // A quota is reserved even so.
        let judged = judge_parts(&[quota(), enforced()], &[FITS, OVER], &[0, 0]);
        assert_eq!(judged.gives_back, [true, false]);
        let judged = judge_parts(&[draws(quota()), enforced()], &[FITS, OVER], &[0, 0]);
        assert_eq!(judged.gives_back, [false, false]);
    }

    #[test]
    fn a_denied_call_with_parts_gives_back_quotas_too() {
        check(&[(part(enforced()), FITS), (quota(), OVER)], PartsVerdict::Denied, &[true, true]);
    }

    #[test]
    fn a_call_that_was_denied_before_all_tallies_were_known_keeps_no_quota() {
        assert_eq!(given_back(&[quota()], &[FITS], &[0], PartsVerdict::Denied), [true]);
    }

    #[test]
    fn what_turned_out_to_be_a_commit_is_not_given_back() {
        let committed = Fit::Commit(CommitOutcome::Applied);
        let committed = Tally::new(committed, Duration::ZERO);
        check(&[(enforced(), committed), (enforced(), OVER)], PartsVerdict::Denied, &[false; 2]);
        check(&[(quota(), committed), (enforced(), OVER)], PartsVerdict::Denied, &[false; 2]);
        // It is no quota with room.
        check(&[(quota(), committed), (quota(), OVER)], PartsVerdict::Denied, &[false; 2]);
    }

    #[test]
    fn a_charge_without_a_counter_follows_its_failure_mode() {
        use FailureMode::{Allow, Deny, Error, Local};
        let with = |mode, verdict, gives_back: &[bool]| {
            check(&[(enforced(), FITS), (failing(mode), ABSENT)], verdict, gives_back);
            check(&[(enforced(), FITS), (failing(mode), CORRUPT)], verdict, gives_back);
        };
        with(Allow, PartsVerdict::Admitted, &[false, false]);
        with(Deny, PartsVerdict::Denied, &[true, false]);
        with(Error, PartsVerdict::Failed, &[true, false]);
        with(Local, PartsVerdict::Again, &[true, false]);
        // What denies the call anyway goes before an error.
        check(&[(enforced(), OVER), (failing(Error), ABSENT)], PartsVerdict::Denied, &[false; 2]);
        // A debit of a call that fails stays, unless the call is judged again.
        check(&[(counted(), FITS), (failing(Error), ABSENT)], PartsVerdict::Failed, &[false; 2]);
        check(&[(counted(), FITS), (failing(Local), ABSENT)], PartsVerdict::Again, &[true, false]);
    }
}
