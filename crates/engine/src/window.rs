//! Windows: how a limit divides time into spans.

use std::fmt;

use crate::{
    calendar::Calendar,
    time::{Span, Timestamp, Unit},
};

/// A way to divide time into spans.
///
/// Without a calendar, Unix time is divided into spans of equal length, starting at the epoch: weeks begin
/// on Thursday, a month has 30 days and a year 365, as in envoyproxy/ratelimit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    seconds: u64,
    calendar: Option<Calendar>,
}

impl Window {
    /// The longest window, in seconds: a hundred years of 365 days.
    pub const SECONDS_MAX: u64 = 100 * 31_536_000;

    /// A window of `multiplier` units; `None` if its length is zero or over
    /// [`SECONDS_MAX`](Self::SECONDS_MAX).
    pub const fn new(unit: Unit, multiplier: u32) -> Option<Self> {
        // A u32 times the seconds of a year stays below 2^58.
        Self::of_seconds(unit.seconds() * multiplier as u64)
    }

    /// A window of this length; `None` if it is zero or over [`SECONDS_MAX`](Self::SECONDS_MAX).
    pub const fn of_seconds(seconds: u64) -> Option<Self> {
        if seconds == 0 || seconds > Self::SECONDS_MAX {
            return None;
        }
        Some(Self { seconds, calendar: None })
    }

    /// The window that is [written](Self#impl-Display-for-Window) like this.
    pub fn read(text: &str) -> Option<Self> {
        let Some((unit, zone)) = text.split_once('@') else {
            return Self::of_seconds(text.strip_suffix('s')?.parse().ok()?);
        };
        Some(Self::of_calendar(Calendar::read(unit, zone)?))
    }

    /// The days, weeks, months or years of a calendar.
    pub const fn of_calendar(calendar: Calendar) -> Self {
        Self { seconds: calendar.unit().seconds(), calendar: Some(calendar) }
    }

    /// The length in seconds, from 1 to [`SECONDS_MAX`](Self::SECONDS_MAX); approximate for a calendar.
    pub const fn seconds(&self) -> u64 {
        self.seconds
    }

    /// The length in milliseconds, below 2^42; approximate for a calendar.
    pub const fn millis(&self) -> u64 {
        self.seconds * 1000
    }

    /// The calendar, if it has one.
    pub const fn calendar(&self) -> Option<&Calendar> {
        self.calendar.as_ref()
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

/// As keys write it: `60s`, or `day@Europe/Berlin`, or `day.0600@Europe/Berlin`.
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
    fn a_window_is_read_as_it_is_written() {
        let calendar = |unit| Calendar::new(unit, "Europe/Berlin").unwrap();
        let mut windows = vec![Window::new(Unit::Minute, 7).unwrap()];
        for (unit, starts) in [
            (Unit::Day, "06:30"),
            (Unit::Week, "friday"),
            (Unit::Month, "31"),
            (Unit::Year, "04-01"),
        ] {
            windows.push(Window::of_calendar(calendar(unit)));
            windows.push(Window::of_calendar(calendar(unit).starting(starts).unwrap()));
        }
        for window in windows {
            assert_eq!(Window::read(&window.to_string()), Some(window));
        }
        for bad in
            ["", "0s", "60", "-1s", "3153600001s", "day", "day@Berlin", "hour@UTC", "day.9@UTC"]
        {
            assert_eq!(Window::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_window_holds_its_start_and_not_its_end() {
        check(Unit::Minute, 1, 60_000, 60, 120);
        check(Unit::Minute, 1, 59_999, 0, 60);
    }

    #[test]
    fn a_window_is_neither_empty_nor_longer_than_a_hundred_years() {
        assert_eq!(Window::new(Unit::Second, 0), None);
        assert!(Window::new(Unit::Year, 100).is_some());
        assert_eq!(Window::new(Unit::Year, 101), None);
        assert_eq!(Window::new(Unit::Year, u32::MAX), None);
    }
}
