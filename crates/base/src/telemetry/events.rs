//! The last changes of state that an operator should know of, for the status page. Each is recorded beside its log line.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use serde::Serialize;

use crate::process::clock::unix_seconds;

const EVENTS_MAX: usize = 50;

/// An event that repeats within this time, in seconds, is one with a number: a breaker may open again and again.
const REPEATS_WITHIN: i64 = 60;

static EVENTS: Mutex<VecDeque<Event>> = Mutex::new(VecDeque::new());
static BREAKER_OPENINGS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    BreakerOpened,
    BreakerClosed,
    StoreLost,
    StoreBack,
    Failover,
    RulesLoaded,
    RulesRefused,
    ControlPlaneLost,
    Nack,
    DrainBegan,
    OverrideSet,
    OverrideUndone,
    OverrideEnded,
    CountersReset,
    CounterSet,
    LogFilterSet,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When it happened last, in Unix seconds.
    at: i64,
    kind: EventKind,
    text: String,
    /// How often it happened, each within a minute of the one before.
    times: u64,
}

/// Records an event. The text never holds anything of a call, only of what operators have sent.
pub fn happened(kind: EventKind, text: String) {
    if kind == EventKind::BreakerOpened {
        BREAKER_OPENINGS.fetch_add(1, Ordering::Relaxed);
    }
    record(&mut EVENTS.lock(), kind, text, unix_seconds());
}

pub fn last_events() -> Vec<Event> {
    EVENTS.lock().iter().rev().cloned().collect()
}

/// How often a breaker has opened since the start.
pub fn breaker_openings() -> u64 {
    BREAKER_OPENINGS.load(Ordering::Relaxed)
}

fn record(events: &mut VecDeque<Event>, kind: EventKind, text: String, at: i64) {
    let is_again = |event: &Event| {
        event.kind == kind && event.text == text && at.saturating_sub(event.at) < REPEATS_WITHIN
    };
    let last = events.iter().rposition(is_again).and_then(|index| events.remove(index));
    if events.len() >= EVENTS_MAX {
        events.pop_front();
    }
    let times = last.map_or(1, |last| last.times.saturating_add(1));
    events.push_back(Event { at, kind, text, times });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breaker_that_flaps_leaves_room_for_other_events() {
        let mut events = VecDeque::new();
        record(&mut events, EventKind::RulesLoaded, "version 1".to_owned(), 1);
        for at in 1..50 {
            record(&mut events, EventKind::BreakerOpened, "a:1".to_owned(), at);
            record(&mut events, EventKind::BreakerClosed, "a:1".to_owned(), at);
        }
        record(&mut events, EventKind::BreakerOpened, "a:1".to_owned(), 110);
        let seen: Vec<_> = events.iter().map(|event| (event.kind, event.times)).collect();
        use EventKind::{BreakerClosed, BreakerOpened, RulesLoaded};
        let expected =
            [(RulesLoaded, 1), (BreakerOpened, 49), (BreakerClosed, 49), (BreakerOpened, 1)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_oldest_event_goes() {
        let mut events = VecDeque::new();
        for number in 0..60 {
            record(&mut events, EventKind::RulesLoaded, format!("version {number}"), 1);
        }
        assert_eq!((events.len(), &*events[0].text), (EVENTS_MAX, "version 10"));
    }
}
