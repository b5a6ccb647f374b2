//! Bounds the entries about refused attempts, so that nobody fills the log and the audit: further ones are counted, and
//! the count is an entry after a minute.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::text::named::named;

pub(super) const WINDOW: Duration = Duration::from_secs(60);

/// The most entries in a window about a client and a kind, if the client has shown valid credentials or needs none.
const OF_CLIENT: u32 = 60;

/// At this number of clients and kinds, further strangers are counted together, and at the other, further clients.
const STRANGERS_MAX: usize = 20;
const CLIENTS_MAX: usize = 1000;

/// The name of clients that are counted together.
const OTHERS: &str = "others";

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum RefusalKind {
        Unauthorized = "unauthorized",
        /// A web page, or a host name that anyone may have chosen.
        CrossSite = "cross-site",
        /// The client may not do this.
        Forbidden = "forbidden",
        Invalid = "invalid",
        /// The service could not do it.
        Failed = "failed",
    }
}

impl RefusalKind {
    /// Whether anyone may have sent the request.
    pub fn is_of_stranger(self) -> bool {
        matches!(self, Self::Unauthorized | Self::CrossSite)
    }
}

/// The refused attempts of this window, by client and kind.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<(String, RefusalKind), CountedAttempts>>);

#[derive(Debug)]
struct CountedAttempts {
    since: Instant,
    written: u32,
    counted: u64,
}

impl Refusals {
    /// Whether an attempt gets an entry of its own; else it is counted.
    pub(super) fn is_written(&self, who: &str, kind: RefusalKind, now: Instant) -> bool {
        let (most, clients_max) =
            if kind.is_of_stranger() { (1, STRANGERS_MAX) } else { (OF_CLIENT, CLIENTS_MAX) };
        let (mut windows, mut key) = (self.0.lock(), (who.to_owned(), kind));
        if windows.len() >= clients_max && !windows.contains_key(&key) {
            key.0 = OTHERS.to_owned();
        }
        let new = CountedAttempts { since: now, written: 0, counted: 0 };
        let window = windows.entry(key).or_insert(new);
        let is_written = window.written < most;
        if is_written {
            window.written += 1;
        } else {
            window.counted += 1;
        }
        is_written
    }

    /// The clients and kinds of which attempts were counted in a window that has ended, with their number. This is the
    /// first entry of their next window.
    pub(super) fn counted(&self, now: Instant) -> Vec<((String, RefusalKind), u64)> {
        let mut counted = Vec::new();
        self.0.lock().retain(|key, window| {
            if now.saturating_duration_since(window.since) < WINDOW {
                return true;
            }
            let count = window.counted;
            *window = CountedAttempts { since: now, written: 1, counted: 0 };
            if count > 0 {
                counted.push((key.clone(), count));
            }
            count > 0
        });
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::{
        RefusalKind::{CrossSite, Invalid, Unauthorized},
        *,
    };

    #[test]
    fn a_stranger_has_one_entry_a_minute_and_kind_and_its_further_attempts_are_counted() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let written = |seconds| refusals.is_written("10.0.0.1", Unauthorized, at(seconds));
        let two = [(("10.0.0.1".to_owned(), Unauthorized), 2)];
        assert_eq!([0, 1, 30].map(written), [true, false, false]);
        for kind in [CrossSite, Invalid] {
            assert!(refusals.is_written("10.0.0.1", kind, at(30)), "{kind:?}");
        }
        assert_eq!(refusals.counted(at(59)), []);
        assert_eq!(refusals.counted(at(60)), two);
        assert_eq!([61, 119].map(written), [false, false], "the count was this minute's entry");
        assert_eq!(refusals.counted(at(120)), two);
        assert_eq!(refusals.counted(at(180)), []);
        assert!(written(181));
    }

    #[test]
    fn invented_addresses_share_one_entry_a_minute() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let written = |client: &u32| refusals.is_written(&client.to_string(), CrossSite, now);
        assert_eq!((0..1000).filter(written).count(), STRANGERS_MAX + 1);
        let counted = 1000 - u64::try_from(STRANGERS_MAX).unwrap() - 1;
        assert_eq!(refusals.counted(now + WINDOW), [((OTHERS.to_owned(), CrossSite), counted)]);
    }

    #[test]
    fn a_client_with_credentials_has_an_entry_for_each_attempt_up_to_a_bound() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let written = (0..100).filter(|_| refusals.is_written("alice", Invalid, now)).count();
        assert_eq!(written, 60);
        assert_eq!(refusals.counted(now + WINDOW), [(("alice".to_owned(), Invalid), 40)]);
    }
}
