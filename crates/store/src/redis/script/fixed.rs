//! Calls on fixed windows, as `lua/fixed.lua` takes them: many in one run. Equal counters are named once,
//! equal calls are one item, and calls with equal hits, limits and windows share one group of arguments.

use redis::Cmd;
use tollkeeper_engine::{
    ledger::{Charge, Few, Fit, Tally, Verdict},
    request::Hits,
    rule::{Algorithm, Mode, WhenDenied},
    time::{Span, Timestamp},
};

use super::{ELSEWHERE, KeyDeclaration, ScriptVerdict, keys::KeyIndex, timestamp};

/// Maximum number of keys in one run, which keeps Redis busy for less than 0.3 ms. A byte holds a slot.
pub const KEYS_MAX: usize = 96;

#[derive(Debug, Default)]
pub struct FixedRun {
    keys: KeyIndex,
    /// Six bytes for each key.
    expiries: Vec<u8>,
    groups: Vec<Group>,
    calls: Vec<Position>,
    /// For each key, the group and the item of the last call that keeps the order. The script takes both in their order.
    last: Vec<(usize, usize)>,
}

/// Items that are judged alike. An item is a call, or several that are equal.
#[derive(Debug)]
struct Group {
    terms: Few<FixedTerms>,
    /// One for each charge of each item.
    slots: Vec<u8>,
    /// For each item, how many equal calls it is.
    calls: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FixedTerms {
    hits: u64,
    limit: u64,
    span: Span,
}

/// One call: which item of which group, and which of the item's equal calls, all counted from 0.
#[derive(Debug, Clone, Copy)]
struct Position {
    group: usize,
    item: usize,
    turn: u8,
}

/// Whether this script can decide this call: only enforced charges on fixed windows, on different
/// counters, each of at most its limit, that cost nothing if the call is denied.
pub fn accepts(charges: &[Charge]) -> bool {
    (1..=KEYS_MAX).contains(&charges.len())
        && charges.iter().all(is_plain)
        && charges.iter().enumerate().all(|(index, charge)| {
            charges.iter().skip(index + 1).all(|other| !other.counter.same_counter(&charge.counter))
        })
}

fn is_plain(charge: &Charge) -> bool {
    let limit = &*charge.counter.limit;
    limit.algorithm == Algorithm::FixedWindow
        && limit.mode == Mode::Enforced
        && limit.when_denied == WhenDenied::Free
        && charge.hold.is_none()
        && !charge.is_part
        && matches!(charge.hits, Hits::Charge(hits) if hits <= limit.requests_per_unit)
}

/// A count of keys, calls or charges, which [`KEYS_MAX`] bounds.
fn byte(count: usize) -> u8 {
    u8::try_from(count).expect("no more than KEYS_MAX")
}

impl FixedRun {
    /// Adds a call that [`accepts`] accepts, in the windows that hold `assumed_now`, on keys that begin
    /// with `prefix`. All calls together have at most [`KEYS_MAX`] charges.
    pub fn add(&mut self, charges: &[Charge], assumed_now: Timestamp, prefix: &str) {
        let (mut terms, mut slots, known_keys) = (Few::new(), Few::new(), self.last.len());
        for charge in charges {
            let limit = &*charge.counter.limit;
            let span = limit.window.at(assumed_now);
            let hits = charge.hits.charged();
            terms.push(FixedTerms { hits, limit: limit.requests_at(span, assumed_now), span });
            slots.push(self.slot(charge, span, prefix));
        }
        let keeps_order = charges.iter().any(|charge| charge.keeps_order);
        let (least_group, least_item) = if keeps_order { self.last_of(&slots) } else { (0, 0) };
        let mut groups = self.groups.iter().enumerate().skip(least_group);
        let known = groups.find(|(_, group)| group.terms == terms).map(|(index, _)| index);
        let group = known.unwrap_or_else(|| {
            self.groups.push(Group { terms, slots: Vec::new(), calls: Vec::new() });
            self.groups.len() - 1
        });
        if let Some(items) = self.groups.get_mut(group) {
            let least_item = match group {
                // No earlier call is equal to one on a new key.
                _ if self.last.len() > known_keys => items.calls.len(),
                _ if group == least_group => least_item,
                _ => 0,
            };
            let (item, turn) = items.add(&slots, least_item);
            self.calls.push(Position { group, item, turn });
            for slot in slots.iter().filter(|_| keeps_order) {
                if let Some(last) = self.last.get_mut(usize::from(*slot) - 1) {
                    *last = (group, item);
                }
            }
        }
    }

    /// The last group and item that a call on these keys may not come before.
    fn last_of(&self, slots: &[u8]) -> (usize, usize) {
        let last = slots.iter().filter_map(|slot| self.last.get(usize::from(*slot) - 1));
        last.max().copied().unwrap_or_default()
    }

    /// The command `verb` that runs the script: EVALSHA and its hash, or EVAL and its text.
    pub fn command(&self, verb: &str, script: &str, keys: KeyDeclaration) -> Cmd {
        let mut command = redis::cmd(verb);
        keys.write(command.arg(script), &[self.keys.as_slice()], |command| {
            command.arg(&self.expiries);
            for group in &self.groups {
                command.arg(group.layout());
                for FixedTerms { hits, limit, span } in &group.terms {
                    let [start, stop] = [span.start, span.end].map(Timestamp::as_millis);
                    command.arg(*hits).arg(*limit).arg(start).arg(stop);
                }
            }
        });
        command
    }

    /// The verdict on each call, in the order in which they were added, and Redis's time; `None`
    /// if it has another form.
    pub fn read(&self, reply: &[i64]) -> Option<(Timestamp, Vec<ScriptVerdict>)> {
        let [seconds, micros, rest @ ..] = reply else { return None };
        let mut rest = rest;
        let now = timestamp(*seconds, *micros)?;
        let mut remaining_by_group = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            remaining_by_group.push(rest.split_off(..group.calls.len() * group.terms.len())?);
        }
        let mut verdicts = Vec::with_capacity(self.calls.len());
        for Position { group, item, turn } in &self.calls {
            let (remaining, group) = (remaining_by_group.get(*group)?, self.groups.get(*group)?);
            let remaining = remaining.chunks(group.terms.len()).nth(*item)?;
            verdicts.push(group.verdict(remaining, *group.calls.get(*item)?, *turn, now)?);
        }
        rest.is_empty().then_some((now, verdicts))
    }

    /// The slot of a charge's key in KEYS.
    fn slot(&mut self, charge: &Charge, span: Span, prefix: &str) -> u8 {
        let mut key = String::with_capacity(prefix.len() + 96);
        key.push_str(prefix);
        charge.counter.write_key(&mut key, span.start);
        let (slot, known_keys) = (byte(self.keys.slot(key)), self.last.len());
        if usize::from(slot) > known_keys {
            let [_, _, expiry @ ..] = charge.counter.expiry(span.end).as_millis().to_be_bytes();
            self.expiries.extend(expiry);
            self.last.push((0, 0));
        }
        slot
    }
}

impl Group {
    /// The bytes that `lua/fixed.lua` draws.
    fn layout(&self) -> Vec<u8> {
        let charges = self.terms.len();
        let mut bytes = vec![byte(self.calls.len()), byte(charges)];
        for (slots, calls) in self.slots.chunks(charges).zip(&self.calls) {
            bytes.extend(slots);
            bytes.push(*calls);
        }
        bytes
    }

    /// Adds a call, to no item before `least_item`; returns its item, and how many equal calls came before it.
    fn add(&mut self, slots: &[u8], least_item: usize) -> (usize, u8) {
        let hits_max = self.terms.iter().map(|terms| terms.hits).max().unwrap_or(0);
        // The script adds the hits of all of them at once.
        let calls_max = Hits::MAX.checked_div(hits_max).unwrap_or(u64::MAX).min(u8::MAX.into());
        let items = self.slots.chunks(self.terms.len()).zip(&mut self.calls).enumerate();
        let mut items = items.skip(least_item);
        if let Some((item, (_, calls))) =
            items.find(|(_, (item, calls))| *item == slots && u64::from(**calls) < calls_max)
        {
            *calls += 1;
            return (item, *calls - 1);
        }
        self.slots.extend(slots);
        self.calls.push(1);
        (self.calls.len() - 1, 0)
    }

    /// The verdict on the `turn`-th of `calls` equal calls, by the remaining hits of their counters before the first.
    fn verdict(
        &self,
        remaining: &[i64],
        calls: u8,
        turn: u8,
        now: Timestamp,
    ) -> Option<ScriptVerdict> {
        if remaining.contains(&-1) {
            return Some(ScriptVerdict::Stale);
        }
        if remaining.contains(&ELSEWHERE) {
            return Some(ScriptVerdict::Elsewhere);
        }
        if remaining.contains(&-2) {
            let corrupt = remaining.iter().enumerate().filter(|(_, remaining)| **remaining == -2);
            return Some(ScriptVerdict::Corrupt(corrupt.map(|(charge, _)| charge).collect()));
        }
        if let Some(error) = remaining.first().copied().and_then(ScriptVerdict::from_error) {
            return Some(error);
        }
        let mut admitted = u64::from(calls);
        for (terms, remaining) in self.terms.iter().zip(remaining) {
            admitted = admitted.min(u64::try_from(*remaining).ok()? / terms.hits.max(1));
        }
        let turn = u64::from(turn);
        let is_admitted = turn < admitted;
        let at = Few::from_iter([now]);
        let mut verdict = Verdict { denied: !is_admitted, at, ..Verdict::default() };
        for (terms, remaining) in self.terms.iter().zip(remaining) {
            let remaining = u64::try_from(*remaining).ok()? - turn.min(admitted) * terms.hits;
            let fit = match remaining.checked_sub(terms.hits) {
                None => Fit::Over,
                Some(rest) => Fit::Fits { remaining: if is_admitted { rest } else { remaining } },
            };
            verdict.tallies.push(Tally::new(fit, now.until(terms.span.end)));
        }
        Some(ScriptVerdict::Decided(verdict))
    }
}
