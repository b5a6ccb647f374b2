//! Lengths of time as people write them in settings, flags and rule files.

use std::time::Duration;

const DAY_MS: u64 = 86_400_000;

/// Units of time in milliseconds, longest first.
const UNITS: [(&str, u64); 5] =
    [("d", DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a duration such as `15ms`, `5s`, `2m`, `1h30m` or `7d`.
///
/// # Errors
/// A sentence with the allowed durations. It has no more of `text` than a duration that may have been meant.
pub fn duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let read = |text: &str| {
        let duration = millis(text).map(Duration::from_millis);
        duration.filter(|duration| (min..=max).contains(duration))
    };
    read(text).ok_or_else(|| {
        let unit = if max > Duration::from_secs(60) { "s" } else { "ms" };
        let mut meant = text.replace(' ', "").to_lowercase();
        if meant.bytes().all(|byte| byte.is_ascii_digit()) {
            meant += unit;
        }
        let hint = read(&meant).map(|_| format!("; did you mean {meant}?")).unwrap_or_default();
        let (min, max) = (spelled(min), spelled(max));
        format!("must be a duration from {min} to {max}{hint}")
    })
}

/// The sum of numbers with units, each unit at most once, longest first.
fn millis(text: &str) -> Option<u64> {
    let (mut sum, mut rest, mut units) = (0_u64, text, UNITS.into_iter());
    loop {
        let (number, after) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
        let name_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (name, after) = after.split_at(name_end);
        let (_, unit) = units.find(|(known, _)| *known == name)?;
        sum = sum.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        if after.is_empty() {
            return Some(sum);
        }
        rest = after;
    }
}

/// Writes a duration of whole milliseconds as [`duration`] reads it, in days only if it has several.
pub fn spelled(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let is_long = millis > DAY_MS;
    for (name, unit) in UNITS.into_iter().skip(usize::from(!is_long)) {
        if millis >= unit && millis.is_multiple_of(unit) {
            return format!("{}{name}", millis / unit);
        }
    }
    "0s".to_owned()
}

/// The whole seconds in which a duration has ended: its seconds, rounded up.
pub fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// Seconds in the two longest units that fit, such as `4 h 37 min`.
pub fn in_words(seconds: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let index = UNITS.iter().position(|(_, unit)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let mut rest = seconds;
    let mut words = Vec::new();
    for (name, unit) in UNITS.iter().skip(index).take(2) {
        let number = rest / unit;
        rest %= unit;
        if number > 0 || words.is_empty() {
            words.push(format!("{number} {name}"));
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_said_in_the_two_longest_units() {
        for (seconds, expected) in [
            (0, "0 s"),
            (42, "42 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3_600, "1 h"),
            (16_629, "4 h 37 min"),
            (86_399, "23 h 59 min"),
            (86_460, "1 d"),
            (31_536_000, "365 d"),
        ] {
            assert_eq!(in_words(seconds), expected);
        }
    }

    #[test]
    fn what_is_no_duration_or_out_of_range_is_refused_with_one_that_may_have_been_meant() {
        let minute = ("1ms", "1m");
        let week = ("1s", "7d");
        for ((min, max), text, expected) in [
            (minute, "1ms", Ok(1)),
            (minute, "60s", Ok(60_000)),
            (minute, "0ms", Err("from 1ms to 1m")),
            (minute, "60001ms", Err("from 1ms to 1m")),
            (minute, "soon", Err("from 1ms to 1m")),
            (minute, "5", Err("from 1ms to 1m; did you mean 5ms?")),
            (minute, "60001", Err("from 1ms to 1m")),
            (minute, "1 M", Err("from 1ms to 1m; did you mean 1m?")),
            (week, "7d", Ok(604_800_000)),
            (week, "5", Err("from 1s to 7d; did you mean 5s?")),
            (("1s", "1m"), "2000", Err("from 1s to 1m; did you mean 2000ms?")),
        ] {
            let [min, max] = [min, max].map(|text| Duration::from_millis(millis(text).unwrap()));
            let expected = expected.map(Duration::from_millis);
            let expected = expected.map_err(|range| format!("must be a duration {range}"));
            assert_eq!(duration(text, min, max), expected, "{text}");
        }
    }

    #[test]
    fn a_part_of_a_second_is_a_second() {
        for (millis, seconds) in [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)] {
            assert_eq!(seconds_up(Duration::from_millis(millis)), seconds);
        }
    }

    #[test]
    fn a_duration_is_written_in_the_longest_unit_that_leaves_no_rest_and_one_day_in_hours() {
        for (millis, expected) in [
            (0, "0s"),
            (1, "1ms"),
            (1_000, "1s"),
            (1_500, "1500ms"),
            (60_000, "1m"),
            (90_000, "90s"),
            (3_600_000, "1h"),
            (86_400_000, "24h"),
            (90_000_000, "25h"),
            (604_800_000, "7d"),
        ] {
            assert_eq!(spelled(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn a_duration_is_a_sum_of_numbers_with_units_the_longest_first() {
        for (text, expected) in [
            ("15ms", Some(15)),
            ("007s", Some(7_000)),
            ("90m", Some(5_400_000)),
            ("1h30m", Some(5_400_000)),
            ("1h2m3s4ms", Some(3_723_004)),
            ("7d", Some(604_800_000)),
            ("1d12h", Some(129_600_000)),
            ("0s", Some(0)),
            ("0m5s", Some(5_000)),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
        let malformed =
            ["", "5", "s", "5w", "2h1d", "-1s", "+1s", "1.5s", "30m1h", "1m1m", "1h 30m"];
        for wrong in malformed.into_iter().chain(["99999999999999999h"]) {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
    }
}
