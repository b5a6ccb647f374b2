//! How long a caller waits: `grpc-timeout`, which Envoy sends.
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use std::time::Duration;

use http::HeaderMap;

const DIGITS_MAX: usize = 8;

/// The timeout in these headers; `None` without one, or if it is malformed.
pub fn of(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get("grpc-timeout")?.to_str().ok()?)
}

fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.len() > DIGITS_MAX || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(3600 * number)),
        "M" => Some(Duration::from_secs(60 * number)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_up_to_eight_digits_and_a_unit() {
        for (text, expected) in [
            ("20m", Some(Duration::from_millis(20))),
            ("0n", Some(Duration::ZERO)),
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("4u", Some(Duration::from_micros(4))),
            ("100000000m", None),
            ("20", None),
            ("m", None),
            ("", None),
            ("-1m", None),
            ("+1m", None),
            ("1 m", None),
            ("1ms", None),
            ("1\u{b5}", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
