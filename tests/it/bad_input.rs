//! What must not hurt us, each with the exact code and message. Pinned are also the answers of the
//! framework below us, so that an upgrade which changes one is noticed.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use tollkeeper::rls::pb::{RateLimitDescriptor, RateLimitRequest};
use tonic::{Code, Status, body::Body, transport::Channel};
use tower::Service as _;

use crate::support::service::{Options, Service, descriptor, of_bytes, request, spell};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

async fn refused(request: RateLimitRequest, code: Code, message: &str) {
    let service = Service::start(Options::default());
    let status = service.ask(request).await.expect_err(message);
    assert_eq!((status.code(), status.message()), (code, message));
}

/// Sends a body as it is; gives the gRPC status.
async fn send(service: &Service, path: &str, body: Vec<u8>) -> Status {
    let endpoint = Channel::from_shared(format!("http://{}", service.grpc)).unwrap();
    let mut channel = endpoint.connect().await.unwrap();
    let request = http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(Bytes::from(body))))
        .unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let response = channel.call(request).await.unwrap();
    if let Some(status) = Status::from_header_map(response.headers()) {
        return status;
    }
    let trailers = response.into_body().collect().await.unwrap().trailers().cloned();
    Status::from_header_map(&trailers.expect("trailers")).expect("a status")
}

/// A message in gRPC's frame: not compressed, then the length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

#[tokio::test]
async fn an_empty_domain_is_refused() {
    let request = request("", vec![descriptor(&[("user", "a")])]);
    refused(request, Code::InvalidArgument, "domain: must not be empty").await;
}

#[tokio::test]
async fn no_descriptors_are_refused() {
    refused(request("shop", vec![]), Code::InvalidArgument, "descriptors: at least 1").await;
}

#[tokio::test]
async fn more_descriptors_than_the_setting_are_refused_before_they_are_decoded() {
    let empty = |count| request("shop", vec![RateLimitDescriptor::default(); count]);
    refused(empty(65), Code::InvalidArgument, "descriptors: 65 exceeds 64").await;
    refused(empty(100_000), Code::InvalidArgument, "descriptors: 100000 exceeds 64").await;

    let service =
        Service::start(Options { flags: &["--max-descriptors", "65"], ..Default::default() });
    service.ask(empty(65)).await.expect("as many as the setting says");
}

#[tokio::test]
async fn more_than_32_entries_are_refused() {
    let entries = vec![("user", "a"); 33];
    let request = request("shop", vec![descriptor(&[("user", "a")]), descriptor(&entries)]);
    let message = "descriptors[1].entries: 33 exceeds 32";
    refused(request, Code::InvalidArgument, message).await;
}

#[tokio::test]
async fn an_empty_key_is_refused() {
    let request = request("shop", vec![descriptor(&[("user", "a"), ("", "b")])]);
    let message = "descriptors[0].entries[1].key: must not be empty";
    refused(request, Code::InvalidArgument, message).await;
}

#[tokio::test]
async fn a_key_over_256_bytes_is_refused() {
    let request = request("shop", vec![of_bytes(&[(&[b'k'; 300], b"v")])]);
    let message = "descriptors[0].entries[0].key: 300 bytes exceeds 256";
    refused(request, Code::InvalidArgument, message).await;
}

#[tokio::test]
async fn a_message_of_5_mb_is_refused() {
    let request = request("shop", vec![of_bytes(&[(b"user", &vec![b'v'; 5_000_000])])]);
    let message =
        "Error, decoded message length too large: found 5000027 bytes, the limit is: 4194304 bytes";
    refused(request, Code::OutOfRange, message).await;
}

#[tokio::test]
async fn strange_domains_are_unknown_domains() {
    let service = Service::start(Options::default());
    for domain in ["\0", "{x}", "a\r\nb", "домен", &"d".repeat(1_000_000)] {
        let response = service.ask(request(domain, vec![descriptor(&[("user", "a")])])).await;
        assert_eq!(spell(&response.unwrap()), "OK: OK -");
    }
    assert!(!service.get("/metrics").contains("домен"), "a request made a label");
}

#[tokio::test]
async fn what_is_not_protobuf_is_an_error_and_not_a_panic() {
    let service = Service::start(Options::default());
    for message in [&b"\xff\xff\xff"[..], b"\x0a\x05ab", b"\x13", b"\x0a\x01\xff"] {
        let status = send(&service, METHOD, framed(message)).await;
        assert_eq!(status.code(), Code::Internal, "for {message:?}: {status:?}");
        let begin = "failed to decode Protobuf message";
        assert!(status.message().starts_with(begin), "for {message:?}: {status:?}");
        assert_eq!(status.message().matches(begin).count(), 1, "for {message:?}: {status:?}");
    }
}

#[tokio::test]
async fn frames_that_lie_are_an_error_and_not_a_panic() {
    let service = Service::start(Options::default());
    let longer_than_body = [&[0][..], &100_u32.to_be_bytes(), b"abc"].concat();
    let status = send(&service, METHOD, longer_than_body).await;
    assert_eq!(status.code(), Code::Internal, "{status:?}");

    let compressed = [&[1][..], &3_u32.to_be_bytes(), b"abc"].concat();
    let status = send(&service, METHOD, compressed).await;
    assert_eq!(status.code(), Code::Internal, "{status:?}");

    let huge = [&[0][..], &u32::MAX.to_be_bytes(), b"abc"].concat();
    let status = send(&service, METHOD, huge).await;
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
}

#[tokio::test]
async fn other_methods_are_unimplemented() {
    let service = Service::start(Options::default());
    for path in [&METHOD.replace("Should", "Could"), "/grpc.reflection.v1.ServerReflection/X"] {
        let status = send(&service, path, framed(b"")).await;
        assert_eq!(status.code(), Code::Unimplemented, "for {path}");
    }
}

#[tokio::test]
async fn unknown_fields_and_a_split_message_are_accepted() {
    let service = Service::start(Options::default());
    // Field 99, then the domain twice (the last one counts), a descriptor between.
    let mut message = b"\x9a\x06\x03abc\x0a\x01x".to_vec();
    message.extend(b"\x12\x0b\x0a\x09\x0a\x04user\x12\x01a");
    message.extend(b"\x0a\x04shop");
    assert_eq!(send(&service, METHOD, framed(&message)).await.code(), Code::Ok);
    assert!(service.get("/metrics").contains(r#"domain="shop",rule="user"} 1"#));
}
