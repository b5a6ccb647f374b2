//! Bounds the entries about refused attempts, so that nobody fills the log and the audit: further ones are counted, and
//! the count is an entry after a minute.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// How long attempts are counted for one entry.
const WINDOW: Duration = Duration::from_secs(60);

/// The most entries in a window about a client without valid credentials.
const OF_STRANGER: u32 = 1;

/// The most entries in a window about a client with valid credentials.
const OF_CLIENT: u32 = 60;

/// At this number of clients, further ones without valid credentials are counted together.
const STRANGERS_MAX: usize = 20;

/// The name of clients that are counted together.
const OTHERS: &str = "others";

/// The refused attempts of this window, by client.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<String, CountedAttempts>>);

#[derive(Debug)]
struct CountedAttempts {
    since: Instant,
    written: u32,
    counted: u64,
}

impl Refusals {
    /// Whether an attempt gets an entry of its own; else it is counted.
    pub(super) fn is_written(&self, who: &str, is_stranger: bool, now: Instant) -> bool {
        let mut windows = self.0.lock();
        let is_known = !is_stranger || windows.contains_key(who) || windows.len() < STRANGERS_MAX;
        let who = if is_known { who } else { OTHERS };
        let new = CountedAttempts { since: now, written: 0, counted: 0 };
        let window = windows.entry(who.to_owned()).or_insert(new);
        let most = if is_stranger { OF_STRANGER } else { OF_CLIENT };
        let is_written = window.written < most;
        if is_written {
            window.written += 1;
        } else {
            window.counted += 1;
        }
        is_written
    }

    /// The clients of which attempts were counted in a window that has ended, with their number. This is the first entry of
    /// their next window.
    pub(super) fn counted(&self, now: Instant) -> Vec<(String, u64)> {
        let mut counted = Vec::new();
        self.0.lock().retain(|who, window| {
            if now.saturating_duration_since(window.since) < WINDOW {
                return true;
            }
            let count = window.counted;
            *window = CountedAttempts { since: now, written: 1, counted: 0 };
            if count > 0 {
                counted.push((who.clone(), count));
            }
            count > 0
        });
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_without_credentials_has_one_entry_a_minute_and_its_further_attempts_are_counted() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let written = |seconds| refusals.is_written("10.0.0.1", true, at(seconds));
        assert_eq!([0, 1, 30].map(written), [true, false, false]);
        assert_eq!(refusals.counted(at(59)), []);
        assert_eq!(refusals.counted(at(60)), [("10.0.0.1".to_owned(), 2)]);
        assert_eq!([61, 119].map(written), [false, false], "the count was this minute's entry");
        assert_eq!(refusals.counted(at(120)), [("10.0.0.1".to_owned(), 2)]);
        assert_eq!(refusals.counted(at(180)), []);
        assert!(written(181));
    }

    #[test]
    fn invented_addresses_share_one_entry_a_minute() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let written = |client: u32| refusals.is_written(&client.to_string(), true, now);
        assert_eq!((0..1000).filter(|client| written(*client)).count(), STRANGERS_MAX + 1);
        let counted = refusals.counted(now + WINDOW);
        assert_eq!(
            counted,
            [(OTHERS.to_owned(), 1000 - u64::try_from(STRANGERS_MAX).unwrap() - 1)]
        );
    }

    #[test]
    fn a_client_with_credentials_has_an_entry_for_each_attempt_up_to_a_bound() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let written = (0..100).filter(|_| refusals.is_written("alice", false, now)).count();
        assert_eq!(written, 60);
        assert_eq!(refusals.counted(now + WINDOW), [("alice".to_owned(), 40)]);
    }
}
