//! How the values of settings are written: addresses, times, sizes and the like.
//!
//! Each reader says in its error what would be right.

use std::{net::SocketAddr, time::Duration};

use tracing::level_filters::LevelFilter;

use crate::engine::rule::OnStoreFailure;

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is no IP address and port, such as 127.0.0.1:8081"))
}

pub(super) fn whole<T: TryFrom<u64>>(text: &str, min: u64, max: u64) -> Result<T, String> {
    // Rust would read a `+` as well.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && (min..=max).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("`{text}` is no whole number from {min} to {max}"))
}

pub(crate) fn time(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let refuse = || format!("`{text}` is no time from {min:?} to {max:?}, such as 15ms, 5s or 2m");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(refuse()),
    };
    let time = number.parse().ok().and_then(|number| millis.checked_mul(number));
    let time = time.map(Duration::from_millis).filter(|time| (min..=max).contains(time));
    time.ok_or_else(refuse)
}

pub(super) fn on_store_failure(text: &str) -> Result<OnStoreFailure, String> {
    let mode = OnStoreFailure::ALL.into_iter().find(|mode| mode.name() == text);
    mode.ok_or_else(|| {
        let names = OnStoreFailure::ALL.map(OnStoreFailure::name).join(", ");
        format!("`{text}` is none of {names}")
    })
}

/// Whether the classic headers, and whether the draft's.
pub(super) fn headers(text: &str) -> Result<(bool, bool), String> {
    match text {
        "none" => Ok((false, false)),
        "ratelimit" => Ok((true, false)),
        "draft" => Ok((false, true)),
        "both" => Ok((true, true)),
        _ => Err(format!("`{text}` is none of none, ratelimit, draft, both")),
    }
}

pub(super) fn header_name(text: &str) -> Result<String, String> {
    let name = text.parse::<http::HeaderName>();
    name.map(|_| text.to_owned()).map_err(|_| format!("`{text}` is no name of a header"))
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let signed = text.starts_with('+');
    let ratio = text.parse().ok().filter(|ratio| !signed && (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| format!("`{text}` is no number from 0 to 1, such as 0.8"))
}

pub(super) fn key_prefix(text: &str) -> Result<String, String> {
    let visible = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
    match text.len() <= 64 && text.bytes().all(visible) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is not at most 64 bytes of visible ASCII without braces")),
    }
}

pub(super) fn size(text: &str) -> Result<usize, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let bytes: Option<usize> = match unit {
        "" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        _ => None,
    };
    let size = bytes.and_then(|bytes| number.parse().ok().and_then(|it| bytes.checked_mul(it)));
    size.filter(|size| (1 << 10..=64 << 20).contains(size))
        .ok_or_else(|| format!("`{text}` is no size from 1KiB to 64MiB"))
}

pub(super) fn truth(text: &str) -> Result<bool, String> {
    match text {
        "true" | "on" => Ok(true),
        "false" | "off" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

pub(super) fn log_level(text: &str) -> Result<LevelFilter, String> {
    match text {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        _ => Err(format!("`{text}` is none of error, warn, info, debug, off")),
    }
}

pub(super) fn log_format(text: &str) -> Result<bool, String> {
    match text {
        "json" => Ok(true),
        "text" => Ok(false),
        _ => Err(format!("`{text}` is neither text nor json")),
    }
}
