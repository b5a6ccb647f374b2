//! Days, ISO weeks, months and years as a time zone's clocks show them.

use std::{fmt, ops::RangeInclusive};

use jiff::{
    ToSpan as _, civil,
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
};

use crate::time::{Span, Timestamp, Unit};

/// A time zone's days, weeks, months or years.
#[derive(Clone, PartialEq, Eq)]
pub struct Calendar {
    unit: Unit,
    zone: TimeZone,
    start: CalendarStart,
}

/// Where the spans of a calendar start: a day at `time`, a week at `weekday`, a month at `day`, a year at `day` of
/// `month`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CalendarStart {
    month: i8,
    day: i8,
    weekday: civil::Weekday,
    time: civil::Time,
}

/// The names of weekdays.
pub const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// The name alone: the zone's own `Debug` prints its whole history.
impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

/// As keys write it: `day@Europe/Berlin`, or with another start `day.0600@Europe/Berlin`, `week.friday@…`,
/// `month.15@…` or `year.0401@…`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CalendarStart { month, day, weekday, time } = self.start;
        f.write_str(self.unit.name())?;
        match self.unit {
            _ if self.start == CalendarStart::FIRST => {}
            Unit::Week => {
                let named = weekdays().find(|(_, known)| *known == weekday);
                write!(f, ".{}", named.map_or("", |(name, _)| name))?;
            }
            Unit::Month => write!(f, ".{day}")?,
            Unit::Year => write!(f, ".{month:02}{day:02}")?,
            _ => write!(f, ".{:02}{:02}", time.hour(), time.minute())?,
        }
        write!(f, "@{}", self.zone.iana_name().unwrap_or("UTC"))
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
        Ok(Self { unit, zone, start: CalendarStart::FIRST })
    }

    /// The unit of its spans: a day or longer.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// The calendar that is [written](Self#impl-Display-for-Calendar) as `unit@zone`.
    pub fn read(unit: &str, zone: &str) -> Option<Self> {
        let (name, starts) = unit.split_once('.').unwrap_or((unit, ""));
        let unit = Unit::named(name)?;
        let calendar = Self::new(unit, zone).ok()?;
        let middle = match (unit, starts) {
            (_, "") => return Some(calendar),
            (Unit::Day, _) => ":",
            (Unit::Year, _) => "-",
            _ => return calendar.starting(starts),
        };
        let (one, other) = starts.split_at_checked(2)?;
        calendar.starting(&format!("{one}{middle}{other}"))
    }

    /// These spans, moved to where `starts` says: a day to a time such as `06:00`, a week to a weekday, a month to
    /// a day of the month, a year to a month and day such as `04-01`. `None` if `starts` does not fit the unit.
    pub fn starting(self, starts: &str) -> Option<Self> {
        let start = CalendarStart::read(self.unit, starts)?;
        Some(Self { start, ..self })
    }

    /// The span that holds `now`: it starts at the first instant at or after its local time, and ends where the
    /// next one starts. `None` after the year 9999.
    pub fn at(&self, now: Timestamp) -> Option<Span> {
        let mut first = self.first_day(self.zone.to_datetime(now.instant()?))?;
        loop {
            let next = self.next(first)?;
            let span = Span { start: self.starts(first)?, end: self.starts(next)? };
            // A clock that is set back over the start shows the old span again, but the new one has begun.
            if now < span.end {
                return Some(span);
            }
            first = next;
        }
    }

    /// The day on which the span starts that holds this local time.
    fn first_day(&self, local: civil::DateTime) -> Option<civil::Date> {
        let date = local.date();
        let first = self.first_day_within(date)?;
        if first <= date && (self.unit != Unit::Day || self.start.time <= local.time()) {
            return Some(first);
        }
        let within = match self.unit {
            Unit::Year => date.first_of_year(),
            Unit::Month => date.first_of_month(),
            _ => date,
        };
        self.first_day_within(within.yesterday().ok()?)
    }

    /// The day on which a span starts within the day, month or year of `date`, or the last one until `date` on which a
    /// week does.
    fn first_day_within(&self, date: civil::Date) -> Option<civil::Date> {
        let CalendarStart { month, day, weekday, .. } = self.start;
        match self.unit {
            Unit::Week => date.checked_sub(i64::from(date.weekday().since(weekday)).days()).ok(),
            Unit::Month => day_of_month(date, day),
            Unit::Year => day_of_month(date.with().day(1).month(month).build().ok()?, day),
            _ => Some(date),
        }
    }

    fn next(&self, first: civil::Date) -> Option<civil::Date> {
        match self.unit {
            Unit::Week => first.checked_add(1.week()).ok(),
            Unit::Month => self.first_day_within(first.last_of_month().tomorrow().ok()?),
            Unit::Year => self.first_day_within(first.last_of_year().tomorrow().ok()?),
            _ => first.tomorrow().ok(),
        }
    }

    fn starts(&self, date: civil::Date) -> Option<Timestamp> {
        let local = date.to_datetime(self.start.time);
        let ambiguous = self.zone.to_ambiguous_timestamp(local);
        let instant = match ambiguous.offset() {
            // The clocks skip it, at the first change after the time that it would be by the later offset.
            AmbiguousOffset::Gap { after, .. } => {
                self.zone.following(after.to_timestamp(local).ok()?).next()?.timestamp()
            }
            _ => ambiguous.earlier().ok()?,
        };
        // Time starts at the epoch, and so does the span that holds it.
        Some(Timestamp::from_millis(u64::try_from(instant.as_millisecond()).unwrap_or(0)))
    }
}

/// This day of the month of `date`; of a shorter month, the last day.
fn day_of_month(date: civil::Date, day: i8) -> Option<civil::Date> {
    date.with().day(day.min(date.days_in_month())).build().ok()
}

/// The number that this many digits mean.
fn digits(text: &str, count: RangeInclusive<usize>) -> Option<i8> {
    let is_digits = count.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_digits { text.parse().ok() } else { None }
}

fn weekdays() -> impl Iterator<Item = (&'static str, civil::Weekday)> {
    WEEKDAYS.into_iter().zip(civil::Weekday::Monday.cycle_forward())
}

impl CalendarStart {
    /// Where the spans of all calendars start that are not moved.
    const FIRST: Self =
        Self { month: 1, day: 1, weekday: civil::Weekday::Monday, time: civil::Time::midnight() };

    /// Reads the form of this unit.
    fn read(unit: Unit, text: &str) -> Option<Self> {
        let first = Self::FIRST;
        match unit {
            Unit::Week => {
                let (_, weekday) = weekdays().find(|(name, _)| name.eq_ignore_ascii_case(text))?;
                Some(Self { weekday, ..first })
            }
            Unit::Month => {
                let day = digits(text, 1..=2).filter(|day| (1..=31).contains(day))?;
                Some(Self { day, ..first })
            }
            Unit::Year => {
                let (month, day) = text.split_once('-')?;
                // In a leap year, since 29 February is a day.
                let date =
                    civil::Date::new(2024, digits(month, 2..=2)?, digits(day, 2..=2)?).ok()?;
                Some(Self { month: date.month(), day: date.day(), ..first })
            }
            _ => {
                let (hour, minute) = text.split_once(':')?;
                let time =
                    civil::Time::new(digits(hour, 2..=2)?, digits(minute, 2..=2)?, 0, 0).ok()?;
                Some(Self { time, ..first })
            }
        }
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

    /// As `check`, in a calendar that starts elsewhere.
    #[track_caller]
    fn check_moved(unit: Unit, zone: &str, starts: &str, [now, start, end]: [&str; 3]) {
        let calendar = Calendar::new(unit, zone).unwrap().starting(starts).unwrap();
        let span = calendar.at(utc(now)).unwrap();
        assert_eq!((span.start, span.end), (utc(start), utc(end)), "{calendar} at {now}");
    }

    #[test]
    fn a_moved_month_starts_on_the_last_day_of_months_that_are_shorter() {
        let (berlin, month) = ("Europe/Berlin", Unit::Month);
        for (starts, times) in [
            ("15", ["2026-03-14T22:59", "2026-02-14T23:00", "2026-03-14T23:00"]),
            ("15", ["2026-03-14T23:00", "2026-03-14T23:00", "2026-04-14T22:00"]),
            ("31", ["2026-02-27T22:59", "2026-01-30T23:00", "2026-02-27T23:00"]),
            ("31", ["2026-02-27T23:00", "2026-02-27T23:00", "2026-03-30T22:00"]),
            ("29", ["2028-02-28T23:00", "2028-02-28T23:00", "2028-03-28T22:00"]),
        ] {
            check_moved(month, berlin, starts, times);
        }
    }

    #[test]
    fn days_weeks_and_years_start_where_they_are_moved_to() {
        for (unit, zone, starts, times) in [
            (
                Unit::Day,
                "Europe/Berlin",
                "06:00",
                ["2026-06-01T03:59", "2026-05-31T04:00", "2026-06-01T04:00"],
            ),
            // 02:30 does not exist on 29 March, and occurs twice on 25 October.
            (
                Unit::Day,
                "Europe/Berlin",
                "02:30",
                ["2026-03-29T01:00", "2026-03-29T01:00", "2026-03-30T00:30"],
            ),
            (
                Unit::Day,
                "Europe/Berlin",
                "02:30",
                ["2026-10-25T01:00", "2026-10-25T00:30", "2026-10-26T01:30"],
            ),
            // Samoa has no 30 December 2011: its day starts with the 31st, and ends at six.
            (
                Unit::Day,
                "Pacific/Apia",
                "06:00",
                ["2011-12-30T10:00", "2011-12-30T10:00", "2011-12-30T16:00"],
            ),
            (
                Unit::Week,
                "America/New_York",
                "FRIDAY",
                ["2026-11-26T12:00", "2026-11-20T05:00", "2026-11-27T05:00"],
            ),
            (
                Unit::Year,
                "UTC",
                "04-01",
                ["2027-03-31T23:59", "2026-04-01T00:00", "2027-04-01T00:00"],
            ),
            (
                Unit::Year,
                "UTC",
                "02-29",
                ["2027-02-28T00:00", "2027-02-28T00:00", "2028-02-29T00:00"],
            ),
        ] {
            check_moved(unit, zone, starts, times);
        }
    }

    #[test]
    fn a_start_has_the_form_of_its_unit() {
        let starting = |unit, starts: &str| Calendar::new(unit, "UTC").unwrap().starting(starts);
        for (unit, good, bad) in [
            (Unit::Day, ["00:00", "23:59"], ["24:00", "6:00", "06:60", "+6:00", "06:00:00", "6"]),
            (Unit::Week, ["monday", "Sunday"], ["mon", "1", "", "06:00", "15", "04-01"]),
            (Unit::Month, ["1", "31"], ["0", "32", "-1", "+1", "015", "1.0"]),
            (
                Unit::Year,
                ["02-29", "12-31"],
                ["02-30", "13-01", "4-1", "2026-04-01", "00-01", "15"],
            ),
        ] {
            for text in good {
                assert!(starting(unit, text).is_some(), "{text}");
            }
            for text in bad {
                assert_eq!(starting(unit, text), None, "{text}");
            }
        }
    }

    #[test]
    fn every_instant_lies_in_one_span_and_spans_have_no_gaps() {
        for zone in ["America/Goose_Bay", "Pacific/Apia", "Africa/Cairo", "Asia/Beirut", "UTC"] {
            for (unit, starts) in [
                (Unit::Day, "00:00"),
                (Unit::Day, "00:30"),
                (Unit::Day, "23:30"),
                (Unit::Week, "monday"),
                (Unit::Week, "friday"),
                (Unit::Month, "1"),
                (Unit::Month, "30"),
                (Unit::Year, "01-01"),
                (Unit::Year, "12-31"),
            ] {
                let calendar = Calendar::new(unit, zone).unwrap().starting(starts).unwrap();
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
    fn a_calendar_is_shown_by_its_name_and_every_zone_is_listed() {
        let day = Calendar::new(Unit::Day, "Europe/Berlin").unwrap();
        assert_eq!(format!("{day:?}"), "Calendar(day@Europe/Berlin)");
        assert!(zone_names().contains(&"Europe/Berlin".to_owned()));
        assert!(zone_names().iter().all(|zone| Calendar::new(Unit::Day, zone).is_ok()));
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
