//! Calls over gRPC: messages, framing, and headers.

use ::http::{HeaderName, HeaderValue, Request};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use tonic::{Code, Status, body::Body};
use tower::Service as _;

use super::framed;
use crate::support::{http2::METHOD_PATH, prelude::*, rows::rows, service::*};

const ROWS: &str = include_str!("calls.txt");

type Headers<'a> = &'a [(&'a str, &'a [u8])];

type Case = (&'static str, RateLimitRequest, &'static str);

/// Requests. What an end user can influence is answered, whatever it is; each on a counter of its own.
fn requests() -> Vec<Case> {
    let of = |value: &str| descriptor(&[("user", value)]);
    let bytes = |value: &[u8]| of_bytes(&[(b"user", value)]);
    let one = |descriptor: RateLimitDescriptor| request("shop", vec![descriptor]);
    let raw_unit = |unit: i32| {
        let mut overridden = with_limit(of(&format!("unit {unit}")), 5, RateLimitUnit::Day);
        overridden.limit.as_mut().unwrap().unit = unit;
        one(overridden)
    };
    let multiplied = |multiplier: u32, unit| {
        let mut overridden = with_limit(of(&format!("times {multiplier}")), 5, unit);
        overridden.limit.as_mut().unwrap().unit_multiplier = Some(multiplier);
        one(overridden)
    };
    let call_hits = |hits_addend: u32| RateLimitRequest {
        hits_addend,
        ..one(of(&format!("call of {hits_addend}")))
    };
    vec![
        (
            "an_empty_domain",
            request("", vec![of("a")]),
            "InvalidArgument: domain: must not be empty",
        ),
        ("no_descriptors", request("shop", vec![]), "InvalidArgument: descriptors: at least 1"),
        (
            "65_descriptors",
            request("shop", vec![RateLimitDescriptor::default(); 65]),
            "InvalidArgument: descriptors: 65 exceeds 64",
        ),
        (
            "100000_descriptors",
            request("shop", vec![RateLimitDescriptor::default(); 100_000]),
            "InvalidArgument: descriptors: 100000 exceeds 64",
        ),
        ("a_descriptor_without_entries", one(RateLimitDescriptor::default()), "OK: OK -"),
        ("32_entries", one(descriptor(&[("user", "a"); 32])), "OK: OK -"),
        (
            "33_entries",
            one(descriptor(&[("user", "a"); 33])),
            "InvalidArgument: descriptors[0].entries: 33 exceeds 32",
        ),
        (
            "33_entries_of_the_third_descriptor",
            request("shop", vec![of("b"), of("c"), descriptor(&[("user", "a"); 33])]),
            "InvalidArgument: descriptors[2].entries: 33 exceeds 32",
        ),
        (
            "an_empty_key",
            one(descriptor(&[("", "marker-value")])),
            "InvalidArgument: descriptors[0].entries[0].key: must not be empty",
        ),
        (
            "an_empty_second_key",
            one(descriptor(&[("user", "a"), ("", "b")])),
            "InvalidArgument: descriptors[0].entries[1].key: must not be empty",
        ),
        (
            "an_empty_key_of_the_second_descriptor",
            request("shop", vec![of("b"), descriptor(&[("", "b")])]),
            "InvalidArgument: descriptors[1].entries[0].key: must not be empty",
        ),
        ("an_unknown_key", one(descriptor(&[("marker-value", "a")])), "OK: OK -"),
        ("a_key_that_is_not_utf_8", one(of_bytes(&[(b"\xff\xfe", b"a")])), "OK: OK -"),
        ("a_key_of_100000_bytes", one(of_bytes(&[(&[b'k'; 100_000], b"a")])), "OK: OK -"),
        ("the_same_key_twice", one(descriptor(&[("user", "d"), ("user", "e")])), "OK: OK -"),
        (
            "the_same_descriptor_twice",
            request("shop", vec![of("twice"), of("twice")]),
            "OK: OK 8/10 YEAR, OK 8/10 YEAR",
        ),
        ("a_value_that_is_not_utf_8", one(bytes(b"\xff\xfe\x80")), "OK: OK 9/10 YEAR"),
        ("half_a_character", one(bytes(b"\xe2\x82")), "OK: OK 9/10 YEAR"),
        (
            "a_message_1_byte_too_long",
            one(of(&"v".repeat((4 << 20) - 22))),
            "OutOfRange: message: 4194309 bytes exceeds 4194304",
        ),
        ("hits_of_the_call_absent", one(of("absent")), "OK: OK 9/10 YEAR"),
        ("hits_of_the_call_over_the_limit", call_hits(11), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("hits_of_the_call_at_32_bits", call_hits(u32::MAX), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        (
            "hits_whose_sum_overflows",
            request("shop", vec![hits(of("sum"), u64::MAX), hits(of("sum"), u64::MAX)]),
            "OVER_LIMIT: OVER_LIMIT 0/10 YEAR, OVER_LIMIT 0/10 YEAR",
        ),
        (
            "a_debit_at_64_bits",
            one(hits(descriptor(&[("tokens", "a")]), u64::MAX)),
            "OVER_LIMIT: OVER_LIMIT 0/1000 YEAR",
        ),
        ("a_refund_of_nothing", one(refund(of("refund 0"), 0)), "OK: OK 10/10 YEAR"),
        ("a_refund_of_more_than_was_used", one(refund(of("refund 5"), 5)), "OK: OK 10/10 YEAR"),
        ("a_refund_at_64_bits", one(refund(of("refund all"), u64::MAX)), "OK: OK 10/10 YEAR"),
        (
            "an_override_of_0",
            one(with_limit(of("none"), 0, RateLimitUnit::Day)),
            "OVER_LIMIT: OVER_LIMIT 0/0 DAY",
        ),
        (
            "an_override_at_32_bits",
            one(with_limit(of("most"), u32::MAX, RateLimitUnit::Day)),
            "OK: OK 4294967294/4294967295 DAY",
        ),
        ("an_override_with_the_unit_0", raw_unit(0), "OK: OK 9/10 YEAR"),
        ("an_override_with_the_unit_99", raw_unit(99), "OK: OK 9/10 YEAR"),
        ("an_override_with_the_unit_minus_1", raw_unit(-1), "OK: OK 9/10 YEAR"),
        (
            "an_override_with_a_multiplier_of_0",
            multiplied(0, RateLimitUnit::Day),
            "OK: OK 9/10 YEAR",
        ),
        ("an_override_over_100_years", multiplied(101, RateLimitUnit::Year), "OK: OK 9/10 YEAR"),
        (
            "an_override_at_32_bits_of_years",
            multiplied(u32::MAX, RateLimitUnit::Year),
            "OK: OK 9/10 YEAR",
        ),
        (
            "an_override_of_an_unlimited_rule",
            one(with_limit(descriptor(&[("free", "a")]), 0, RateLimitUnit::Day)),
            "OVER_LIMIT: OVER_LIMIT 0/0 DAY",
        ),
        (
            "an_override_without_a_rule",
            one(with_limit(descriptor(&[("unknown", "a")]), 0, RateLimitUnit::Day)),
            "OVER_LIMIT: OVER_LIMIT 0/0 DAY",
        ),
    ]
}

/// Bodies of calls that succeed, in this order.
fn bodies() -> Vec<(Vec<u8>, &'static str)> {
    let good = request("shop", vec![descriptor(&[("user", "in a frame")])]).encode_to_vec();
    let nested = |depth: usize| [[0x4b].repeat(depth), [0x4c].repeat(depth), good.clone()].concat();
    let deep = "Internal: failed to decode Protobuf message: recursion limit reached";
    vec![
        // Two messages; bytes after the message; groups in groups; an unknown field; a repeated domain.
        ([framed(&good), framed(&good)].concat(), "OK: OK 9/10 YEAR"),
        ([framed(&good), b"abc".to_vec()].concat(), "OK: OK 8/10 YEAR"),
        (framed(&nested(99)), "OK: OK 7/10 YEAR"),
        (framed(&nested(101)), deep),
        (framed(&nested(1_000_000)), deep),
        (framed(&[b"\x9a\x06\x03abc", &good[..]].concat()), "OK: OK 6/10 YEAR"),
        (framed(&[b"\x0a\x01x", &good[..]].concat()), "OK: OK 5/10 YEAR"),
    ]
}

/// Bytes of a text whose characters have their numbers.
fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|character| character as u8).collect()
}

/// The answer as text: as [`spell`] writes it, or the code and message of an error.
async fn answer(channel: &mut Channel, path: &str, headers: Headers<'_>, body: Vec<u8>) -> String {
    let body = Body::new(Full::new(Bytes::from(body)));
    let mut request =
        Request::post(path).header("content-type", "application/grpc").body(body).unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value).unwrap(),
        );
    }
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let (head, body) = channel.call(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    let status = Status::from_header_map(&head.headers)
        .or_else(|| Status::from_header_map(body.trailers()?))
        .expect("a status");
    if status.code() != Code::Ok {
        return format!("{:?}: {}", status.code(), status.message());
    }
    spell(&RateLimitResponse::decode(&body.to_bytes()[5..]).unwrap())
}

async fn connect(service: &Service) -> Channel {
    Channel::from_shared(format!("http://{}", service.grpc)).unwrap().connect().await.unwrap()
}

#[track_caller]
fn check_outputs(service: &Service) {
    let (log, metrics) = (service.log(), service.get("/metrics"));
    assert!(!(log.clone() + &metrics).contains("marker-value"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn a_bad_request_gets_its_code_and_message_and_a_strange_one_a_decision() {
    let service = Service::shop().start();
    let mut channel = connect(&service).await;
    let mut check = async |name: &str, request: RateLimitRequest, expected: &str| {
        let answer = answer(&mut channel, METHOD_PATH, &[], framed(&request.encode_to_vec())).await;
        assert_eq!(answer, expected, "{name}");
    };
    let user = |value: &str| descriptor(&[("user", value)]);
    for [name, domain] in rows(ROWS, "domains") {
        check(&name, request(&domain, vec![user("a")]), "OK: OK -").await;
    }
    for [name, value] in rows(ROWS, "values") {
        check(&name, request("shop", vec![user(&value)]), "OK: OK 9/10 YEAR").await;
    }
    for [count, expected] in rows(ROWS, "hits") {
        let charged = hits(user(&count), count.parse().unwrap());
        check(&count, request("shop", vec![charged]), &expected).await;
    }
    for (name, request, expected) in requests() {
        check(name, request, expected).await;
    }
    check_outputs(&service);
}

#[tokio::test]
async fn a_bad_body_or_header_gets_its_code_and_message() {
    let service = Service::shop().start();
    let mut channel = connect(&service).await;
    let mut check =
        async |name: &str, path: &str, headers: Headers<'_>, body: Vec<u8>, expected: &str| {
            assert_eq!(answer(&mut channel, path, headers, body).await, expected, "{name}");
        };
    for [name, body, expected] in rows(ROWS, "bodies") {
        check(&name, METHOD_PATH, &[], bytes(&body), &expected).await;
    }
    for [name, message, problem] in rows(ROWS, "messages") {
        let expected = format!("Internal: failed to decode Protobuf message: {problem}");
        check(&name, METHOD_PATH, &[], framed(&bytes(&message)), &expected).await;
    }
    for (body, expected) in bodies() {
        check(expected, METHOD_PATH, &[], body, expected).await;
    }
    let good = framed(&request("shop", vec![descriptor(&[("free", "a")])]).encode_to_vec());
    for [name, path, expected] in rows(ROWS, "paths") {
        check(&name, &path, &[], good.clone(), &expected).await;
    }
    for [name, header, value] in rows(ROWS, "headers") {
        let headers = [(&*header, &*bytes(&value))];
        check(&name, METHOD_PATH, &headers, good.clone(), "OK: OK unlimited").await;
    }
    check_outputs(&service);
}
