//! The hits that were assigned to one proxy for one bucket.

use std::time::Duration;

use tokio::time::Instant;

/// How much later than it should a proxy may end an assignment.
const ENDS_LATE_BY: Duration = Duration::from_secs(1);

/// How long after its windows an assignment is kept, for calls that are reported late.
const REPORTED_WITHIN: Duration = Duration::from_secs(30);

/// An assignment, and what of it was used.
#[derive(Debug)]
pub(super) struct Grant {
    /// It gives back what is unused.
    pub(super) token: String,
    hits: u64,
    /// The hits that were used, if the oldest assignments are used first.
    used: u64,
    /// The most hits that may have been used, since a report may be about two windows: assignments of windows that have not ended
    /// are used first.
    used_at_most: u64,
    /// When it was made, and how long it lasts in the proxy.
    made: Instant,
    lasts: Duration,
    /// The time that has passed in the proxy since, by its reports.
    reported: Duration,
    /// When the first and the last window end in which it was charged.
    windows_end: [Instant; 2],
}

/// The assignments that may have unused hits, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Grants(Vec<Grant>);

impl Grants {
    pub(super) fn add(&mut self, grant: Grant) {
        self.0.push(grant);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hits of windows that go on which may still be used or given back, until then.
    pub(super) fn unused(&self, now: Instant) -> Option<(u64, Instant)> {
        let going_on = || self.0.iter().filter(|grant| !grant.is_over(now));
        let until = going_on().map(|grant| grant.windows_end[0]).min()?;
        Some((going_on().map(Grant::unused).sum(), until))
    }

    /// Whether the proxy may still use some.
    pub(super) fn are_alive(&self, now: Instant) -> bool {
        self.0.iter().any(|grant| grant.ends() > now && grant.unused() > 0)
    }

    /// Notes the calls that a proxy has let pass; returns those that none covers. A report does not say by which assignment, so
    /// that of one window, the oldest is used first: what is unused of the later ones is never less than what the proxy has.
    pub(super) fn spend(&mut self, calls: u64, now: Instant) -> u64 {
        let mut left = calls;
        for is_over in [false, true] {
            for grant in self.0.iter_mut().filter(|grant| grant.is_over(now) == is_over) {
                let used = left.min(grant.hits - grant.used_at_most);
                (grant.used_at_most, left) = (grant.used_at_most + used, left - used);
            }
        }
        self.0.iter_mut().fold(calls, |calls, grant| {
            let used = calls.min(grant.unused());
            grant.used += used;
            calls - used
        })
    }

    /// Notes a report that was made `elapsed` after the one before it, and removes those of which no further use can be
    /// reported, since they had ended when it was made. It may have waited for us, so that our clock alone does not tell.
    pub(super) fn ended(&mut self, elapsed: Duration, now: Instant) -> Vec<Grant> {
        let is_ended = |grant: &mut Grant| {
            // The first report is also about the time before.
            let since = now.saturating_duration_since(grant.made);
            grant.reported = grant.reported.saturating_add(elapsed).min(since);
            let has_passed = grant.reported >= grant.lasts + ENDS_LATE_BY;
            grant.unused() == 0
                || has_passed && grant.ends() + ENDS_LATE_BY <= now
                // Some proxies do not say how much time has passed.
                || grant.windows_end[1] + REPORTED_WITHIN <= now
        };
        self.0.extract_if(.., is_ended).collect()
    }
}

impl Grant {
    /// One that the proxy gets `now`.
    pub(super) fn new(
        token: String,
        hits: u64,
        lasts: Duration,
        windows_end: [Instant; 2],
        now: Instant,
    ) -> Self {
        let (made, reported) = (now, Duration::ZERO);
        Self { token, hits, used: 0, used_at_most: 0, made, lasts, reported, windows_end }
    }

    /// When it ends in the proxy.
    fn ends(&self) -> Instant {
        self.made + self.lasts
    }

    const fn unused(&self) -> u64 {
        self.hits - self.used
    }

    /// Whether a window has ended in which it was charged.
    fn is_over(&self, now: Instant) -> bool {
        self.windows_end[0] <= now
    }

    /// The number to commit, if there is something to give back to a window that goes on.
    pub(super) fn committed(&self, now: Instant) -> Option<u64> {
        // What it was charged in longer windows is the same whichever was used.
        let used = if self.is_over(now) { self.used } else { self.used_at_most };
        (used < self.hits && self.windows_end[1] > now).then_some(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn grant(hits: u64, lasts: Duration, window_ends: Instant, made: Instant) -> Grant {
        Grant::new(hits.to_string(), hits, lasts, [window_ends; 2], made)
    }

    /// Made 5 s after each other, in one window.
    fn grants(hits: &[u64], now: Instant) -> Grants {
        let made = hits.iter().zip(0..);
        let made = made.map(|(hits, place)| {
            grant(*hits, 7 * SECOND, now + 60 * SECOND, now + place * 5 * SECOND)
        });
        Grants(made.collect())
    }

    #[test]
    fn the_oldest_is_used_first_and_what_none_covers_is_returned() {
        let now = Instant::now();
        let mut grants = grants(&[10, 5], now);
        let unused = |grants: &Grants| grants.unused(now).map_or(0, |(unused, _)| unused);
        assert_eq!((grants.spend(8, now), unused(&grants)), (0, 7));
        assert_eq!((grants.spend(4, now), unused(&grants)), (0, 3));
        assert_eq!((grants.spend(5, now), unused(&grants)), (2, 0));
    }

    #[test]
    fn one_ends_with_the_first_report_that_was_made_a_second_after_its_end() {
        let now = Instant::now();
        let mut grants = grants(&[10, 5], now);
        grants.spend(4, now);
        let (end, moment) = (now + 8 * SECOND, Duration::from_nanos(1));
        assert!(grants.ended(5 * SECOND, now).is_empty(), "it is about the time before");
        assert!(grants.ended(5 * SECOND, end - moment).is_empty());
        assert!(grants.ended(3 * SECOND - moment, end).is_empty(), "it was made before");
        let ended = grants.ended(moment, end);
        let ended: Vec<_> = ended.iter().map(|one| (&*one.token, one.committed(now))).collect();
        let until = now + 60 * SECOND;
        assert_eq!((ended, grants.unused(now)), (vec![("10", Some(4))], Some((5, until))));
    }

    #[test]
    fn one_that_is_used_up_is_no_longer_kept() {
        let now = Instant::now();
        let mut grants = grants(&[10], now);
        grants.spend(10, now);
        assert!(!grants.are_alive(now));
        let ended = grants.ended(SECOND, now);
        assert_eq!(ended.iter().map(|one| one.committed(now)).collect::<Vec<_>>(), [None]);
        assert!(grants.is_empty());
    }

    #[test]
    fn calls_that_may_be_of_either_of_two_windows_are_given_back_to_neither() {
        let now = Instant::now();
        let later = now + 2 * SECOND;
        let mut grants = Grants(vec![
            grant(10, SECOND, now + SECOND, now),
            grant(20, 7 * SECOND, now + 61 * SECOND, now),
        ]);
        let unused = Some((20, now + 61 * SECOND));
        assert_eq!(grants.unused(later), unused, "what is left of the first is of no use");
        assert_eq!(grants.spend(8, later), 0);
        assert_eq!(grants.spend(20, later), 0, "the first may have covered the 8");
        let end = now + 8 * SECOND;
        let ended = grants.ended(8 * SECOND, end);
        assert_eq!(ended.iter().map(|one| one.committed(end)).collect::<Vec<_>>(), [None, None]);
    }
}
