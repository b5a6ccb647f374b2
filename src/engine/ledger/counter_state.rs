//! The state of a counter, as people read it, and what the next call would get by it.

use std::time::Duration;

use super::{
    charge::{Charge, asked, refunded},
    tally::{Fit, Tally},
};
use crate::engine::algorithm::{AnyAccount, account::Terms, sliding_log::Remembered};

/// The state of one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterState {
    /// Hits that count, rounded up.
    pub used: u64,
    /// Hits of the open holds that no id names, which `used` does not contain.
    pub held: u64,
    /// Number of these holds.
    pub open_holds: u64,
    /// Number of hits that would pass.
    pub remaining: u64,
    /// The time until the window ends, or until no hit counts any more.
    pub reset: Duration,
    /// The hits in a log, the oldest first.
    pub remembered: Vec<Remembered>,
}

impl CounterState {
    /// The state of `account`.
    pub fn of(account: &AnyAccount, terms: &Terms) -> Self {
        let remembered = match account {
            AnyAccount::SlidingLog(log) => log.remembered(terms).cloned().collect(),
            _ => Vec::new(),
        };
        let account = account.read();
        Self {
            used: account.used(terms),
            held: 0,
            open_holds: 0,
            remaining: account.remaining(terms),
            reset: terms.now.until(account.ends(terms)),
            remembered,
        }
    }
}

impl CounterState {
    /// The same counter with open holds that no id names, of `estimate` hits each.
    #[must_use]
    pub fn with_open_holds(self, open_holds: u64, estimate: u64) -> Self {
        let held = open_holds.saturating_mul(estimate);
        Self { held, open_holds, remaining: self.remaining.saturating_sub(held), ..self }
    }
}

/// The tallies that these charges would get on counters in these states, refunds first. The fits are
/// exact; each reset is the reset of the counter.
pub fn foresee(charges: &[Charge], states: &[CounterState]) -> Vec<Tally> {
    let mut tallies = Vec::with_capacity(charges.len());
    for (charge, state) in charges.iter().zip(states) {
        let remaining = remaining_after_refunds(charge, charges, state);
        let fit =
            if asked(charge, charges) <= remaining { Fit::Fits { remaining } } else { Fit::Over };
        tallies.push(Tally { fit, reset: state.reset });
    }
    tallies
}

fn remaining_after_refunds(charge: &Charge, charges: &[Charge], state: &CounterState) -> u64 {
    match refunded(charges, &charge.counter) {
        // More exact than capacity less used hits, which are rounded up.
        0 => state.remaining,
        hits => {
            let used = state.used.saturating_sub(hits);
            charge.counter.limit.capacity().saturating_sub(used).saturating_sub(state.held)
        }
    }
}
