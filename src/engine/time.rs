//! Instants and windows. Time is always an argument here; who reads a clock is in `store/`.

use std::{fmt, time::Duration};

use crate::engine::{calendar::Calendar, rule::Unit};

/// An instant, in whole milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The instant `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The instant `secs` seconds after the Unix epoch; saturates after 500 million years.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }

    /// The instant `millis` milliseconds later; saturates.
    pub const fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// This instant shifted by `offset_ms` milliseconds; stops at the epoch.
    pub const fn shifted(self, offset_ms: i64) -> Self {
        Self(self.0.saturating_add_signed(offset_ms))
    }

    /// How many milliseconds this instant lies after `earlier`; negative if it lies before.
    pub const fn millis_since(self, earlier: Self) -> i64 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// The time until `later`, or zero if that has passed.
    pub const fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// A window: how time is cut into spans.
///
/// Without a calendar the length cuts Unix time into equal spans, from the epoch on: weeks begin on
/// Thursday, a month has 30 days and a year 365, as envoyproxy/ratelimit computes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    seconds: u64,
    calendar: Option<Calendar>,
}

/// One span of a window: `start <= now < end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first instant of the span.
    pub start: Timestamp,
    /// The first instant after the span.
    pub end: Timestamp,
}

impl Span {
    /// The previous span of the same length; `None` for the first span since the epoch.
    pub fn previous(self) -> Option<Self> {
        let length = self.end.as_millis().saturating_sub(self.start.as_millis());
        let start = self.start.as_millis().checked_sub(length)?;
        Some(Self { start: Timestamp::from_millis(start), end: self.start })
    }
}

impl Window {
    /// The longest window, in seconds: a hundred years of 365 days.
    pub const SECONDS_MAX: u64 = 100 * 31_536_000;

    /// A window of `multiplier` units; `None` if that is no time at all or over
    /// [`SECONDS_MAX`](Self::SECONDS_MAX).
    pub const fn new(unit: Unit, multiplier: u32) -> Option<Self> {
        // A u32 times the seconds of a year stays below 2^58.
        let seconds = unit.seconds() * multiplier as u64;
        if seconds == 0 || seconds > Self::SECONDS_MAX {
            return None;
        }
        Some(Self { seconds, calendar: None })
    }

    /// The days, weeks, months or years of a calendar.
    pub const fn of_calendar(calendar: Calendar) -> Self {
        Self { seconds: calendar.unit().seconds(), calendar: Some(calendar) }
    }

    /// The length in seconds, from 1 to [`SECONDS_MAX`](Self::SECONDS_MAX); of a calendar's spans,
    /// about that.
    pub const fn seconds(&self) -> u64 {
        self.seconds
    }

    /// The length in milliseconds, below 2^42.
    pub const fn millis(&self) -> u64 {
        self.seconds * 1000
    }

    /// The span that holds `now`.
    pub fn at(&self, now: Timestamp) -> Span {
        if let Some(span) = self.calendar.as_ref().and_then(|calendar| calendar.at(now)) {
            return span;
        }
        let start = now.as_secs() - now.as_secs() % self.seconds;
        Span {
            start: Timestamp::from_secs(start),
            end: Timestamp::from_secs(start.saturating_add(self.seconds)),
        }
    }
}

/// As keys write it: `60s`, or `day@Europe/Berlin`.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.calendar {
            None => write!(f, "{}s", self.seconds),
            Some(calendar) => calendar.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(unit: Unit, multiplier: u32, now_ms: u64, start: u64, end: u64) {
        let window = Window::new(unit, multiplier).expect("a valid window");
        let span = window.at(Timestamp::from_millis(now_ms));
        assert_eq!((span.start.as_secs(), span.end.as_secs()), (start, end));
    }

    #[test]
    fn a_window_is_aligned_to_the_unix_epoch() {
        check(Unit::Second, 1, 1_234_999, 1_234, 1_235);
        check(Unit::Minute, 1, 1_234_000, 1_200, 1_260);
        check(Unit::Hour, 1, 1_000_000_000, 997_200, 1_000_800);
        check(Unit::Day, 1, 1_000_000_000, 950_400, 1_036_800);
        check(Unit::Minute, 5, 1_234_000, 1_200, 1_500);
    }

    #[test]
    fn a_window_holds_its_start_and_not_its_end() {
        check(Unit::Minute, 1, 60_000, 60, 120);
        check(Unit::Minute, 1, 59_999, 0, 60);
    }

    #[test]
    fn the_incumbents_weeks_months_and_years_are_multiples_of_days() {
        let days = |unit: Unit| unit.seconds() / 86_400;
        assert_eq!((days(Unit::Week), days(Unit::Month), days(Unit::Year)), (7, 30, 365));
    }

    #[test]
    fn no_window_is_empty_or_longer_than_a_hundred_years() {
        assert_eq!(Window::new(Unit::Second, 0), None);
        assert!(Window::new(Unit::Year, 100).is_some());
        assert_eq!(Window::new(Unit::Year, 101), None);
        assert_eq!(Window::new(Unit::Year, u32::MAX), None);
    }

    #[test]
    fn the_time_until_the_past_is_zero() {
        let (early, late) = (Timestamp::from_secs(1), Timestamp::from_secs(2));
        assert_eq!(early.until(late), Duration::from_secs(1));
        assert_eq!(late.until(early), Duration::ZERO);
        assert_eq!(early.millis_since(late), -1000);
        assert_eq!(early.shifted(-2000), Timestamp::from_millis(0));
    }
}
