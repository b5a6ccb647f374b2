//! What was admitted in which windows: a hit counts in one between the window in which its call was sent and the one in which
//! that was answered. Redis has the clock of this machine.

use std::time::SystemTime;

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// Hits that one call was admitted with, and the windows in which it was sent and answered.
#[derive(Debug, Clone, Copy)]
pub struct Admitted {
    pub hits: u64,
    pub sent: u64,
    pub answered: u64,
}

/// Fails if windows in a row have admitted more than their limits, and once more for each time that a store may have lost its
/// data in them, whose first and last windows are `losses`.
#[track_caller]
pub fn check(what: &str, limit: u64, admitted: &[Admitted], losses: &[(u64, u64)]) {
    let begin = admitted.iter().map(|one| one.sent).min().expect("something was admitted");
    let end = admitted.iter().map(|one| one.answered).max().expect("something was admitted");
    for first in begin..=end {
        for last in first..=end {
            let within = admitted.iter().filter(|one| first <= one.sent && one.answered <= last);
            let hits: u64 = within.map(|one| one.hits).sum();
            let lost = losses.iter().filter(|(from, to)| *from <= last && first <= *to).count();
            let most = limit * (last - first + 1 + lost as u64);
            assert!(
                hits <= most,
                "{what}: {hits} of {most} in windows {first} to {last}, from {begin}"
            );
        }
    }
}
