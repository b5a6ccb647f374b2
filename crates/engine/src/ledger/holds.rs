//! What the charges of a call do with holds: before the call is judged, commits are applied and open holds expire; takes of
//! an admitted call are noted after it.

pub(super) mod taken;

use super::hold_action::{CommitOutcome, HoldAction};
use super::posting::{Few, Posting};
use crate::{
    algorithm::{
        AnyAccount,
        account::{Account as _, COUNT_MAX, Terms},
        hold_record::{HoldRecord, HoldState},
        in_flight::{InFlight, Occupant},
    },
    hold::{Abandoned, HoldPolicy},
    hold_id::HoldId,
    request::Hits,
    time::Timestamp,
};

/// What a call has done with holds before it is judged.
#[derive(Default)]
pub(super) struct Begun {
    /// What has become of each commit, by the index of its posting.
    pub(super) commits: Few<Option<CommitOutcome>>,
    /// See [`Tally::held`](super::Tally), by the index of the posting.
    pub(super) held: Few<u64>,
    /// The ids of holds that were ended without being named.
    pub(super) ended: Vec<HoldId>,
}

/// Applies the commits of a call, and drops open holds whose time has passed.
pub(super) fn begin(postings: &[Posting<'_>], accounts: &mut [AnyAccount]) -> Begun {
    postings.iter().for_each(|posting| expire(posting, accounts));
    let (mut begun, mut ended_on) = (Begun::default(), Few::new());
    for posting in postings {
        end_expired_calls(posting, accounts);
        let mut held = 0;
        begun.commits.push(posting.charge.hold.and_then(|hold| match hold {
            HoldAction::EndOldest { .. } => {
                let ended = &mut begun.ended;
                let outcome = end_oldest(posting, postings, accounts, &mut ended_on, ended);
                let own = ended_on.iter().find(|(index, _)| posting.hold == Some(*index));
                held = own.map_or(0, |(_, hits)| *hits);
                outcome
            }
            HoldAction::Open { .. }
            | HoldAction::Beside { .. }
            | HoldAction::Occupy { .. }
            | HoldAction::Ban { .. } => None,
            HoldAction::ById { .. } => commit_by_id(posting, accounts, &hold, &mut held),
            HoldAction::Commit { .. } => commit(posting, accounts, &hold),
        }));
        begun.held.push(held);
    }
    begun
}

/// Drops the calls in flight whose time has passed.
pub(super) fn end_expired_calls(posting: &Posting<'_>, accounts: &mut [AnyAccount]) {
    if let Some(account) = in_flight(posting.account, accounts) {
        account.expire(posting.terms.now);
    }
}

/// The hits of open holds without ids that must fit beside those that a posting asks for, with those that this call opens.
/// A commit is work that is done: it is compared with its limit alone.
pub(super) fn asked(
    posting: &Posting<'_>,
    postings: &[Posting<'_>],
    accounts: &[AnyAccount],
) -> u64 {
    let estimate = |other: &Posting<'_>| match other.charge.hold {
        Some(HoldAction::Open { estimate, .. }) if other.hold == posting.hold => estimate,
        _ => 0,
    };
    let own = || postings.iter().map(estimate).fold(0, u64::saturating_add);
    match posting.charge.hold {
        Some(HoldAction::Open { .. }) => held(posting, accounts).saturating_add(own()),
        Some(HoldAction::Beside { .. }) => held(posting, accounts),
        _ => 0,
    }
}

/// The hits of the open holds without ids on the counter of a posting.
pub(super) fn held(posting: &Posting<'_>, accounts: &[AnyAccount]) -> u64 {
    match posting.hold.and_then(|index| accounts.get(index)) {
        Some(AnyAccount::InFlight(holds)) => holds.used(&posting.terms),
        _ => 0,
    }
}

/// Makes the charge of a posting that fits or is charged anyway.
pub(super) fn charge(posting: &Posting<'_>, hits: u64, account: &mut AnyAccount) {
    let (charge, terms) = (posting.charge, &posting.terms);
    match (account, charge.hold) {
        (
            AnyAccount::InFlight(account),
            Some(HoldAction::Occupy { id, lifetime_ms } | HoldAction::ById { id, lifetime_ms, .. }),
        ) => {
            let caller = charge.caller.clone();
            account.occupy(id, Occupant { hits, lifetime_ms, caller }, terms.now);
        }
        (account, _) => account.write().charge(hits, charge.caller.as_deref(), terms),
    }
}

/// Until when the counter of a posting is closed; `None` if it is open.
pub(super) fn closed_until(posting: &Posting<'_>, accounts: &[AnyAccount]) -> Option<Timestamp> {
    match (posting.charge.hold?, accounts.get(posting.hold?)?) {
        (HoldAction::Ban { .. }, AnyAccount::HoldRecord(record)) => {
            Some(record.until).filter(|until| posting.terms.now < *until)
        }
        _ => None,
    }
}

/// Closes the counter of a posting that does not fit. One that is closed stays closed no longer than before.
pub(super) fn close(posting: &Posting<'_>, accounts: &mut [AnyAccount]) {
    if let Some(HoldAction::Ban { for_ms }) = posting.charge.hold
        && closed_until(posting, accounts).is_none()
        && let Some(record) = record(posting.hold, accounts)
    {
        let until = posting.terms.now.plus_millis(for_ms);
        *record = HoldRecord { state: Some(HoldState::Closed { for_ms }), until };
    }
}

/// Notes the hold of a posting that fits, in a call that is admitted.
pub(super) fn take(posting: &Posting<'_>, accounts: &mut [AnyAccount]) {
    let now = posting.terms.now;
    match (posting.charge.hold, posting.hold.and_then(|index| accounts.get_mut(index))) {
        (
            Some(HoldAction::Open { id, estimate: hits, lifetime_ms, .. }),
            Some(AnyAccount::InFlight(holds)),
        ) => holds.occupy(id, Occupant { hits, lifetime_ms, caller: None }, now),
        (Some(HoldAction::ById { lifetime_ms, .. }), Some(AnyAccount::HoldRecord(record))) => {
            let Hits::Charge(hits) = posting.hits else { return };
            // A call may charge the counter twice.
            let before = match record.state {
                Some(HoldState::Taken { hits, .. }) => hits,
                _ => 0,
            };
            let hits = hits.saturating_add(before).min(COUNT_MAX);
            let deadline = now.plus_millis(lifetime_ms);
            let state = HoldState::Taken { hits, made: now, deadline };
            // A commit that is late is recognized for as long again.
            let until = deadline.plus_millis(lifetime_ms);
            **record = HoldRecord { state: Some(state), until };
        }
        _ => {}
    }
}

/// Drops open holds whose time has passed. Where their estimates are kept, each is charged as it would have been when its
/// time passed.
pub(super) fn expire(posting: &Posting<'_>, accounts: &mut [AnyAccount]) {
    let abandoned = posting.charge.hold.and_then(|hold| hold.abandoned());
    let (Some(abandoned), Some(holds)) = (abandoned, in_flight(posting.hold, accounts)) else {
        return;
    };
    let expired = holds.expire(posting.terms.now);
    let account = posting.account.and_then(|index| accounts.get_mut(index));
    let (Abandoned::Keep, Some(account)) = (abandoned, account) else { return };
    let is_aligned = posting.charge.counter.limit.algorithm.is_aligned();
    for (deadline, hits) in expired {
        if !is_aligned || posting.terms.span.start <= deadline {
            account.write().charge(hits, None, &Terms { now: deadline, ..posting.terms });
        }
    }
}

/// Ends the oldest open hold, and the other holds of its take on counters of the call; not where another charge of the
/// call has ended one, as `ended_on` notes with the hits that they held.
fn end_oldest(
    posting: &Posting<'_>,
    postings: &[Posting<'_>],
    accounts: &mut [AnyAccount],
    ended_on: &mut Few<(usize, u64)>,
    ended: &mut Vec<HoldId>,
) -> Option<CommitOutcome> {
    let now = posting.terms.now;
    if let Some(account) = in_flight(posting.account, accounts) {
        return Some(match account.end_oldest(now) {
            Some(_) => CommitOutcome::Applied,
            None => CommitOutcome::Repeated,
        });
    }
    // Its hits are charged like any.
    let own = posting.hold.filter(|own| ended_on.iter().all(|(index, _)| index != own))?;
    let (oldest, hits) = in_flight(Some(own), accounts)?.end_oldest(now)?;
    ended.push(oldest);
    ended_on.push((own, hits));
    for index in postings.iter().filter_map(|other| other.hold) {
        if let Some(hits) = in_flight(Some(index), accounts).and_then(|set| set.end(oldest, now)) {
            ended_on.push((index, hits));
        }
    }
    None
}

fn commit(
    posting: &Posting<'_>,
    accounts: &mut [AnyAccount],
    hold: &HoldAction,
) -> Option<CommitOutcome> {
    let HoldAction::Commit { id, held, used, made, deadline } = *hold else { return None };
    let now = posting.terms.now;
    if deadline <= now || deadline > now.plus_millis(HoldPolicy::AHEAD_MS_MAX) {
        return Some(CommitOutcome::Late);
    }
    if let Some(account) = in_flight(posting.account, accounts) {
        return Some(match account.end(id, now) {
            Some(_) => CommitOutcome::Applied,
            None => CommitOutcome::Repeated,
        });
    }
    let record = record(posting.hold, accounts)?;
    if record.state.is_some() {
        return Some(CommitOutcome::Repeated);
    }
    *record = HoldRecord { state: Some(HoldState::Committed), until: deadline };
    settle(posting, accounts, (held, used, made));
    Some(CommitOutcome::Applied)
}

/// `None` if it is a take: the first call with its id, which does not end it. What the take held is written to `ended`.
fn commit_by_id(
    posting: &Posting<'_>,
    accounts: &mut [AnyAccount],
    hold: &HoldAction,
    ended: &mut u64,
) -> Option<CommitOutcome> {
    let HoldAction::ById { id, used, is_end, lifetime_ms } = *hold else { return None };
    let now = posting.terms.now;
    let record = record(posting.hold, accounts)?;
    if record.until <= now {
        *record = HoldRecord::default();
    }
    let (held, made, deadline) = match (record.state, posting.hits) {
        (Some(HoldState::Taken { hits, made, deadline }), _) => (hits, made, deadline),
        (Some(HoldState::Committed | HoldState::Closed { .. }), _) => {
            return Some(CommitOutcome::Repeated);
        }
        // The take was not seen, or is forgotten.
        (None, Hits::Charge(estimate)) if is_end => {
            record.until = now.plus_millis(lifetime_ms);
            record.state = Some(HoldState::Committed);
            if in_flight(posting.account, accounts).is_none() {
                settle(posting, accounts, (0, used.unwrap_or(estimate), now));
            }
            return Some(CommitOutcome::Applied);
        }
        (None, _) => return None,
    };
    record.state = Some(HoldState::Committed);
    // A call in flight has a place, whatever it uses.
    if in_flight(posting.account, accounts).is_none() {
        *ended = held;
    }
    if deadline <= now {
        return Some(CommitOutcome::Late);
    }
    if let Some(account) = in_flight(posting.account, accounts) {
        account.end(id, now);
    } else {
        settle(posting, accounts, (held, used.unwrap_or(held), made));
    }
    Some(CommitOutcome::Applied)
}

/// Replaces held hits by the true number: what was not used is given back to the window where it was charged, and what was
/// used beyond is charged in full now.
fn settle(
    posting: &Posting<'_>,
    accounts: &mut [AnyAccount],
    (held, used, made): (u64, u64, Timestamp),
) {
    let is_before_reset =
        record(posting.reset, accounts).is_some_and(|reset| reset.is_reset_since(made));
    let Some(account) = posting.account.and_then(|index| accounts.get_mut(index)) else { return };
    let terms = &posting.terms;
    // Another window may hold it: time has passed, or the clock was set back.
    let is_elsewhere = posting.charge.counter.limit.algorithm.is_aligned()
        && !(terms.span.start..terms.span.end).contains(&made);
    if used > held {
        account.write().charge(used - held, None, terms);
    } else if used < held && !is_elsewhere && !is_before_reset {
        account.write().give_back(held - used, held, made, None, terms);
    }
}

fn in_flight(index: Option<usize>, accounts: &mut [AnyAccount]) -> Option<&mut InFlight> {
    match accounts.get_mut(index?)? {
        AnyAccount::InFlight(account) => Some(account),
        _ => None,
    }
}

fn record(index: Option<usize>, accounts: &mut [AnyAccount]) -> Option<&mut HoldRecord> {
    match accounts.get_mut(index?)? {
        AnyAccount::HoldRecord(record) => Some(record),
        _ => None,
    }
}
