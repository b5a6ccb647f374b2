//! Bad input, with the exact code and message of each refusal: a table for each way in, as text (tests/support/rows.rs), and what
//! needs more than one exchange. The answers of the libraries are pinned too, so that an upgrade that changes one is
//! noticed.

mod calls;
mod command_lines;
mod flags;
mod holds;
mod http;
mod rule_files;

use std::io::ErrorKind;

use ::http::StatusCode;
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use tonic::{Code, Status, body::Body};
use tower::Service as _;

use crate::support::{
    http2::{self, Frames, METHOD_PATH},
    prelude::*,
    service::*,
};

/// Sends a body with this content type to the method; returns the HTTP status, and the gRPC status if there
/// is one.
async fn post(service: &Service, content_type: &str, body: Body) -> (StatusCode, Option<Status>) {
    ask(service, "POST", content_type, body).await
}

async fn ask(
    service: &Service,
    method: &str,
    content_type: &str,
    body: Body,
) -> (StatusCode, Option<Status>) {
    let mut channel = service.channel().await;
    let request = ::http::Request::builder().method(method).uri(METHOD_PATH);
    let request = request.header("content-type", content_type).body(body).unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let response = channel.call(request).await.unwrap();
    let (code, status) = (response.status(), Status::from_header_map(response.headers()));
    let trailers = response.into_body().collect().await.unwrap().trailers().cloned();
    (code, status.or_else(|| Status::from_header_map(&trailers?)))
}

/// A message behind gRPC's prefix: the flag for no compression, and the length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

#[tokio::test]
async fn a_call_may_have_the_configured_maximum_of_descriptors() {
    let service = Service::shop().flags(&["--max-descriptors", "65"]).start();
    assert!(service.answer(&"() ".repeat(65)).await.starts_with("OK: OK -, "));
}

#[tokio::test]
async fn a_message_of_the_largest_configurable_size_is_accepted() {
    let service = Service::shop().flags(&["--max-message-bytes", "64MiB"]).start();
    let large = request("shop", vec![of_bytes(&[(b"user", &vec![b'v'; (64 << 20) - 100])])]);
    assert_eq!(spell(&service.ask(large).await.unwrap()), "OK: OK 9/10 YEAR");
}

#[tokio::test]
async fn a_message_may_arrive_in_pieces() {
    let service = Service::shop().start();
    let message = shop("user=in-pieces").encode_to_vec();
    for size in [1, 4, 5, 6, 1000] {
        let pieces: Vec<Bytes> =
            framed(&message).chunks(size).map(Bytes::copy_from_slice).collect();
        let pieces = pieces.into_iter().map(|piece| Ok::<_, Status>(Frame::data(piece)));
        let body = StreamBody::new(tokio_stream::iter(pieces));
        let (response, status) = post(&service, "application/grpc", Body::new(body)).await;
        assert_eq!(
            (response, status.unwrap().code()),
            (StatusCode::OK, Code::Ok),
            "pieces of {size}"
        );
    }
    let answer = service.ask(shop("user=in-pieces")).await;
    assert_eq!(spell(&answer.unwrap()), "OK: OK 4/10 YEAR", "each message has counted once");
}

/// Starts a call whose body begins with these bytes and does not end.
async fn start_call(
    channel: &mut Channel,
    body: Vec<u8>,
) -> impl Future<Output = Option<Status>> + use<> {
    let first = tokio_stream::once(Ok::<_, Status>(Frame::data(Bytes::from(body))));
    let body = StreamBody::new(first.chain(tokio_stream::pending()));
    let request = ::http::Request::post(METHOD_PATH).header("content-type", "application/grpc");
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let response = channel.call(request.body(Body::new(body)).unwrap());
    async { Status::from_header_map(response.await.ok()?.headers()) }
}

#[tokio::test]
async fn messages_that_arrive_in_parts_are_bounded_in_memory_for_each_connection() {
    let service = Service::shop().start();
    let mut channel = service.channel().await;
    let most_of_it = [&[0][..], &(4_u32 << 20).to_be_bytes(), &vec![b'x'; 4_000_000]].concat();
    let mut started = FuturesUnordered::new();
    for _ in 0..20 {
        started.push(start_call(&mut channel, most_of_it.clone()).await);
    }
    let refused = started.next().await.unwrap().expect("a status");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "unfinished messages and unread answers: over 68157440 bytes");

    let mut client = RateLimitServiceClient::new(channel.clone());
    client.should_rate_limit(shop("user=a")).await.expect("a message in one part is answered");
}

#[tokio::test]
async fn what_is_no_grpc_is_refused_and_charges_nothing() {
    let service = Service::shop().start();
    let call = framed(&shop("user=a").encode_to_vec());
    let body = || Body::new(Full::new(Bytes::from(call.clone())));
    let others = ["-web", "-web-text", "-web+proto", "x", "+json", "+", "+protox"];
    let others = others.map(|end| format!("application/grpc{end}"));
    for content_type in others.iter().map(|text| &**text).chain(["text/plain", ""]) {
        let (response, status) = post(&service, content_type, body()).await;
        assert_eq!(response, StatusCode::UNSUPPORTED_MEDIA_TYPE, "for `{content_type}`");
        assert!(status.is_none());
    }
    for method in ["GET", "PUT", "OPTIONS", "DELETE"] {
        let (response, status) = ask(&service, method, "application/grpc", body()).await;
        assert_eq!(
            (response, status.is_none()),
            (StatusCode::METHOD_NOT_ALLOWED, true),
            "{method}"
        );
    }
    let charged = r#"ratelimit_hits_total{domain="shop",rule="user",standing="within"}"#;
    assert!(!service.get("/metrics").contains(charged));
    for content_type in ["application/grpc", "application/grpc+proto"] {
        let (response, status) = post(&service, content_type, body()).await;
        assert_eq!((response, status.unwrap().code()), (StatusCode::OK, Code::Ok));
    }
    service.assert_metric(&format!("{charged} 2"));
}

#[tokio::test]
async fn the_refusal_of_a_compressed_message_names_the_encoding_that_is_allowed() {
    let service = Service::shop().start();
    let compressed = Body::new(Full::new(Bytes::from_static(b"\x01\0\0\0\x03abc")));
    let (_, status) = post(&service, "application/grpc", compressed).await;
    assert_eq!(status.unwrap().metadata().get("grpc-accept-encoding").unwrap(), "identity");
}

/// A connection to the gRPC address on which these bytes have been sent.
fn connect(service: &Service, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(service.grpc).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(sent).unwrap();
    stream
}

/// Each call has 9 MiB of headers by HTTP/2's count. They take 280 KB on the wire, and 27 MiB in memory.
#[test]
fn open_calls_do_not_keep_large_headers() {
    for path in [METHOD_PATH, "/grpc.health.v1.Health/Check", "/unknown"] {
        let mut service = Service::shop().start();
        let frames =
            (0..20).fold(Frames::default(), |frames, _| frames.many_headers(path, 280_000));
        let mut client = connect(&service, &http2::opening());
        client.write_all(&frames.ping().bytes()).unwrap();
        while http2::read_frame(&mut client).0 != http2::PING {}
        let status = format!("/proc/{}/status", service.process().0.id());
        let status = std::fs::read_to_string(status).unwrap();
        let peak = status.split("VmHWM:").nth(1).unwrap().split_whitespace().next().unwrap();
        assert!(peak.parse::<u64>().unwrap() < 150_000, "{path}: {peak} KB");
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// The client closes its connection on another thread while this test waits.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_bounded_and_delay_neither_calls_nor_the_exit() {
    let mut service = Service::shop().ready();
    let mut silent: Vec<_> = (0..620)
        .map(|number| connect(&service, if number % 2 == 0 { b"" } else { b"PRI * HTTP" }))
        .collect();
    let service_id = service.process().0.id();
    assert_eq!(service.answer("user=a").await, "OK: OK 9/10 YEAR");
    wait_until("the bound holds", || (512..544).contains(&open_files(service_id)));
    for stream in &silent {
        stream.set_nonblocking(true).unwrap();
    }
    // Each has been sent the service's settings.
    let is_open = |stream: &mut TcpStream| {
        std::io::copy(stream, &mut std::io::sink())
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let open: Vec<_> = silent.iter_mut().map(is_open).collect();
    assert!(!open[..80].contains(&true), "those that were silent longest are closed");
    assert!(!open[150..].contains(&false), "the others are open");

    service.end();
    assert!(!service.log().contains("did not end"), "{}", service.log());
    drop(silent);
}

#[test]
fn a_silent_connection_is_closed_and_a_slow_preface_is_accepted() {
    let service = Service::shop().start();
    let began = Instant::now();
    let mut silent = connect(&service, b"");
    let (start, rest) = PREFACE.split_at(7);
    let mut late = connect(&service, start);
    std::thread::sleep(Duration::from_millis(500));
    late.write_all(rest).unwrap();
    let mut frame = [0; 9];
    late.read_exact(&mut frame).unwrap();
    assert_eq!(frame[3], 4, "SETTINGS: {frame:?}");

    std::io::copy(&mut silent, &mut std::io::sink()).unwrap();
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn connections_that_do_not_speak_http2_are_closed_at_once() {
    const TLS_HELLO: &[u8] =
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and 32 random bytes and so on";
    let service = Service::shop().start();
    for sent in
        [b"GET / HTTP/1.1\r\nhost: test\r\n\r\n", TLS_HELLO, b"*1\r\n$4\r\nPING\r\n\r\n\r\n\r\n"]
    {
        let began = Instant::now();
        let mut other = connect(&service, sent);
        let mut answer = Vec::new();
        // The service may close with a reset, since it has not read everything.
        let _ = other.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1"), "{answer:?}");
        // Generous: a connection that says nothing is closed after ten seconds.
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
