//! Calls over gRPC: messages, framing, and headers.

use ::http::{HeaderValue, Request};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use tollkeeper_proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitUnit};
use tonic::{Code, Status, body::Body, transport::Channel};
use tower::Service as _;

use super::{Table, framed};
use crate::support::{
    http2::METHOD_PATH,
    service::{Options, Service, descriptor, hits, of_bytes, refund, request, spell, with_limit},
};

type Case = (&'static str, RateLimitRequest, &'static str);

/// The largest number of hits that a store counts: Lua's numbers are exact up to it.
const MAX: u64 = (1 << 53) - 1;

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
        ("an_unknown_domain", request("marker-value", vec![of("a")]), "OK: OK -"),
        ("a_nul_as_domain", request("\0", vec![of("a")]), "OK: OK -"),
        ("braces_as_domain", request("{x}", vec![of("a")]), "OK: OK -"),
        ("line_ends_in_the_domain", request("a\r\nb", vec![of("a")]), "OK: OK -"),
        ("an_escape_sequence_as_domain", request("\x1b[31m", vec![of("a")]), "OK: OK -"),
        ("a_domain_of_1_mb", request(&"d".repeat(1_000_000), vec![of("a")]), "OK: OK -"),
        ("a_domain_that_ends_in_a_space", request("shop ", vec![of("a")]), "OK: OK -"),
        ("a_domain_in_upper_case", request("SHOP", vec![of("a")]), "OK: OK -"),
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
        ("an_empty_value", one(of("")), "OK: OK 9/10 YEAR"),
        ("a_value_that_is_not_utf_8", one(bytes(b"\xff\xfe\x80")), "OK: OK 9/10 YEAR"),
        ("half_a_character", one(bytes(b"\xe2\x82")), "OK: OK 9/10 YEAR"),
        ("a_nul_as_value", one(bytes(b"\0")), "OK: OK 9/10 YEAR"),
        ("line_ends_in_a_value", one(of("a\r\nEvil: 1")), "OK: OK 9/10 YEAR"),
        ("an_escape_sequence_as_value", one(of("\x1b[31m")), "OK: OK 9/10 YEAR"),
        ("the_separators_of_keys", one(of("|=%{}~*:_")), "OK: OK 9/10 YEAR"),
        ("an_escape_of_keys", one(of("%7C")), "OK: OK 9/10 YEAR"),
        ("the_form_of_a_digest", one(of("%~0123456789abcdef0123456789abcdef")), "OK: OK 9/10 YEAR"),
        ("a_closed_hash_tag", one(of("}:1795215600{")), "OK: OK 9/10 YEAR"),
        ("text_from_right_to_left", one(of("\u{202e}abc")), "OK: OK 9/10 YEAR"),
        ("a_character_of_4_bytes", one(of("😀")), "OK: OK 9/10 YEAR"),
        ("a_composed_letter", one(of("\u{e9}")), "OK: OK 9/10 YEAR"),
        ("the_same_letter_in_two_parts", one(of("e\u{301}")), "OK: OK 9/10 YEAR"),
        ("a_value_of_128_bytes", one(of(&"v".repeat(128))), "OK: OK 9/10 YEAR"),
        ("a_value_of_129_bytes", one(of(&"v".repeat(129))), "OK: OK 9/10 YEAR"),
        ("a_value_of_60_kib", one(of(&"v".repeat(60 << 10))), "OK: OK 9/10 YEAR"),
        ("a_value_of_4_mib", one(of(&"v".repeat((4 << 20) - 27))), "OK: OK 9/10 YEAR"),
        (
            "a_message_1_byte_too_long",
            one(of(&"v".repeat((4 << 20) - 22))),
            "OutOfRange: message: 4194309 bytes exceeds 4194304",
        ),
        ("hits_of_the_call_absent", one(of("absent")), "OK: OK 9/10 YEAR"),
        ("hits_of_the_call_over_the_limit", call_hits(11), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("hits_of_the_call_at_32_bits", call_hits(u32::MAX), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("hits_0", one(hits(of("look"), 0)), "OK: OK 10/10 YEAR"),
        ("hits_at_the_limit", one(hits(of("all"), 10)), "OK: OK 0/10 YEAR"),
        ("hits_over_the_limit", one(hits(of("more"), 11)), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("hits_over_32_bits", one(hits(of("2^32"), 1 << 32)), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("hits_2_to_53_minus_1", one(hits(of("2^53-1"), MAX)), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("hits_2_to_53", one(hits(of("2^53"), MAX + 1)), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("hits_2_to_63", one(hits(of("2^63"), 1 << 63)), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
        ("hits_at_64_bits", one(hits(of("2^64-1"), u64::MAX)), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR"),
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

/// Bodies as they arrive: a call has five bytes before its message.
fn frames() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let prefixed = |flag: u8, length: u32, message: &[u8]| {
        [&[flag][..], &length.to_be_bytes(), message].concat()
    };
    let good = request("shop", vec![descriptor(&[("user", "in a frame")])]).encode_to_vec();
    let nested = |depth: usize| [[0x4b].repeat(depth), [0x4c].repeat(depth), good.clone()].concat();
    vec![
        ("no_frame", vec![], "Internal: the message is missing"),
        ("half_a_prefix", vec![0, 0, 0], "Internal: the message is cut short"),
        ("an_empty_message", framed(b""), "InvalidArgument: domain: must not be empty"),
        ("a_message_that_is_cut", prefixed(0, 100, b"abc"), "Internal: the message is cut short"),
        (
            "a_length_of_4_gib",
            prefixed(0, u32::MAX, b"abc"),
            "OutOfRange: message: 4294967295 bytes exceeds 4194304",
        ),
        (
            "a_length_1_over_the_bound",
            prefixed(0, (4 << 20) + 1, b""),
            "OutOfRange: message: 4194305 bytes exceeds 4194304",
        ),
        (
            "a_compressed_message",
            prefixed(1, 3, b"abc"),
            "Unimplemented: compressed requests are not supported",
        ),
        ("an_unknown_flag", prefixed(7, 3, b"abc"), "Internal: unknown flag 7 before a message"),
        ("two_messages", [framed(&good), framed(&good)].concat(), "OK: OK 9/10 YEAR"),
        ("bytes_after_the_message", [framed(&good), b"abc".to_vec()].concat(), "OK: OK 8/10 YEAR"),
        (
            "random_bytes",
            framed(b"\xff\xff\xff"),
            "Internal: failed to decode Protobuf message: invalid varint",
        ),
        (
            "a_field_that_is_cut",
            framed(b"\x0a\x05ab"),
            "Internal: failed to decode Protobuf message: RateLimitRequest.domain: buffer underflow",
        ),
        (
            "a_field_without_a_value",
            framed(b"\x0a"),
            "Internal: failed to decode Protobuf message: RateLimitRequest.domain: invalid varint",
        ),
        (
            "a_field_of_another_wire_type",
            framed(b"\x08\x01"),
            "Internal: failed to decode Protobuf message: RateLimitRequest.domain: invalid wire type: Varint (expected LengthDelimited)",
        ),
        (
            "a_field_number_of_0",
            framed(b"\x02\x00"),
            "Internal: failed to decode Protobuf message: invalid tag value: 0",
        ),
        (
            "an_unknown_wire_type",
            framed(b"\x0f"),
            "Internal: failed to decode Protobuf message: invalid wire type value: 7",
        ),
        (
            "a_length_over_64_bits",
            framed(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
            "Internal: failed to decode Protobuf message: RateLimitRequest.domain: invalid varint",
        ),
        (
            "a_domain_that_is_not_utf_8",
            framed(b"\x0a\x01\xff\x12\x00"),
            "Internal: failed to decode Protobuf message: RateLimitRequest.domain: invalid string value: data is not UTF-8 encoded",
        ),
        (
            "a_group_that_does_not_end",
            framed(b"\x4b"),
            "Internal: failed to decode Protobuf message: invalid varint",
        ),
        (
            "an_end_of_no_group",
            framed(b"\x4c"),
            "Internal: failed to decode Protobuf message: unexpected end group tag",
        ),
        ("groups_99_deep", framed(&nested(99)), "OK: OK 7/10 YEAR"),
        (
            "groups_101_deep",
            framed(&nested(101)),
            "Internal: failed to decode Protobuf message: recursion limit reached",
        ),
        (
            "groups_1000000_deep",
            framed(&nested(1_000_000)),
            "Internal: failed to decode Protobuf message: recursion limit reached",
        ),
        ("an_unknown_field", framed(&[b"\x9a\x06\x03abc", &good[..]].concat()), "OK: OK 6/10 YEAR"),
        ("a_repeated_domain", framed(&[b"\x0a\x01x", &good[..]].concat()), "OK: OK 5/10 YEAR"),
        (
            "json",
            framed(br#"{"domain":"shop"}"#),
            "Internal: failed to decode Protobuf message: buffer underflow",
        ),
    ]
}

type Headers = &'static [(&'static str, &'static [u8])];

/// Paths, and headers of a good call.
fn heads() -> Vec<(&'static str, &'static str, Headers, &'static str)> {
    const HEALTH: &str = "/grpc.health.v1.Health/Check";
    vec![
        (
            "an_unknown_method",
            "/envoy.service.ratelimit.v3.RateLimitService/Unknown",
            &[],
            "Unimplemented: ",
        ),
        ("an_unknown_service", "/marker.value/ShouldRateLimit", &[], "Unimplemented: "),
        (
            "an_older_version_of_the_service",
            "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
            &[],
            "Unimplemented: ",
        ),
        (
            "reflection_that_is_off",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            &[],
            "Unimplemented: ",
        ),
        ("the_path_of_json", "/json", &[], "Unimplemented: "),
        ("a_health_check_of_another_message", HEALTH, &[], "NotFound: service not registered"),
        ("a_timeout_in_words", METHOD_PATH, &[("grpc-timeout", b"soon")], "OK: OK unlimited"),
        (
            "a_timeout_of_20_digits",
            METHOD_PATH,
            &[("grpc-timeout", b"99999999999999999999H")],
            "OK: OK unlimited",
        ),
        ("a_timeout_without_a_unit", METHOD_PATH, &[("grpc-timeout", b"10")], "OK: OK unlimited"),
        (
            "a_timeout_of_11_years",
            METHOD_PATH,
            &[("grpc-timeout", b"99999999H")],
            "OK: OK unlimited",
        ),
        ("an_unknown_encoding", METHOD_PATH, &[("grpc-encoding", b"gzip")], "OK: OK unlimited"),
        (
            "a_traceparent_in_words",
            METHOD_PATH,
            &[("traceparent", b"marker-value")],
            "OK: OK unlimited",
        ),
        (
            "a_traceparent_that_is_not_ascii",
            METHOD_PATH,
            &[("traceparent", b"\xff\xfe")],
            "OK: OK unlimited",
        ),
        (
            "a_tracestate_of_commas",
            METHOD_PATH,
            &[("tracestate", b",,,,,,=,=")],
            "OK: OK unlimited",
        ),
        (
            "a_binary_header_that_is_not_base64",
            METHOD_PATH,
            &[("x-bin", b"!!!")],
            "OK: OK unlimited",
        ),
        ("a_header_that_is_not_ascii", METHOD_PATH, &[("x-user", b"\xff")], "OK: OK unlimited"),
    ]
}

pub fn table() -> Table {
    Table { name: "gRPC", cases: requests().len() + frames().len() + heads().len() }
}

/// The answer as text: as [`spell`] writes it, or the code and message of an error.
async fn answer(channel: &mut Channel, path: &str, headers: Headers, body: Vec<u8>) -> String {
    let body = Body::new(Full::new(Bytes::from(body)));
    let mut request =
        Request::post(path).header("content-type", "application/grpc").body(body).unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_bytes(value).unwrap());
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
    let service = Service::start(Options::default());
    let mut channel = connect(&service).await;
    for (name, request, expected) in requests() {
        let answer = answer(&mut channel, METHOD_PATH, &[], framed(&request.encode_to_vec())).await;
        assert_eq!(answer, expected, "{name}");
    }
    check_outputs(&service);
}

#[tokio::test]
async fn a_bad_frame_or_header_gets_its_code_and_message() {
    let service = Service::start(Options::default());
    let mut channel = connect(&service).await;
    for (name, frame, expected) in frames() {
        let answer = answer(&mut channel, METHOD_PATH, &[], frame).await;
        assert_eq!(answer, expected, "{name}");
    }
    for (name, path, headers, expected) in heads() {
        let good = request("shop", vec![descriptor(&[("free", "a")])]).encode_to_vec();
        let answer = answer(&mut channel, path, headers, framed(&good)).await;
        assert_eq!(answer, expected, "{name}");
    }
    check_outputs(&service);
}
