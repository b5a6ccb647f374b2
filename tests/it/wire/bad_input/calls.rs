//! Calls over gRPC: messages, framing, and headers.

use ::http::{HeaderName, HeaderValue, Request};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use tonic::{Code, Status, body::Body};
use tower::Service as _;

use super::framed;
use crate::support::{
    calls::{bytes, descriptors},
    http2::METHOD_PATH,
    prelude::*,
    rows::rows,
};

const ROWS: &str = include_str!("calls.txt");

type Headers<'a> = &'a [(&'a str, &'a [u8])];

/// Bodies of calls in this order, and the answers.
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
        // Descriptors behind an unknown group are counted before they are decoded.
        (
            framed(&[b"KL", &b"\x12\0".repeat(2_000_000)[..]].concat()),
            "InvalidArgument: descriptors: 2000000 exceeds 64",
        ),
    ]
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

#[track_caller]
fn check_outputs(service: &Service) {
    let (log, metrics) = (service.log(), service.get("/metrics"));
    assert!(!(log.clone() + &metrics).contains("marker-value"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn a_bad_request_gets_its_code_and_message_and_a_strange_one_a_decision() {
    let service = Service::shop().start();
    let mut channel = service.channel().await;
    let mut check = async |name: &str, request: RateLimitRequest, expected: &str| {
        let answer = answer(&mut channel, METHOD_PATH, &[], framed(&request.encode_to_vec())).await;
        assert_eq!(answer, expected, "{name}");
    };
    let user = |value: &str| descriptor(&[("user", value)]);
    for [name, domain] in rows(ROWS, "domains") {
        let call = request(&domain, descriptors("user=a no=rule(;5/YEAR)"));
        check(&name, call, "OK: OK -, OK -").await;
    }
    for [name, value] in rows(ROWS, "values") {
        check(&name, request("shop", vec![user(&value)]), "OK: OK 9/10 YEAR").await;
    }
    for [count, expected] in rows(ROWS, "hits") {
        let charged = hits(user(&count), count.parse().unwrap());
        check(&count, request("shop", vec![charged]), &expected).await;
    }
    for [name, call, expected] in rows(ROWS, "requests") {
        check(&name, request("shop", descriptors(&call)), &expected).await;
    }
    service.assert_metric("ratelimit_overrides_invalid_total 6");
    let no_domain = request("", vec![user("a")]);
    check("no domain", no_domain, "InvalidArgument: domain: must not be empty").await;
    for hits_addend in [11, u32::MAX] {
        let call = request("shop", vec![user(&format!("call of {hits_addend}"))]);
        let call = RateLimitRequest { hits_addend, ..call };
        check(&format!("{hits_addend} hits of the call"), call, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR")
            .await;
    }
    check_outputs(&service);
}

#[tokio::test]
async fn a_bad_body_or_header_gets_its_code_and_message() {
    let service = Service::shop().start();
    let mut channel = service.channel().await;
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
    let good = framed(&shop("free=a").encode_to_vec());
    for [name, path, expected] in rows(ROWS, "paths") {
        check(&name, &path, &[], good.clone(), &expected).await;
    }
    for [name, header, value] in rows(ROWS, "headers") {
        let headers = [(&*header, &*bytes(&value))];
        check(&name, METHOD_PATH, &headers, good.clone(), "OK: OK unlimited").await;
    }
    check_outputs(&service);
}
