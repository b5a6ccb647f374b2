//! Instants, spans and units of time. Time is always an argument here; only the stores read a clock.

use std::time::Duration;

use crate::text::named::named;

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

    /// The date and time in UTC as RFC 3339 has it; the milliseconds after the year 9999.
    pub fn date(self) -> String {
        self.instant().map_or_else(|| format!("{} ms", self.0), |instant| instant.to_string())
    }

    /// `None` after the year 9999.
    pub(crate) fn instant(self) -> Option<jiff::Timestamp> {
        jiff::Timestamp::from_millisecond(i64::try_from(self.0).ok()?).ok()
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

    /// Milliseconds from `earlier` to this instant; negative if `earlier` is later.
    pub const fn millis_since(self, earlier: Self) -> i64 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// The time until `later`, or zero if that has passed.
    pub const fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// A span of time: `start <= now < end`.
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

named! {
    /// The unit of a limit. They are listed by ascending length.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[expect(missing_docs, reason = "the names say it")]
    pub enum Unit {
        Second = "second",
        Minute = "minute",
        Hour = "hour",
        Day = "day",
        Week = "week",
        Month = "month",
        Year = "year",
    }
}

impl Unit {
    /// The length in seconds; a month has 30 days and a year 365.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weeks_months_and_years_are_whole_days_as_in_envoyproxy_ratelimit() {
        assert_eq!(Unit::Week.seconds(), 7 * 86_400);
        assert_eq!(Unit::Month.seconds(), 30 * 86_400);
        assert_eq!(Unit::Year.seconds(), 365 * 86_400);
    }

    #[test]
    fn the_time_until_the_past_is_zero() {
        let (early, late) = (Timestamp::from_secs(1), Timestamp::from_secs(2));
        assert_eq!(early.until(late), Duration::from_secs(1));
        assert_eq!(late.until(early), Duration::ZERO);
        assert_eq!(early.millis_since(late), -1000);
        assert_eq!(early.shifted(-2000), Timestamp::from_millis(0));
    }

    fn span(start: u64, end: u64) -> Span {
        Span { start: Timestamp::from_millis(start), end: Timestamp::from_millis(end) }
    }

    #[test]
    fn the_first_span_since_the_epoch_has_no_previous_span() {
        assert_eq!(span(2000, 3000).previous(), Some(span(1000, 2000)));
        assert_eq!(span(1000, 2000).previous(), Some(span(0, 1000)));
        assert_eq!(span(0, 1000).previous(), None);
    }
}
