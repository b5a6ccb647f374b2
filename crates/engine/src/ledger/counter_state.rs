//! The state of a counter, as people read it, and what the next call would get by it.

use std::time::Duration;

use super::{
    HoldAction, Posting,
    charge::{Asked, Charge, refunded},
    holds,
    tally::{Fit, Tally},
};
use crate::{
    algorithm::{
        AnyAccount,
        account::{Account as _, Terms},
        in_flight::Occupant,
        sliding_log::Remembered,
    },
    time::Timestamp,
};

/// The state of one counter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CounterState {
    /// Hits that count, rounded up.
    pub used: u64,
    /// Number of hits that would pass.
    pub remaining: u64,
    /// Hits that open holds without ids hold beside the used ones; see
    /// [`HoldBy::Counter`](crate::hold::HoldBy::Counter).
    pub held: u64,
    /// Number of open holds without ids, or of places that calls in flight occupy.
    pub open_holds: u64,
    /// Of the used hits, those that this replica has leased and not spent; see [`Lease`](crate::rule::Lease).
    pub credit: u64,
    /// Whether it is closed, since a call did not fit; see [`Limit::ban_ms`](crate::rule::Limit::ban_ms).
    pub closed: bool,
    /// The time until the window ends, or until no hit counts any more; of one that is closed, until it opens.
    pub reset: Duration,
    /// The newest hits in a log, the oldest of them first; or the calls in flight whose deadlines are next.
    pub remembered: Vec<Remembered>,
}

impl CounterState {
    /// The most hits or calls that are [`remembered`](Self::remembered); a store reads no more of them.
    pub const REMEMBERED_MAX: usize = 500;

    /// The state of `account`.
    pub fn of(account: &AnyAccount, terms: &Terms) -> Self {
        let remembered = match account {
            AnyAccount::SlidingLog(log) => {
                log.remembered(terms, Self::REMEMBERED_MAX).cloned().collect()
            }
            AnyAccount::InFlight(calls) => calls
                .calls(terms.now)
                .take(Self::REMEMBERED_MAX)
                .map(|((at, _), call)| remembered(at, call))
                .collect(),
            _ => Vec::new(),
        };
        let is_in_flight = matches!(account, AnyAccount::InFlight(_));
        let account = account.read();
        let open_holds = if is_in_flight { account.used(terms) } else { 0 };
        Self {
            used: account.used(terms),
            remaining: account.remaining(terms),
            held: 0,
            open_holds,
            credit: 0,
            closed: false,
            reset: terms.now.until(account.ends(terms)),
            remembered,
        }
    }

    /// The state of the counter of a [reading](Charge::reading), after holds have expired whose time has passed.
    pub fn read(reading: &Posting<'_>, accounts: &mut [AnyAccount]) -> Option<Self> {
        holds::expire(reading, accounts);
        let terms = &reading.terms;
        let state = Self::of(accounts.get(reading.account?)?, terms);
        if let Some(until) = holds::closed_until(reading, accounts) {
            let reset = terms.now.until(until);
            return Some(Self { closed: true, remaining: 0, reset, ..state });
        }
        let Some(AnyAccount::InFlight(open)) = reading.hold.and_then(|index| accounts.get(index))
        else {
            return Some(state);
        };
        let (held, open_holds) = (open.used(terms), open.count());
        let remaining = state.remaining.saturating_sub(held);
        Some(Self { remaining, held, open_holds, ..state })
    }
}

fn remembered(at: Timestamp, Occupant { hits, caller, .. }: &Occupant) -> Remembered {
    Remembered { at, hits: *hits, caller: caller.clone() }
}

/// The tallies that these charges would get on counters in these states, refunds first. The fits are
/// exact; each reset is the reset of the counter.
pub fn foresee(charges: &[Charge], states: &[CounterState]) -> Vec<Tally> {
    let (asked, mut tallies) = (Asked::by(charges), Vec::with_capacity(charges.len()));
    for (charge, state) in charges.iter().zip(states) {
        let remaining = remaining_after_refunds(charge, charges, state);
        let asked = asked.of(charge).saturating_add(estimated(charge, charges));
        let remaining = remaining.checked_sub(asked);
        let fit = remaining.map_or(Fit::Over, |remaining| Fit::Fits { remaining });
        tallies.push(Tally::new(fit, state.reset));
    }
    tallies
}

/// The estimates of the holds without ids that the call opens on the counter of a charge that opens one.
fn estimated(charge: &Charge, charges: &[Charge]) -> u64 {
    let estimate = |other: &Charge| match other.hold {
        Some(HoldAction::Open { estimate, .. }) if other.counter.same_counter(&charge.counter) => {
            estimate
        }
        _ => 0,
    };
    match charge.hold {
        Some(HoldAction::Open { .. }) => charges.iter().map(estimate).fold(0, u64::saturating_add),
        _ => 0,
    }
}

fn remaining_after_refunds(charge: &Charge, charges: &[Charge], state: &CounterState) -> u64 {
    match refunded(charges, &charge.counter) {
        // More exact than capacity less used hits, which are rounded up.
        0 => state.remaining,
        _ if state.closed => 0,
        hits => {
            let used = state.used.saturating_sub(hits);
            charge.counter.limit.capacity().saturating_sub(used).saturating_sub(state.held)
        }
    }
}
