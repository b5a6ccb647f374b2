//! The meaning of a scalar without quotes, as in envoyproxy/ratelimit's YAML library (YAML 1.1, with `0o` of
//! 1.2): `010` is eight, `yes` is true.

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Plain {
    Null,
    Switch(bool),
    Whole(Integer),
    /// Any other number, which may be infinite or not a number.
    Float(f64),
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integer {
    pub value: i128,
    /// Whether its digits, read as decimal, are another number: `010`.
    pub(super) looks_decimal: bool,
}

pub fn resolve(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            return Plain::Switch(true);
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            return Plain::Switch(false);
        }
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Plain::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Plain::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Plain::Float(f64::NAN),
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return Plain::Text;
    }
    let text = text.replace('_', "");
    if let Some(whole) = whole(&text) {
        return Plain::Whole(whole);
    }
    // Rust's parser would accept words as well: `+inf`, `-nan`.
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    match text.parse() {
        Ok(number) if is_decimal && f64::is_finite(number) => Plain::Float(number),
        _ => Plain::Text,
    }
}

/// A whole number of at most 64 bits, in any base.
fn whole(text: &str) -> Option<Integer> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, unsigned.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, unsigned.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, unsigned.get(2..)?),
        [b'0', _, ..] => (8, unsigned.get(1..)?),
        _ => (10, unsigned),
    };
    // Rust's parser would accept a second sign.
    if !digits.starts_with(|first: char| first.is_digit(radix)) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let looks_decimal = unsigned.parse().is_ok_and(|decimal: i128| decimal != magnitude);
    let value = if text.starts_with('-') { -magnitude } else { magnitude };
    Some(Integer { value, looks_decimal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_whole(text: &str, expected: i128) {
        match resolve(text) {
            Plain::Whole(whole) => assert_eq!(whole.value, expected, "for {text}"),
            other => panic!("{text} is {other:?}"),
        }
    }

    /// The values are the same as in gopkg.in/yaml.v2 2.4.0, which envoyproxy/ratelimit uses.
    #[test]
    fn numbers_have_the_values_that_envoyproxy_ratelimit_reads() {
        for (text, value) in [
            ("10", 10),
            ("010", 8),
            ("007", 7),
            ("00", 0),
            ("0o10", 8),
            ("0O10", 8),
            ("0x1F", 31),
            ("0X1f", 31),
            ("0b11", 3),
            ("0B11", 3),
            ("1_000", 1000),
            ("1_", 1),
            ("0_10", 8),
            ("0x_1", 1),
            ("+5", 5),
            ("-0", 0),
            ("-1", -1),
            ("+010", 8),
            ("-0x1", -1),
            ("18446744073709551615", i128::from(u64::MAX)),
        ] {
            check_whole(text, value);
        }
        for text in ["_1", "0b", "0x", "1:30", "five", "+", "--5", "+-5", "0x+5", "1e", "."] {
            assert_eq!(resolve(text), Plain::Text, "for {text}");
        }
        for (text, value) in
            [("1e3", 1e3), ("1.0", 1.0), ("10.", 10.0), (".5", 0.5), ("08", 8.0), ("1_0.5", 10.5)]
        {
            assert_eq!(resolve(text), Plain::Float(value), "for {text}");
        }
        assert_eq!(resolve("1e2147"), Plain::Text);
        assert_eq!(resolve("-.INF"), Plain::Float(f64::NEG_INFINITY));
        assert_eq!(resolve("inf"), Plain::Text);
    }

    #[test]
    fn an_octal_number_looks_decimal_only_if_its_digits_read_as_decimal_are_another_number() {
        assert!(looks_decimal("010") && looks_decimal("0_17"));
        for text in ["10", "007", "0o10", "0x10", "0b11", "1_000", "0"] {
            assert!(!looks_decimal(text), "{text}");
        }
    }

    fn looks_decimal(text: &str) -> bool {
        match resolve(text) {
            Plain::Whole(whole) => whole.looks_decimal,
            _ => false,
        }
    }

    #[test]
    fn booleans_and_null_are_read_in_three_spellings_only() {
        for text in ["yes", "Yes", "YES", "on", "y", "Y", "true"] {
            assert_eq!(resolve(text), Plain::Switch(true), "{text}");
        }
        for text in ["tRUE", "yEs", "oN", "nil", "none", "NUll"] {
            assert_eq!(resolve(text), Plain::Text, "{text}");
        }
        for text in ["", "~", "null", "Null", "NULL"] {
            assert_eq!(resolve(text), Plain::Null, "{text}");
        }
    }
}
