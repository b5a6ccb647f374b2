//! Calls in flight: each occupies places until it is committed, or until its deadline. Also the holds without ids that
//! are open on a counter of another algorithm, see [`HoldBy::Counter`](crate::hold::HoldBy::Counter): their hits are
//! what they hold.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    ops::Bound,
};

use super::account::{Account, Terms};
use crate::{hold_id::HoldId, time::Timestamp};

/// The most calls that one refund ends, or among which a denied call looks for the one that makes room: as in the
/// script, where each costs time.
const CALLS_MAX: usize = 100;

/// A deadline, and the id of a call. Of equal deadlines the larger id comes first, as in the script.
type Ending = (Timestamp, Reverse<HoldId>);

/// The calls in flight on one counter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InFlight {
    occupants: BTreeMap<Ending, Occupant>,
    deadlines: HashMap<HoldId, Timestamp>,
    /// Their places.
    occupied: u64,
    /// The length of all callers.
    caller_bytes: usize,
}

/// A call in flight. No other call changes its deadline or its places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// Number of places, at least 1.
    pub hits: u64,
    /// How long it may last, in milliseconds.
    pub lifetime_ms: u64,
    /// The caller, if the limit remembers callers.
    pub caller: Option<Box<str>>,
}

impl InFlight {
    /// If the newest call began after `now`, the clock was ahead: such calls begin now.
    pub fn set_back(&mut self, now: Timestamp) {
        let is_ahead =
            |(deadline, _): &Ending, call: &Occupant| *deadline > now.plus_millis(call.lifetime_ms);
        if !self.occupants.last_key_value().is_some_and(|(ending, call)| is_ahead(ending, call)) {
            return;
        }
        let ahead = self.occupants.extract_if(.., |ending, call| is_ahead(ending, call));
        let ahead: Vec<_> = ahead.collect();
        for ((_, id), call) in ahead {
            let deadline = now.plus_millis(call.lifetime_ms);
            self.deadlines.insert(id.0, deadline);
            self.occupants.insert((deadline, id), call);
        }
    }

    /// Adds a call that begins now. One with this id that is in flight becomes a part of it.
    pub fn occupy(&mut self, id: HoldId, mut call: Occupant, now: Timestamp) {
        let deadline = now.plus_millis(call.lifetime_ms);
        call.hits = call.hits.saturating_add(self.end(id, now).unwrap_or(0));
        self.occupied = self.occupied.saturating_add(call.hits);
        self.caller_bytes += call.caller_bytes();
        self.deadlines.insert(id, deadline);
        self.occupants.insert((deadline, Reverse(id)), call);
    }

    /// Ends the call with this id. Returns its places, if it is in flight.
    pub fn end(&mut self, id: HoldId, now: Timestamp) -> Option<u64> {
        let deadline = *self.deadlines.get(&id).filter(|deadline| now < **deadline)?;
        self.remove((deadline, Reverse(id)))
    }

    /// Ends the call with the earliest deadline after `now`. Returns its hits, too.
    pub fn end_oldest(&mut self, now: Timestamp) -> Option<(HoldId, u64)> {
        let (ending, _) = self.calls(now).next()?;
        Some((ending.1.0, self.remove(ending)?))
    }

    /// Drops the calls whose deadlines have passed. Returns the deadlines and the places, in their order.
    pub fn expire(&mut self, now: Timestamp) -> Vec<(Timestamp, u64)> {
        let mut expired = Vec::new();
        while let Some((&ending, _)) = self.occupants.first_key_value()
            && ending.0 <= now
        {
            expired.extend(self.remove(ending).map(|hits| (ending.0, hits)));
        }
        expired
    }

    /// The calls in flight at `now`, the oldest first.
    pub fn calls(&self, now: Timestamp) -> impl DoubleEndedIterator<Item = (Ending, &Occupant)> {
        let last_expired = (now, Reverse(HoldId::default()));
        let calls = self.occupants.range((Bound::Excluded(last_expired), Bound::Unbounded));
        calls.map(|(ending, call)| (*ending, call))
    }

    /// About the bytes of its calls.
    pub(super) fn heap_bytes(&self) -> usize {
        let call = size_of::<(Ending, Occupant)>() + size_of::<(HoldId, Timestamp)>();
        // Both tables are filled to two thirds.
        self.occupants.len() * call * 3 / 2 + self.caller_bytes
    }

    /// Number of calls that have not been dropped.
    pub fn count(&self) -> u64 {
        u64::try_from(self.occupants.len()).unwrap_or(u64::MAX)
    }

    fn remove(&mut self, ending: Ending) -> Option<u64> {
        let call = self.occupants.remove(&ending)?;
        self.deadlines.remove(&ending.1.0);
        self.occupied = self.occupied.saturating_sub(call.hits);
        self.caller_bytes = self.caller_bytes.saturating_sub(call.caller_bytes());
        Some(call.hits)
    }
}

impl Occupant {
    fn caller_bytes(&self) -> usize {
        self.caller.as_ref().map_or(0, |caller| caller.len())
    }
}

impl Account for InFlight {
    fn set_back(&mut self, terms: &Terms) {
        Self::set_back(self, terms.now);
    }

    fn refund(&mut self, hits: u64, terms: &Terms) {
        let mut owed = hits;
        let newest: Vec<Ending> =
            self.calls(terms.now).rev().map(|(ending, _)| ending).take(CALLS_MAX).collect();
        for ending in newest {
            match self.occupants.get_mut(&ending) {
                Some(call) if owed < call.hits => {
                    call.hits -= owed;
                    self.occupied = self.occupied.saturating_sub(owed);
                    return;
                }
                _ => owed -= self.remove(ending).unwrap_or(0),
            }
        }
    }

    /// A reservation is given back by its id, see [`end`](Self::end).
    fn give_back(&mut self, _: u64, _: u64, _: Timestamp, _: Option<&str>, _: &Terms) {}

    /// A call without a hold of its own occupies its places for the time of the limit's holds.
    fn charge(&mut self, hits: u64, caller: Option<&str>, terms: &Terms) {
        let call = Occupant { hits, lifetime_ms: terms.window_ms, caller: caller.map(Into::into) };
        self.occupy(HoldId::default(), call, terms.now);
    }

    /// As long after the last deadline as a hold that was abandoned may have to be charged.
    fn keep_until(&self, terms: &Terms) -> Timestamp {
        self.ends(terms).plus_millis(terms.counts_ms)
    }

    fn is_unused(&self) -> bool {
        self.occupants.is_empty()
    }

    fn used(&self, terms: &Terms) -> u64 {
        let expired = self.occupants.iter().take_while(|((deadline, _), _)| *deadline <= terms.now);
        expired.fold(self.occupied, |used, (_, call)| used.saturating_sub(call.hits))
    }

    fn ends(&self, terms: &Terms) -> Timestamp {
        let Terms { now, .. } = *terms;
        // Where the newest call has just ended, the next one may be from a time at which the clock was ahead.
        let ends = |((last, _), call): (&Ending, &Occupant)| {
            (*last).min(now.plus_millis(call.lifetime_ms)).max(now)
        };
        self.occupants.last_key_value().map_or(now, ends)
    }

    /// The deadline by which enough calls have ended.
    fn admits_at(&self, hits: u64, terms: &Terms) -> Timestamp {
        let (limit, ends) = (terms.requests_per_unit, self.ends(terms));
        let mut surplus = self.used(terms).saturating_add(hits).saturating_sub(limit);
        for ((deadline, _), call) in self.calls(terms.now).take(CALLS_MAX).filter(|_| hits <= limit)
        {
            surplus = surplus.saturating_sub(call.hits);
            if surplus == 0 {
                return deadline.min(ends);
            }
        }
        ends
    }
}
