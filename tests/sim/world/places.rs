//! Places in flight: who has one for certain, and who may have one.

use std::collections::BTreeMap;

use super::PLACES_MAX;

/// How long a place is held without a commit, and how soon it is certainly free if no client got an answer, in milliseconds.
pub const HELD_MS: u64 = 10_000;
const FREE_MS: u64 = HELD_MS + 3000;

/// Within this time after its call, a place is released whose client got no answer, in milliseconds.
const RELEASED_MS: u64 = 4000;

#[derive(Debug)]
struct Place {
    counter: String,
    /// The number of jumps of the server's clock before it was asked for.
    jumps: usize,
    /// When it was asked for, by the server's clock like all times here.
    asked_ms: u64,
    /// From when on it was held for certain, and until when at least.
    held_ms: Option<(u64, u64)>,
    /// When it was free for certain.
    free_ms: Option<u64>,
}

/// All places that clients have asked for.
#[derive(Default)]
pub struct Places {
    all: Vec<Place>,
    /// When the server's clock jumped, by the new time.
    jumps_ms: Vec<u64>,
    /// When a call may last have begun whose place nothing releases.
    unreleased_ms: u64,
    broken: Option<String>,
}

impl Places {
    /// The server's clock has jumped, or its data is lost: what is held is held for certain no more.
    pub fn disturbed(&mut self, before_ms: u64, now_ms: u64) {
        self.jumps_ms.push(now_ms);
        for (_, until) in self.all.iter_mut().filter_map(|place| place.held_ms.as_mut()) {
            *until = before_ms.min(*until);
        }
    }

    /// Until now, what was to release a place may have been lost, or have come before the call that takes it.
    pub fn unreleased(&mut self, now_ms: u64) {
        self.unreleased_ms = now_ms;
    }

    /// A call asks for one. Returns its number.
    pub fn asked(&mut self, counter: &str, now_ms: u64) -> usize {
        let (counter, jumps) = (counter.to_owned(), self.jumps_ms.len());
        self.all.push(Place { counter, jumps, asked_ms: now_ms, held_ms: None, free_ms: None });
        self.all.len() - 1
    }

    /// The call was answered: it was admitted or denied by the store at this time, or got no answer of it.
    pub fn answered(&mut self, place: usize, admitted: bool, at_ms: Option<u64>, now_ms: u64) {
        let is_steady = self.all[place].jumps == self.jumps_ms.len();
        match at_ms {
            Some(at) if admitted => {
                self.all[place].held_ms = is_steady.then_some((at, at + HELD_MS));
                self.all[place].free_ms = Some(at + HELD_MS);
            }
            Some(_) => {
                self.all[place].free_ms = Some(self.all[place].asked_ms);
                self.check_denial(place);
            }
            None => self.all[place].free_ms = Some(now_ms + FREE_MS),
        }
    }

    /// A commit begins: from now on it may be free.
    pub fn may_leave(&mut self, place: usize, now_ms: u64) {
        if let Some((_, until)) = &mut self.all[place].held_ms {
            *until = now_ms.min(*until);
        }
    }

    /// The store has said that it is free.
    pub fn left(&mut self, place: usize, now_ms: u64) {
        self.all[place].free_ms = Some(now_ms.min(self.all[place].free_ms.unwrap_or(u64::MAX)));
    }

    /// A call that was denied found all places taken.
    fn check_denial(&mut self, denied: usize) {
        let Place { counter, asked_ms, .. } = &self.all[denied];
        if self.jumps_ms.iter().any(|jump| jump + FREE_MS + HELD_MS > *asked_ms) {
            return;
        }
        let may_be_held = |place: &&Place| {
            place.counter == *counter && place.free_ms.is_none_or(|free| free > *asked_ms)
        };
        let held = self.all.iter().filter(may_be_held).count();
        if held < PLACES_MAX {
            self.broken.get_or_insert(format!(
                "{counter} was denied at {asked_ms}, and at most {held} of {PLACES_MAX} places were taken"
            ));
        }
    }

    /// At the end, every call in flight on the server belongs to a client that got an answer.
    pub fn check_end(&mut self, counter: &str, in_flight: usize, now_ms: u64) {
        let may_be_held = |place: &&Place| {
            let asked_ms = place.asked_ms;
            let may_be_due = asked_ms <= self.unreleased_ms || asked_ms + RELEASED_MS > now_ms;
            let is_told = place.held_ms.is_some() || may_be_due;
            place.counter == counter && is_told && place.free_ms.is_none_or(|free| free > now_ms)
        };
        let most = self.all.iter().filter(may_be_held).count();
        if self.jumps_ms.is_empty() && in_flight > most {
            self.broken.get_or_insert(format!("{counter} has {in_flight} calls in flight, at most {most} of clients that were told"));
        }
    }

    /// The promise that was broken: there were never more than there are places.
    pub fn broken(&self) -> Option<String> {
        let mut changes: BTreeMap<(&str, usize), Vec<(u64, bool)>> = BTreeMap::new();
        for place in &self.all {
            if let Some((from, until)) = place.held_ms.filter(|(from, until)| from < until) {
                let changes = changes.entry((&place.counter, place.jumps)).or_default();
                changes.extend([(from, true), (until, false)]);
            }
        }
        let crowded = changes.into_iter().find_map(|((counter, _), mut changes)| {
            // Of what happens in one millisecond, they leave first.
            changes.sort_unstable();
            let mut held = 0_usize;
            changes.into_iter().find_map(|(at, enters)| {
                held = if enters { held + 1 } else { held - 1 };
                (held > PLACES_MAX).then(|| format!("{counter} holds {held} places at {at}"))
            })
        });
        self.broken.clone().or(crowded)
    }
}
