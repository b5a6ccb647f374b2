//! The caller's span, from the headers of its call: W3C `traceparent`, or B3 in one header or in several.
//! Nothing is allocated.

use http::HeaderMap;
use opentelemetry::trace::{SpanId, TraceId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagator {
    /// `traceparent` and `tracestate`.
    TraceContext,
    /// `b3`, or `x-b3-traceid` and its siblings.
    B3,
}

/// The trace that the headers of a call name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) span: Option<(TraceId, SpanId)>,
    pub(super) flag: SampledFlag,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SampledFlag {
    Sampled,
    NotSampled,
    /// Nothing: it leaves the decision to others.
    #[default]
    Absent,
}

/// A longer trace header is as if absent, which W3C allows from here on. A client may write megabytes into
/// its `tracestate`, and every span of the call would hold and export them.
const TRACE_HEADER_BYTES_MAX: usize = 512;

/// The caller's span by the first of `propagators` that finds one.
pub(super) fn caller(headers: &HeaderMap, propagators: &[Propagator]) -> Caller {
    for propagator in propagators {
        let found = match propagator {
            Propagator::TraceContext => trace_context(headers),
            Propagator::B3 => b3(headers).or_else(|| b3_multi(headers)),
        };
        if let Some(found) = found {
            return found;
        }
    }
    Caller::default()
}

/// A header of the trace, unless it is too long or not ASCII.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<&'a str> {
    let value = headers.get(name)?.to_str().ok()?;
    (value.len() <= TRACE_HEADER_BYTES_MAX).then_some(value)
}

/// <https://www.w3.org/TR/trace-context/#traceparent-header>
fn trace_context(headers: &HeaderMap) -> Option<Caller> {
    let mut parts = header(headers, "traceparent")?.split('-');
    let [version] = hex(parts.next()?)?;
    let span = ids(parts.next()?, parts.next()?)?;
    let [flags] = hex(parts.next()?)?;
    // Later versions may add parts.
    let is_known = version != 0xff && (version != 0 || parts.next().is_none());
    let flag = if flags & 1 == 1 { SampledFlag::Sampled } else { SampledFlag::NotSampled };
    is_known.then_some(Caller { span: Some(span), flag })
}

/// `b3: TRACE-SPAN-FLAG-PARENT`, of which the last two may be absent, or the flag alone.
fn b3(headers: &HeaderMap) -> Option<Caller> {
    let text = header(headers, "b3")?;
    let mut parts = text.split('-');
    let (first, second) = (parts.next()?, parts.next());
    let Some(second) = second else { return Some(Caller { span: None, flag: b3_flag(first)? }) };
    let flag = match parts.next() {
        Some(flag) => b3_flag(flag)?,
        None => SampledFlag::Absent,
    };
    Some(Caller { span: Some(ids(first, second)?), flag })
}

fn b3_multi(headers: &HeaderMap) -> Option<Caller> {
    let flag = match (header(headers, "x-b3-flags"), header(headers, "x-b3-sampled")) {
        (Some("1"), _) => SampledFlag::Sampled,
        (_, Some(flag)) => b3_flag(flag)?,
        (_, None) => SampledFlag::Absent,
    };
    match (header(headers, "x-b3-traceid"), header(headers, "x-b3-spanid")) {
        (Some(trace), Some(span)) => Some(Caller { span: Some(ids(trace, span)?), flag }),
        _ if flag == SampledFlag::Absent => None,
        _ => Some(Caller { span: None, flag }),
    }
}

fn b3_flag(text: &str) -> Option<SampledFlag> {
    match text {
        "1" | "d" | "true" => Some(SampledFlag::Sampled),
        "0" | "false" => Some(SampledFlag::NotSampled),
        _ => None,
    }
}

/// The ids of a span, neither of which is 0. A trace id of 16 digits is one of B3 with 64 bits.
fn ids(trace: &str, span: &str) -> Option<(TraceId, SpanId)> {
    let trace = match trace.len() {
        16 => u128::from(u64::from_be_bytes(hex(trace)?)),
        _ => u128::from_be_bytes(hex(trace)?),
    };
    let span = u64::from_be_bytes(hex(span)?);
    (trace != 0 && span != 0).then(|| (TraceId::from(trace), SpanId::from(span)))
}

/// Exactly `N` bytes in lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4) | digit(*low)?;
    }
    Some(bytes)
}

const fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    /// The caller in these headers, written `name: value` and separated by newlines.
    fn read(headers: &str) -> Caller {
        let mut map = HeaderMap::new();
        for line in headers.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            let name = http::HeaderName::try_from(name).unwrap();
            map.insert(name, value.parse().unwrap());
        }
        caller(&map, &[Propagator::TraceContext, Propagator::B3])
    }

    #[track_caller]
    fn check(headers: &str, expected: &str, flag: SampledFlag) {
        let found = read(headers);
        let span = found.span.map(|(trace, span)| format!("{trace}-{span}"));
        assert_eq!((span.as_deref().unwrap_or(""), found.flag), (expected, flag), "{headers}");
    }

    #[test]
    fn the_callers_span_is_read_from_each_form_of_header() {
        use SampledFlag::{Absent, NotSampled, Sampled};
        let span = format!("{TRACE}-{SPAN}");
        check(&format!("traceparent: 00-{span}-01"), &span, Sampled);
        check(&format!("traceparent: 00-{span}-00"), &span, NotSampled);
        check(&format!("traceparent: cc-{span}-01-more"), &span, Sampled);
        check(&format!("b3: {span}"), &span, Absent);
        check(&format!("b3: {span}-1"), &span, Sampled);
        check(&format!("b3: {span}-d-{SPAN}"), &span, Sampled);
        check(&format!("b3: {span}-0"), &span, NotSampled);
        check("b3: 0", "", NotSampled);
        let multi = format!("x-b3-traceid: {TRACE}\nx-b3-spanid: {SPAN}");
        check(&multi, &span, Absent);
        check(&format!("{multi}\nx-b3-sampled: 1"), &span, Sampled);
        check(&format!("{multi}\nx-b3-sampled: 0"), &span, NotSampled);
        check(&format!("{multi}\nx-b3-sampled: 0\nx-b3-flags: 1"), &span, Sampled);
        check("x-b3-sampled: 0", "", NotSampled);
        let short = format!("{:0>32}-{SPAN}", &TRACE[16..]);
        check(&format!("b3: {}-{SPAN}-1", &TRACE[16..]), &short, Sampled);
        check(&format!("traceparent: 00-{span}-00\nb3: {SPAN}-{SPAN}-1"), &span, NotSampled);
    }

    #[test]
    fn a_malformed_header_is_as_if_absent() {
        let zero = "0".repeat(32);
        for text in [
            String::new(),
            "00".into(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{zero}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zero[16..]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}é-{SPAN}-01"),
        ] {
            check(&format!("traceparent: {text}"), "", SampledFlag::Absent);
        }
        for text in ["2", "-", "1-1", &format!("{TRACE}-{SPAN}-2"), &format!("{zero}-{SPAN}-1")] {
            check(&format!("b3: {text}"), "", SampledFlag::Absent);
        }
        check(&format!("x-b3-traceid: {TRACE}"), "", SampledFlag::Absent);
    }
}
