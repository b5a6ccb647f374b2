//! Values as Go programs read them from the environment.

use std::time::Duration;

/// A truth value: `1`, `t`, `T`, `true`, `True`, `TRUE`, and the same of false.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Some(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// A whole number. Go reads `010` as 8, which is refused here: its writer may have meant ten.
pub(super) fn number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_octal = digits.len() > 1 && digits.starts_with('0');
    text.parse().ok().filter(|_| is_decimal && !is_octal)
}

/// A number, which may have a fraction. Infinity and "not a number" are refused.
pub(super) fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Units of time in nanoseconds. Go accepts two characters for `micro`.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Go counts nanoseconds in 63 bits.
const NANOS_MAX: u128 = i64::MAX as u128;

/// A duration that is not negative: `0`, or numbers with units, such as `10s`, `1h30m` or `1.5s`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos: u128 = 0;
    loop {
        let (part, after) = first_part(rest)?;
        nanos = nanos.checked_add(part).filter(|nanos| *nanos <= NANOS_MAX)?;
        if after.is_empty() {
            break;
        }
        rest = after;
    }
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// The nanoseconds of the first number with its unit, and what follows it.
fn first_part(text: &str) -> Option<(u128, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let name_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(name_end);
    let (_, unit) = UNITS.into_iter().find(|(known, _)| *known == name)?;
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    Some((whole.checked_mul(unit)?.checked_add(nanos_of_fraction(fraction, unit))?, rest))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// A part of a unit, rounded down. Digits beyond the eighteenth are less than a nanosecond of any unit.
fn nanos_of_fraction(digits: &str, unit: u128) -> u128 {
    let (mut part, mut scale) = (0_u128, 1_u128);
    for digit in digits.bytes().take(18) {
        part = part * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    part * unit / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_values_are_those_of_go() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(boolean(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(boolean(text), Some(false), "{text}");
        }
        for text in ["", "tRUE", "yes", "no", "on", "off", "2", " true", "y"] {
            assert_eq!(boolean(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, nanos) in [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("0.000000001s", 1),
            ("0.100000000000000000000h", 360_000_000_000),
            ("3ns", 3),
            ("3us", 3_000),
            ("3\u{b5}s", 3_000),
            ("3\u{3bc}s", 3_000),
            ("10ms", 10_000_000),
            ("0h0m1s", 1_000_000_000),
            ("2562047h47m16.854775807s", i64::MAX as u64),
        ] {
            assert_eq!(duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        let too_long = ["2562047h47m16.854775808s", "99999999999999999999999999999999999999999h"];
        let malformed =
            ["", "+", "10", "s", ".s", ".", "-5s", "--5s", "5 s", "5S", "5d", "5s5", "1e3s"];
        for text in ["1h 30m"].into_iter().chain(malformed).chain(too_long) {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_fraction_is_finite() {
        for (text, number) in [("0", 0.0), ("+.5", 0.5), ("1e3", 1000.0), ("-1", -1.0)] {
            assert_eq!(fraction(text), Some(number), "{text}");
        }
        for text in ["", "inf", "NaN", "80%", "0,8"] {
            assert_eq!(fraction(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_that_go_would_read_as_octal_is_refused() {
        for (text, number) in [("0", 0), ("8081", 8081), ("+5", 5), ("-1", -1)] {
            assert_eq!(super::number(text), Some(number), "{text}");
        }
        for text in ["", "010", "0x10", "1_000", "1.0", "1e3", "+", "99999999999999999999"] {
            assert_eq!(super::number(text), None, "{text}");
        }
    }
}
