//! Calls on fixed windows, as `lua/fixed.lua` takes them: many in one run. Equal counters are named
//! once, equal calls are one item, and what their limits say is written once for all that are alike.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;
use redis::Cmd;

use super::{Answer, Question, timestamp};
use crate::engine::{
    ledger::{Charge, Tally, Verdict},
    request::Hits,
    rule::{Algorithm, Mode, WhenDenied},
    time::{Span, Timestamp},
};

/// The most keys of one run. It keeps Redis for less than 0.3 ms, and a byte names each of them.
pub const KEYS_MAX: usize = 96;

/// Calls that share one run.
#[derive(Debug, Default)]
pub struct Run {
    keys: Vec<String>,
    /// Where each key stands in KEYS, counted from 1 as Lua does, by the key's hash.
    places: HashTable<u8>,
    hasher: RandomState,
    /// Six bytes for each key.
    expiries: Vec<u8>,
    groups: Vec<Group>,
    calls: Vec<Turn>,
}

/// Items that are judged alike. An item is a call, or several that are equal.
#[derive(Debug)]
struct Group {
    terms: Vec<Terms>,
    /// One for each charge of each item.
    places: Vec<u8>,
    /// For each item how many calls it stands for.
    times: Vec<u8>,
}

/// What a charge is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Terms {
    hits: u64,
    limit: u32,
    span: Span,
}

/// One call's place: the how-many-th of an item's equal calls, counted from 0.
#[derive(Debug, Clone, Copy)]
struct Turn {
    group: usize,
    item: usize,
    turn: u8,
}

/// Whether these scripts can decide this call.
pub fn takes(charges: &[Charge]) -> bool {
    let plain = |charge: &Charge| {
        let limit = &*charge.counter.limit;
        limit.algorithm == Algorithm::FixedWindow
            && limit.mode == Mode::Enforced
            && limit.when_denied == WhenDenied::Free
            && matches!(charge.hits, Hits::Take(hits) if hits <= u64::from(limit.requests_per_unit))
    };
    let alone = |(number, charge): (usize, &Charge)| {
        let mut others = charges.iter().skip(number + 1);
        others.all(|other| !other.counter.meets(&charge.counter))
    };
    (1..=KEYS_MAX).contains(&charges.len())
        && charges.iter().all(plain)
        && charges.iter().enumerate().all(alone)
}

impl Run {
    /// Adds a call that [`takes`] has let in, in the windows of `stamp`, on keys that begin with
    /// `prefix`.
    pub fn add(&mut self, charges: &[Charge], stamp: Timestamp, prefix: &str) {
        let terms = |charge: &Charge| Terms {
            hits: if let Hits::Take(hits) = charge.hits { hits } else { 0 },
            limit: charge.counter.limit.requests_per_unit,
            span: charge.counter.limit.window.at(stamp),
        };
        let terms: Vec<Terms> = charges.iter().map(terms).collect();
        let placed = charges.iter().zip(&terms);
        let places: Vec<u8> =
            placed.map(|(charge, terms)| self.place(charge, terms.span, prefix)).collect();
        let known = self.groups.iter().position(|group| group.terms == terms);
        let group = known.unwrap_or_else(|| {
            self.groups.push(Group { terms, places: Vec::new(), times: Vec::new() });
            self.groups.len() - 1
        });
        if let Some(it) = self.groups.get_mut(group) {
            let (item, turn) = it.add(&places);
            self.calls.push(Turn { group, item, turn });
        }
    }

    /// The place of a charge's key.
    fn place(&mut self, charge: &Charge, span: Span, prefix: &str) -> u8 {
        let mut key = String::with_capacity(prefix.len() + 96);
        key.push_str(prefix);
        charge.counter.write_key(&mut key, span.start);
        let (keys, hasher) = (&self.keys, &self.hasher);
        let key_at = |place: &u8| keys.get(usize::from(*place) - 1);
        let is_same = |place: &u8| key_at(place) == Some(&key);
        let hash = hasher.hash_one(&key);
        if let Some(place) = self.places.find(hash, is_same) {
            return *place;
        }
        let place = u8::try_from(keys.len() + 1).expect("no more than KEYS_MAX");
        self.places
            .insert_unique(hash, place, |it| key_at(it).map_or(0, |key| hasher.hash_one(key)));
        let [_, _, expiry @ ..] = charge.counter.expiry(span.end).as_millis().to_be_bytes();
        self.expiries.extend(expiry);
        self.keys.push(key);
        place
    }
}

impl Question for Run {
    fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.expiries);
        for group in &self.groups {
            command.arg(group.items());
            for Terms { hits, limit, span } in &group.terms {
                let [start, stop] = [span.start, span.end].map(Timestamp::as_millis);
                command.arg(*hits).arg(*limit).arg(start).arg(stop);
            }
        }
        command
    }

    fn read(&self, reply: &[i64]) -> Option<(Timestamp, Vec<Answer>)> {
        let [seconds, micros, left @ ..] = reply else { return None };
        let mut left = left;
        let now = timestamp(*seconds, *micros)?;
        let mut told = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            told.push(left.split_off(..group.times.len() * group.terms.len())?);
        }
        let answer = |Turn { group, item, turn }: &Turn| {
            let (of_group, group) = (told.get(*group)?, self.groups.get(*group)?);
            let left = of_group.chunks(group.terms.len()).nth(*item)?;
            group.answer(left, *group.times.get(*item)?, *turn, now)
        };
        let answers = self.calls.iter().map(answer).collect::<Option<_>>()?;
        left.is_empty().then_some((now, answers))
    }
}

impl Group {
    /// The bytes that say how many items there are, of how many charges, and which.
    fn items(&self) -> Vec<u8> {
        let charges = self.terms.len();
        let small = |count| u8::try_from(count).expect("no more than KEYS_MAX");
        let mut bytes = vec![small(self.times.len()), small(charges)];
        for (places, times) in self.places.chunks(charges).zip(&self.times) {
            bytes.extend(places);
            bytes.push(*times);
        }
        bytes
    }

    /// Adds a call; tells its item, and how many equal ones came before it.
    fn add(&mut self, places: &[u8]) -> (usize, u8) {
        let mut items = self.places.chunks(self.terms.len()).zip(&mut self.times);
        let equal = items.position(|(item, times)| item == places && *times < u8::MAX);
        if let Some((item, times)) = equal.and_then(|item| Some((item, self.times.get_mut(item)?)))
        {
            *times += 1;
            return (item, *times - 1);
        }
        self.places.extend(places);
        self.times.push(1);
        (self.times.len() - 1, 0)
    }

    /// What becomes of one of equal calls, from what its counters had left before the first of them.
    fn answer(&self, left: &[i64], times: u8, turn: u8, now: Timestamp) -> Option<Answer> {
        if left.contains(&-1) {
            return Some(Answer::Stale);
        }
        if left.contains(&-2) {
            let at_fault = left.iter().zip(0..).filter(|(left, _)| **left == -2);
            return Some(Answer::Unreadable(at_fault.map(|(_, charge)| charge).collect()));
        }
        let left: Vec<u64> =
            left.iter().map(|left| u64::try_from(*left).ok()).collect::<Option<_>>()?;
        let fit = self.terms.iter().zip(&left).map(|(terms, left)| left / terms.hits.max(1));
        let admitted = fit.min().unwrap_or(0).min(u64::from(times));
        let (turn, is_admitted) = (u64::from(turn), u64::from(turn) < admitted);
        let tally = |(terms, left): (&Terms, &u64)| {
            let left = left - turn.min(admitted) * terms.hits;
            let verdict = match left.checked_sub(terms.hits) {
                None => Verdict::Over,
                Some(rest) => {
                    let left = if is_admitted { rest } else { left };
                    Verdict::Fits { remaining: u32::try_from(left).unwrap_or(u32::MAX) }
                }
            };
            Tally { verdict, reset: now.until(terms.span.end) }
        };
        Some(Answer::Judged(self.terms.iter().zip(&left).map(tally).collect()))
    }
}
