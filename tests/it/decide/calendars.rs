//! Calendars that start anywhere, against those that Python computes from its own time zones.

use std::fmt::Write as _;

use tollkeeper::engine::{
    calendar::Calendar,
    rule::Unit,
    time::{Span, Timestamp},
};

use crate::support::prelude::*;

/// With changes at midnight, by half an hour, over a whole day, and none.
const ZONES: [&str; 12] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Goose_Bay",
    "America/Sao_Paulo",
    "Africa/Cairo",
    "Asia/Beirut",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kiritimati",
];

const STARTS: [(Unit, &[&str]); 4] = [
    (Unit::Day, &["00:00", "00:01", "00:30", "01:59", "02:00", "02:30", "03:00", "06:00", "23:30"]),
    (Unit::Week, &["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]),
    (Unit::Month, &["1", "2", "15", "28", "29", "30", "31"]),
    (Unit::Year, &["01-01", "02-28", "02-29", "04-01", "10-31", "12-31"]),
];

/// Until then, the time zones of all systems are the same: both have a database of their own.
const FROM_1971_TO_2024: (u64, u64) = (365 * 86_400, 54 * 365 * 86_400);

#[test]
fn spans_that_start_anywhere_are_those_of_another_calendar() {
    let cases = number("CALENDAR_CASES", 100_000);
    let (mut dice, mut lines, mut ours) = (Dice(26), String::new(), Vec::new());
    for _ in 0..cases {
        let zone = ZONES[dice.below(ZONES.len() as u64) as usize];
        let (unit, starts) = STARTS[dice.below(STARTS.len() as u64) as usize];
        let starts = starts[dice.below(starts.len() as u64) as usize];
        let (from, to) = FROM_1971_TO_2024;
        let now = Timestamp::from_secs(from + dice.below(to - from));
        let calendar = Calendar::new(unit, zone).unwrap();
        // What is not moved starts there too.
        let is_first = ["00:00", "monday", "1", "01-01"].contains(&starts) && dice.below(2) == 0;
        let calendar = if is_first { calendar } else { calendar.starting(starts).unwrap() };
        let Span { end, .. } = calendar.at(now).unwrap();
        // Half of them near an end, where the clocks may change.
        let near = Timestamp::from_secs(end.as_secs() - 5400 + dice.below(10_800));
        let now = if dice.below(2) == 0 { now } else { near };
        let Span { start, end } = calendar.at(now).unwrap();
        writeln!(lines, "{zone} {} {starts} {}", unit.name(), now.as_secs()).unwrap();
        ours.push(format!("{} {}", start.as_secs(), end.as_secs()));
    }
    let file = TextFile::new("cases", &lines);
    let script = root().join("tests/support/calendars.py");
    let (code, theirs, stderr) = run(Command::new(tool("python")).arg(script).arg(&*file));
    assert_eq!((code, &*stderr), (Some(0), ""));
    assert_eq!(theirs.lines().count(), ours.len());
    let pairs = ours.iter().zip(theirs.lines()).zip(lines.lines());
    let different: Vec<_> = pairs.filter(|((ours, theirs), _)| ours != theirs).collect();
    assert_eq!(different.len(), 0, "of {cases} spans, ours and theirs: {:?}", different.first());
}
