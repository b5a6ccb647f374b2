//! The hits that were assigned to one proxy for one bucket.

use std::{mem, time::Duration};

use tokio::time::Instant;

use crate::edge::arriving::HeldBytes;

/// How much later than it should a proxy may end an assignment.
const ENDS_LATE_BY: Duration = Duration::from_secs(1);

/// How long after its windows an assignment is kept, for calls that are reported late.
const REPORTED_WITHIN: Duration = Duration::from_secs(30);

/// Most assignments of a bucket that are kept: a proxy that reports each second has nine. What is unused of an older one stays
/// charged.
const GRANTS_MAX: usize = 10;

/// Windows of the same length that end closer to each other are one: their ends are computed from answers of the store.
const SAME_WITHIN: Duration = Duration::from_secs(1);

/// About what an assignment takes beside its token and its windows, in bytes.
const GRANT_BYTES: usize = 400;

/// An assignment, and what of it was used.
#[derive(Debug)]
pub(super) struct Grant {
    /// It gives back what is unused, if there was room for it.
    pub(super) token: Option<(Box<str>, HeldBytes)>,
    hits: u64,
    /// The hits that were used, if the oldest assignments are used first.
    used: u64,
    /// Those that it was charged in.
    windows: Vec<Window>,
    /// When it was made, and how long it lasts in the proxy.
    made: Instant,
    lasts: Duration,
    /// The time that has passed in the proxy since, by its reports: the first one, which it may have made before, counts
    /// nothing.
    reported: Option<Duration>,
}

/// A window of one limit in which an assignment was charged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) ends: Instant,
    seconds: u64,
    /// The id of its counter: other rules may charge another one.
    pub(super) counter: u64,
    /// The most hits of the assignment that calls may have used in this window. A report may be about two windows, so each call
    /// counts in both, for the oldest assignment there.
    used: u64,
    /// The calls of the present report that neither this assignment nor an older one of the window covers.
    left: u64,
}

/// The assignments that may have unused hits, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Grants(Vec<Grant>);

impl Grants {
    pub(super) fn add(&mut self, grant: Grant) {
        if self.0.len() >= GRANTS_MAX {
            self.0.remove(0);
        }
        self.0.push(grant);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take_all(&mut self) -> Vec<Grant> {
        mem::take(&mut self.0)
    }

    /// The hits of windows that go on which may still be used or given back, until then.
    pub(super) fn unused(&self, now: Instant) -> Option<(u64, Instant)> {
        let going_on = || self.0.iter().filter(|grant| !grant.is_over(now));
        let until = going_on().filter_map(Grant::first_ends).min()?;
        Some((going_on().map(Grant::unused).sum(), until))
    }

    /// Until when the proxy may use some that it has not reported to have used.
    pub(super) fn are_alive_until(&self) -> Option<Instant> {
        let alive = self.0.iter().filter(|grant| grant.unused() > 0);
        alive.map(Grant::ends).max()
    }

    /// Notes the calls that a proxy has let pass; returns those that none covers. A report does not say by which assignment, so
    /// that of one window, the oldest is used first: what is unused of the later ones is never less than what the proxy has.
    pub(super) fn spend(&mut self, calls: u64) -> u64 {
        for index in 0..self.0.len() {
            let (older, rest) = self.0.split_at_mut(index);
            let Some(Grant { hits, windows, .. }) = rest.first_mut() else { continue };
            for window in windows {
                let mut of_older = older.iter().rev().flat_map(|grant| &grant.windows);
                let same = of_older.find(|other| other.is_same(window));
                let left = same.map_or(calls, |same| same.left);
                let used = left.min(*hits - window.used);
                (window.used, window.left) = (window.used + used, left - used);
            }
        }
        self.0.iter_mut().fold(calls, |calls, grant| {
            let used = calls.min(grant.unused());
            grant.used += used;
            calls - used
        })
    }

    /// Notes a report that was made `elapsed` after the one before it, and removes those of which no further use can be
    /// reported, since they had ended when it was made. It may come late, so that our clock alone does not tell.
    pub(super) fn ended(&mut self, elapsed: Duration, now: Instant) -> Vec<Grant> {
        let is_ended = |grant: &mut Grant| {
            let reported =
                grant.reported.map_or(Duration::ZERO, |before| before.saturating_add(elapsed));
            grant.reported = Some(reported);
            let has_passed = reported >= grant.lasts + ENDS_LATE_BY;
            grant.unused() == 0
                || has_passed && grant.ends() + ENDS_LATE_BY <= now
                // Some proxies do not say how much time has passed.
                || grant.windows.iter().all(|window| window.ends + REPORTED_WITHIN <= now)
        };
        self.0.extract_if(.., is_ended).collect()
    }
}

impl Grant {
    /// One that the proxy gets `now`.
    pub(super) fn new(
        token: String,
        held: &mut HeldBytes,
        hits: u64,
        lasts: Duration,
        windows: Vec<Window>,
        now: Instant,
    ) -> Self {
        let bytes = GRANT_BYTES + token.len() + windows.len() * size_of::<Window>();
        let has_room = held.add(bytes).is_ok();
        let token = has_room.then(|| (token.into(), held.split(bytes)));
        Self { token, hits, used: 0, windows, made: now, lasts, reported: None }
    }

    /// When it ends in the proxy.
    fn ends(&self) -> Instant {
        self.made + self.lasts
    }

    const fn unused(&self) -> u64 {
        self.hits - self.used
    }

    /// When the first window ends in which it was charged.
    fn first_ends(&self) -> Option<Instant> {
        self.windows.iter().map(|window| window.ends).min()
    }

    /// Whether a window has ended in which it was charged.
    fn is_over(&self, now: Instant) -> bool {
        self.first_ends().is_none_or(|ends| ends <= now)
    }

    /// The number to commit, if there is something to give back to a window that goes on.
    pub(super) fn committed(&self, now: Instant) -> Option<u64> {
        let going_on = self.windows.iter().filter(|window| window.ends > now);
        let used = going_on.map(|window| window.used).max()?;
        (used < self.hits).then_some(used)
    }
}

impl Window {
    /// A window of this length and this counter that ends then.
    pub(super) const fn new(ends: Instant, seconds: u64, counter: u64) -> Self {
        Self { ends, seconds, counter, used: 0, left: 0 }
    }

    fn is_same(&self, other: &Self) -> bool {
        let apart = self.ends.max(other.ends).duration_since(self.ends.min(other.ends));
        let is_same_limit = (self.seconds, self.counter) == (other.seconds, other.counter);
        is_same_limit && apart < SAME_WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::edge::arriving::ArrivalBudget;

    const SECOND: Duration = Duration::from_secs(1);

    fn grant(hits: u64, lasts: Duration, window_ends: Instant, made: Instant) -> Grant {
        in_windows(hits, lasts, vec![Window::new(window_ends, 60, 0)], made)
    }

    fn in_windows(hits: u64, lasts: Duration, windows: Vec<Window>, made: Instant) -> Grant {
        let mut held = ArrivalBudget::new(1 << 20).connection(1 << 20).reserve();
        Grant::new(hits.to_string(), &mut held, hits, lasts, windows, made)
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
        assert_eq!((grants.spend(8), unused(&grants)), (0, 7));
        assert_eq!((grants.spend(4), unused(&grants)), (0, 3));
        assert_eq!((grants.spend(5), unused(&grants)), (2, 0));
    }

    #[test]
    fn one_ends_with_the_first_report_that_was_made_a_second_after_its_end() {
        let now = Instant::now();
        let mut grants = grants(&[10, 5], now);
        grants.spend(4);
        let (end, moment) = (now + 8 * SECOND, Duration::from_nanos(1));
        assert!(grants.ended(5 * SECOND, now).is_empty(), "it is about the time before");
        assert!(grants.ended(5 * SECOND, end - moment).is_empty());
        assert!(grants.ended(3 * SECOND - moment, end).is_empty(), "it was made before");
        let ended = grants.ended(moment, end);
        let ended: Vec<_> = ended.iter().map(|one| (one.hits, one.committed(now))).collect();
        let until = now + 60 * SECOND;
        assert_eq!((ended, grants.unused(now)), (vec![(10, Some(4))], Some((5, until))));
    }

    #[test]
    fn one_that_is_used_up_is_no_longer_kept() {
        let now = Instant::now();
        let mut grants = grants(&[10], now);
        grants.spend(10);
        assert_eq!(grants.are_alive_until(), None);
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
        assert_eq!(grants.spend(8), 0);
        assert_eq!(grants.spend(20), 0, "the first may have covered the 8");
        let end = now + 8 * SECOND;
        let mut ended = grants.ended(SECOND, end);
        ended.extend(grants.ended(8 * SECOND, end));
        assert_eq!(ended.iter().map(|one| one.committed(end)).collect::<Vec<_>>(), [None, None]);
    }

    /// Of 10 s and of a minute, which end together.
    #[test]
    fn calls_that_may_be_of_a_new_minute_are_not_given_back_to_it_once_its_first_10_seconds_are_over()
     {
        let now = Instant::now();
        let minute = now + SECOND;
        let in_windows = |hits: u64, short: Instant, long: Instant, made: Instant| {
            let windows = vec![Window::new(short, 10, 0), Window::new(long, 60, 0)];
            in_windows(hits, 7 * SECOND, windows, made)
        };
        let mut grants = Grants(vec![
            in_windows(50, minute, minute, now),
            in_windows(75, minute + 10 * SECOND, minute + 60 * SECOND, minute),
            in_windows(20, minute + 20 * SECOND, minute + 60 * SECOND, minute + 10 * SECOND),
        ]);
        assert_eq!(grants.spend(75), 0);
        let committed: Vec<_> =
            grants.0.iter().map(|one| one.committed(minute + 21 * SECOND)).collect();
        assert_eq!(committed, [None, None, Some(0)], "all 75 may be of the new minute's first");
        let in_first = grants.0[1].committed(minute);
        assert_eq!(in_first, None, "all 75 may be of its 10 seconds");
    }

    #[test]
    fn a_counter_of_other_rules_shares_no_window() {
        let now = Instant::now();
        let of = |counter, made| {
            in_windows(10, SECOND, vec![Window::new(now + 60 * SECOND, 60, counter)], made)
        };
        let mut grants = Grants(vec![of(1, now), of(2, now + SECOND)]);
        assert_eq!(grants.spend(10), 0);
        assert_eq!(grants.0[1].committed(now), None, "the calls may be of the second");
    }

    #[test]
    fn the_assignments_of_a_bucket_are_counted_to_the_bound_and_one_beyond_has_no_token() {
        let all = ArrivalBudget::new(usize::MAX);
        let kept = |bytes_max: usize| {
            let (connection, now) = (all.connection(bytes_max), Instant::now());
            let (mut held, mut grants) = (connection.reserve(), Grants::default());
            for _ in 0..40 {
                let windows = vec![Window::new(now + 60 * SECOND, 60, 0)];
                grants.add(Grant::new("t".repeat(100), &mut held, 1, SECOND, windows, now));
            }
            let with_token = grants.0.iter().filter(|grant| grant.token.is_some()).count();
            (with_token, connection.held())
        };
        let each = GRANT_BYTES + 100 + size_of::<Window>();
        assert_eq!(kept(1 << 20), (GRANTS_MAX, GRANTS_MAX * each));
        let (with_token, held) = kept(3 * each);
        assert!(with_token <= 3 && held == with_token * each, "{with_token}, {held}");
    }

    #[test]
    fn of_a_client_that_reports_no_time_the_latest_are_kept() {
        let now = Instant::now();
        let mut grants = Grants::default();
        for hits in 0..40 {
            grants.add(grant(hits, SECOND, now + 1000 * SECOND, now));
        }
        let kept: Vec<_> = grants.0.iter().map(|one| one.hits).collect();
        assert_eq!(kept, (30..40).collect::<Vec<_>>());
    }
}
