//! Days, ISO weeks, months and years as a time zone's clocks show them.

use std::fmt;

use jiff::{
    ToSpan as _, civil,
    tz::{TimeZone, TimeZoneDatabase},
};

use crate::engine::time::{Span, Timestamp, Unit};

/// A time zone's days, weeks, months or years.
#[derive(Clone, PartialEq, Eq)]
pub struct Calendar {
    unit: Unit,
    zone: TimeZone,
}

/// The name alone: the zone's own `Debug` prints its whole history.
impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

/// As keys write it: `day@Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.unit.name(), self.zone.iana_name().unwrap_or("UTC"))
    }
}

/// Why a calendar cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalendarError {
    /// The unit is shorter than a day.
    Unit,
    /// The IANA database has no time zone of this name.
    Zone,
}

/// The names of all time zones.
pub fn zone_names() -> Vec<String> {
    TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
}

impl Calendar {
    /// The calendar of an IANA time zone such as `Europe/Berlin`.
    ///
    /// # Errors
    /// See [`CalendarError`].
    pub fn new(unit: Unit, zone: &str) -> Result<Self, CalendarError> {
        if unit.seconds() < Unit::Day.seconds() {
            return Err(CalendarError::Unit);
        }
        // Always the bundled data: all replicas must divide time alike, whatever their images contain.
        let zone = TimeZoneDatabase::bundled().get(zone).map_err(|_| CalendarError::Zone)?;
        Ok(Self { unit, zone })
    }

    /// The unit of its spans: a day or longer.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// The span that holds `now`: a day starts at its first instant, which need not be midnight,
    /// and ends where the next one starts. `None` after the year 9999.
    pub fn at(&self, now: Timestamp) -> Option<Span> {
        let instant =
            jiff::Timestamp::from_millisecond(i64::try_from(now.as_millis()).ok()?).ok()?;
        let mut first = self.first_day(self.zone.to_datetime(instant).date())?;
        loop {
            let next = self.next(first)?;
            let span = Span { start: self.starts(first)?, end: self.starts(next)? };
            // A clock that is set back over midnight shows yesterday again, but the new day has begun.
            if now < span.end {
                return Some(span);
            }
            first = next;
        }
    }

    fn first_day(&self, date: civil::Date) -> Option<civil::Date> {
        match self.unit {
            Unit::Week => date.checked_sub(date.weekday().to_monday_zero_offset().days()).ok(),
            Unit::Month => Some(date.first_of_month()),
            Unit::Year => Some(date.first_of_year()),
            _ => Some(date),
        }
    }

    fn next(&self, first: civil::Date) -> Option<civil::Date> {
        let span = match self.unit {
            Unit::Week => 1.week(),
            Unit::Month => 1.month(),
            Unit::Year => 1.year(),
            _ => 1.day(),
        };
        first.checked_add(span).ok()
    }

    fn starts(&self, date: civil::Date) -> Option<Timestamp> {
        let millis = date.to_zoned(self.zone.clone()).ok()?.timestamp().as_millisecond();
        // Time starts at the epoch, and so does the span that holds it.
        Some(Timestamp::from_millis(u64::try_from(millis).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `now`, `start` and `end` as UTC: `2026-03-29T12:00`.
    #[track_caller]
    fn check(unit: Unit, zone: &str, now: &str, start: &str, end: &str) {
        let span = Calendar::new(unit, zone).unwrap().at(utc(now)).unwrap();
        assert_eq!((span.start, span.end), (utc(start), utc(end)), "{zone} at {now}");
    }

    fn utc(text: &str) -> Timestamp {
        let instant: jiff::Timestamp = format!("{text}:00Z").parse().unwrap();
        Timestamp::from_millis(instant.as_millisecond().unsigned_abs())
    }

    #[test]
    fn a_day_has_23_24_or_25_hours() {
        let berlin = "Europe/Berlin";
        check(Unit::Day, berlin, "2026-03-28T12:00", "2026-03-27T23:00", "2026-03-28T23:00");
        check(Unit::Day, berlin, "2026-03-29T12:00", "2026-03-28T23:00", "2026-03-29T22:00");
        check(Unit::Day, berlin, "2026-10-25T12:00", "2026-10-24T22:00", "2026-10-25T23:00");
        check(
            Unit::Day,
            "Asia/Kolkata",
            "2026-01-01T00:00",
            "2025-12-31T18:30",
            "2026-01-01T18:30",
        );
    }

    #[test]
    fn a_day_without_a_midnight_starts_at_its_first_instant() {
        // At midnight the clocks of Beirut go to one o'clock.
        check(Unit::Day, "Asia/Beirut", "2026-03-29T12:00", "2026-03-28T22:00", "2026-03-29T21:00");
        // Samoa has no 30 December 2011.
        check(
            Unit::Day,
            "Pacific/Apia",
            "2011-12-30T09:59",
            "2011-12-29T10:00",
            "2011-12-30T10:00",
        );
        check(
            Unit::Day,
            "Pacific/Apia",
            "2011-12-30T10:00",
            "2011-12-30T10:00",
            "2011-12-31T10:00",
        );
    }

    #[test]
    fn a_new_day_does_not_end_when_clocks_show_yesterday_again() {
        // At one minute past midnight, 03:01 UTC, the clocks of Goose Bay go back by an hour.
        let zone = "America/Goose_Bay";
        check(Unit::Day, zone, "2010-11-07T02:59", "2010-11-06T03:00", "2010-11-07T03:00");
        check(Unit::Day, zone, "2010-11-07T03:30", "2010-11-07T03:00", "2010-11-08T04:00");
    }

    #[test]
    fn weeks_begin_on_monday_and_months_and_years_on_their_first() {
        let new_york = "America/New_York";
        check(Unit::Week, new_york, "2026-11-21T12:00", "2026-11-16T05:00", "2026-11-23T05:00");
        check(Unit::Week, "UTC", "2027-01-01T00:00", "2026-12-28T00:00", "2027-01-04T00:00");
        check(Unit::Month, new_york, "2026-03-15T12:00", "2026-03-01T05:00", "2026-04-01T04:00");
        check(Unit::Month, "UTC", "2028-02-10T00:00", "2028-02-01T00:00", "2028-03-01T00:00");
        check(Unit::Year, "UTC", "2028-12-31T23:59", "2028-01-01T00:00", "2029-01-01T00:00");
        check(Unit::Year, "Asia/Tokyo", "2026-12-31T15:00", "2026-12-31T15:00", "2027-12-31T15:00");
    }

    #[test]
    fn every_instant_lies_in_one_span_and_spans_have_no_gaps() {
        for zone in ["America/Goose_Bay", "Pacific/Apia", "Africa/Cairo", "Asia/Beirut", "UTC"] {
            for unit in [Unit::Day, Unit::Week, Unit::Month, Unit::Year] {
                let calendar = Calendar::new(unit, zone).unwrap();
                let mut span = calendar.at(Timestamp::from_secs(1_200_000_000)).unwrap();
                while span.end < Timestamp::from_secs(1_400_000_000) {
                    let next = calendar.at(span.end).unwrap();
                    assert_eq!(next.start, span.end, "{calendar} at {:?}", span.end);
                    let last = Timestamp::from_millis(next.end.as_millis() - 1);
                    assert_eq!(calendar.at(last), Some(next), "{calendar}");
                    span = next;
                }
            }
        }
    }

    #[test]
    fn hours_and_unknown_zones_are_refused_and_the_end_of_time_does_not_panic() {
        Calendar::new(Unit::Hour, "UTC").unwrap_err();
        Calendar::new(Unit::Day, "Europe/Atlantis").unwrap_err();
        let day = Calendar::new(Unit::Day, "UTC").unwrap();
        assert_eq!(day.at(Timestamp::from_millis(u64::MAX)), None);
        assert!(day.at(Timestamp::from_millis(0)).is_some());
    }
}
