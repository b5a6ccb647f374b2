//! Calls of which a part is charged: as many hits as fit, to each descriptor as many.

use super::{
    assessment::{Assessment, assess},
    charge::Charge,
    hold_action::CommitOutcome,
    posting::{Few, Posting},
    tally::{Fit, Tally},
    vote::{Vote, VoteResult, choose_in_groups, decide, denies},
};
use crate::{algorithm::AnyAccount, request::Hits, rule::Mode};

/// One caller leases at most this part of a limit.
const LENT_PART: u64 = 20;

/// The hits that the parts of a call ask for; `None` if it has none.
pub fn part_asked<'call>(charges: impl IntoIterator<Item = &'call Charge>) -> Option<u64> {
    charges.into_iter().find_map(|charge| match charge.hits {
        Hits::Charge(hits) if charge.is_part => Some(hits),
        _ => None,
    })
}

/// Lowers what the parts of a call ask for to what its limits can admit at all, and so that their sum on one counter is a
/// number that scripts add exactly.
pub fn bound_parts(charges: &mut [Charge]) {
    let Some(asked) = part_asked(&*charges) else { return };
    let of_mode = |mode| charges.iter().filter(move |charge| charge.counter.limit.mode == mode);
    let capacity = |charge: &Charge| {
        let limit = &charge.counter.limit;
        let part = match &limit.hold {
            Some(policy) if policy.is_lease() && !policy.is_assignment() => LENT_PART,
            _ => 1,
        };
        (limit.capacity() / part).max(1)
    };
    let enforced = of_mode(Mode::Enforced).map(capacity).min();
    let always_fits = charges.iter().any(|charge| charge.always_fits);
    // One of them is enough.
    let quotas = of_mode(Mode::Quota).map(capacity).max().filter(|_| !always_fits);
    let most = [enforced, quotas].into_iter().flatten().fold(asked, u64::min);
    let number = u64::try_from(charges.len()).unwrap_or(u64::MAX);
    let sum_exceeds = most.saturating_mul(number) > Hits::MAX;
    let on_one_counter =
        if sum_exceeds { on_same_counter(charges).into_iter().max() } else { None };
    let most = most.min(Hits::MAX / on_one_counter.unwrap_or(1)).max(1);
    for charge in charges {
        if let (Hits::Charge(hits), true) = (&mut charge.hits, charge.is_part) {
            *hits = most;
        }
    }
}

/// The most hits, up to those that the parts of a call ask for, with which it is admitted; 1 if it never is.
pub(super) fn fitting(
    most: u64,
    postings: &[Posting<'_>],
    commits: &[Option<CommitOutcome>],
    accounts: &[AnyAccount],
) -> u64 {
    most_admitted(most, |hits| {
        let postings = with_hits(hits, postings);
        let assessments = assess(&postings, commits, accounts);
        let mut votes: Few<Vote<'_>> = assessments.iter().map(Assessment::vote).collect();
        choose_in_groups(&mut votes);
        decide(votes.into_iter()) == VoteResult::Admitted
    })
}

/// Like `fitting`, by the tallies that checks of the same counters got.
pub fn fitting_by_checks(most: u64, charges: &[Charge], checked: &[Tally]) -> u64 {
    let same = on_same_counter(charges);
    most_admitted(most, |hits| {
        let tallies = checked.iter().zip(&same).map(|(tally, same)| match tally.fit {
            Fit::Fits { remaining } if hits.saturating_mul(*same) > remaining => {
                Tally { fit: Fit::Over, ..*tally }
            }
            _ => *tally,
        });
        !denies(charges, &tallies.collect::<Vec<_>>())
    })
}

/// For each of these charges, how many of them are on its counter: at least 1.
pub fn on_same_counter(charges: &[Charge]) -> Few<u64> {
    let same = |charge: &Charge| {
        let same = charges.iter().filter(|other| other.counter.same_counter(&charge.counter));
        u64::try_from(same.count()).unwrap_or(u64::MAX)
    };
    charges.iter().map(same).collect()
}

fn most_admitted(most: u64, admits: impl Fn(u64) -> bool) -> u64 {
    if admits(most) {
        return most;
    }
    let (mut admitted, mut over) = (1, most);
    while over - admitted > 1 {
        let middle = admitted.midpoint(over);
        *(if admits(middle) { &mut admitted } else { &mut over }) = middle;
    }
    admitted
}

/// The postings with this number of hits of each part.
pub(super) fn with_hits<'call>(hits: u64, postings: &[Posting<'call>]) -> Few<Posting<'call>> {
    let with_hits = |posting: &Posting<'call>| match posting.hits {
        Hits::Charge(_) if posting.charge.is_part => {
            Posting { hits: Hits::Charge(hits), ..*posting }
        }
        _ => *posting,
    };
    postings.iter().map(with_hits).collect()
}
