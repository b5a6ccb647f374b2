//! Calls in flight: each occupies places until it is committed, or until its deadline. Also the holds without ids that
//! are open on a counter of another algorithm, see [`HoldBy::Counter`](crate::engine::hold::HoldBy::Counter).

use super::account::{Account, Terms};
use crate::engine::{hold_id::HoldId, time::Timestamp};

/// The calls in flight on one counter, by ascending deadline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InFlight {
    occupants: Vec<Occupant>,
    /// Their places, up to [`COUNT_MAX`](super::account::COUNT_MAX) each.
    occupied: u64,
}

/// A call in flight.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Occupant {
    /// From then on it occupies nothing.
    pub deadline: Timestamp,
    /// Identifies it.
    pub id: HoldId,
    /// Number of places, at least 1.
    pub hits: u64,
    /// The caller, if the limit remembers callers.
    pub caller: Option<Box<str>>,
}

impl InFlight {
    /// Drops the calls whose deadlines have passed. A deadline that is further ahead than a call may last was noted while
    /// the clock was ahead, and moves back.
    pub fn begin(&mut self, terms: &Terms) {
        self.expire(terms.now);
        let latest = terms.now.plus_millis(terms.window_ms);
        if self.occupants.last().is_some_and(|newest| latest < newest.deadline) {
            let first = self.occupants.partition_point(|occupant| occupant.deadline < latest);
            let ahead = self.occupants.get_mut(first..).unwrap_or_default();
            ahead.iter_mut().for_each(|occupant| occupant.deadline = latest);
            ahead.sort_unstable();
        }
    }

    /// Adds a call.
    pub fn occupy(&mut self, occupant: Occupant) {
        let at = self.occupants.partition_point(|known| *known < occupant);
        self.occupied = self.occupied.saturating_add(occupant.hits);
        self.occupants.insert(at, occupant);
    }

    /// Ends the call with this id. Returns whether it was in flight.
    pub fn end(&mut self, id: HoldId) -> bool {
        let known = self.occupants.len();
        self.occupants.retain(|occupant| occupant.id != id);
        let ended = self.occupants.len() < known;
        if ended {
            self.occupied = places(&self.occupants);
        }
        ended
    }

    /// Ends the call with the earliest deadline after `now`.
    pub fn end_oldest(&mut self, now: Timestamp) -> Option<HoldId> {
        let oldest = self.occupants.get(self.expired(now))?.id;
        self.end(oldest);
        Some(oldest)
    }

    /// Drops the calls whose deadlines have passed. Returns the deadlines.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Timestamp> {
        let expired = self.occupants.drain(..self.expired(now));
        let deadlines = expired.map(|occupant| {
            self.occupied = self.occupied.saturating_sub(occupant.hits);
            occupant.deadline
        });
        deadlines.collect()
    }

    /// The calls in flight at `now`.
    pub fn occupants(&self, now: Timestamp) -> impl Iterator<Item = &Occupant> {
        self.occupants.iter().skip(self.expired(now))
    }

    /// About the bytes of its calls.
    pub(super) fn heap_bytes(&self) -> usize {
        let callers = self.occupants.iter().filter_map(|occupant| occupant.caller.as_ref());
        self.occupants.capacity() * size_of::<Occupant>()
            + callers.map(|caller| caller.len()).sum::<usize>()
    }

    /// Number of calls whose deadlines have passed.
    fn expired(&self, now: Timestamp) -> usize {
        self.occupants.partition_point(|occupant| occupant.deadline <= now)
    }
}

/// The places of these calls.
fn places<'call>(occupants: impl IntoIterator<Item = &'call Occupant>) -> u64 {
    occupants.into_iter().fold(0, |sum, occupant| sum.saturating_add(occupant.hits))
}

impl Account for InFlight {
    fn refund(&mut self, hits: u64, terms: &Terms) {
        let mut owed = hits;
        self.begin(terms);
        while let Some(newest) = self.occupants.last_mut().filter(|_| owed > 0) {
            let ended = owed.min(newest.hits);
            (newest.hits, owed) = (newest.hits - ended, owed - ended);
            self.occupied = self.occupied.saturating_sub(ended);
            if newest.hits == 0 {
                self.occupants.pop();
            }
        }
    }

    /// A reservation is given back by its id, see [`end`](Self::end).
    fn give_back(&mut self, _: u64, _: u64, _: Timestamp, _: Option<&str>, _: &Terms) {}

    fn fits(&self, hits: u64, terms: &Terms) -> bool {
        self.used(terms).saturating_add(hits) <= terms.requests_per_unit
    }

    /// A call without a hold of its own occupies its places for the time of the limit's holds.
    fn charge(&mut self, hits: u64, caller: Option<&str>, terms: &Terms) {
        let deadline = terms.now.plus_millis(terms.window_ms);
        let (id, caller) = (HoldId::default(), caller.map(Into::into));
        self.occupy(Occupant { deadline, id, hits, caller });
    }

    /// A window after the last deadline: as long as a hold that was abandoned may have to be charged.
    fn keep_until(&self, terms: &Terms) -> Timestamp {
        self.ends(terms).plus_millis(terms.window_ms)
    }

    fn is_unused(&self) -> bool {
        self.occupants.is_empty()
    }

    fn used(&self, terms: &Terms) -> u64 {
        let expired = self.occupants.iter().take(self.expired(terms.now));
        self.occupied.saturating_sub(places(expired))
    }

    fn remaining(&self, terms: &Terms) -> u64 {
        terms.requests_per_unit.saturating_sub(self.used(terms))
    }

    fn ends(&self, terms: &Terms) -> Timestamp {
        self.occupants.last().map_or(terms.now, |last| last.deadline.max(terms.now))
    }

    /// The deadline by which enough calls have ended.
    fn admits_at(&self, hits: u64, terms: &Terms) -> Timestamp {
        let limit = terms.requests_per_unit;
        let mut surplus = self.used(terms).saturating_add(hits).saturating_sub(limit);
        for occupant in self.occupants(terms.now).filter(|_| hits <= limit) {
            surplus = surplus.saturating_sub(occupant.hits);
            if surplus == 0 {
                return occupant.deadline;
            }
        }
        self.ends(terms)
    }
}
