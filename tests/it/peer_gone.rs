//! Calls whose peer has gone: what has arrived whole is counted, as Envoy expects when it ends.

use std::{
    io::Write as _,
    net::{Shutdown, TcpStream},
};

use prost::Message as _;

use crate::support::{
    eventually,
    http2::{self, Frames},
    redis_server::Redis,
    service::{Options, Service, descriptor, hits, request, spell},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: tokens
    rate_limit: { unit: year, requests_per_unit: 1000000, count_denied: true }
";

fn start(store: &str) -> Service {
    Service::start(Options { rules: RULES, store, ..Options::default() })
}

fn debit() -> Vec<u8> {
    request("shop", vec![hits(descriptor(&[("tokens", "a")]), 1)]).encode_to_vec()
}

/// So many calls on a new connection.
fn debits(calls: u32) -> Vec<u8> {
    (0..calls).fold(Frames::default(), |frames, _| frames.call(&debit())).bytes()
}

/// A connection on which the service has said how much it takes.
fn connect(service: &Service) -> TcpStream {
    let mut peer = TcpStream::connect(service.grpc).unwrap();
    peer.write_all(&http2::opening()).unwrap();
    while http2::read_frame(&mut peer).0 != http2::WINDOW_UPDATE {}
    peer
}

/// Waits until so many debits are counted.
#[track_caller]
fn counted(service: &Service, debits: u32) {
    let look = request("shop", vec![hits(descriptor(&[("tokens", "a")]), 0)]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    eventually(&format!("{debits} debits are counted"), || {
        let answer = runtime.block_on(service.ask(look.clone())).unwrap();
        (answer.statuses[0].limit_remaining == 1_000_000 - debits).then_some(())
    });
}

#[test]
fn calls_that_are_written_in_one_go_before_the_connection_ends_are_counted() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = start(store);
        let mut sent = 0;
        for calls in [300, 1_000, 4_000] {
            let mut peer = connect(&service);
            peer.write_all(&debits(calls)).unwrap();
            // The system resets a connection that is closed with something unread: the next test.
            peer.shutdown(Shutdown::Write).unwrap();
            sent += calls;
            counted(&service, sent);
        }
    }
}

/// Envoy's socket has answers in it that it does not read any more: then its end is a reset.
#[test]
fn calls_whose_connection_is_reset_are_counted() {
    let redis = Redis::start();
    let service = start(&redis.url());
    let mut peer = connect(&service);
    let frames = debits(300);
    // A reset loses what has not arrived. So little fits into any receive buffer.
    assert!(frames.len() < 30_000);
    peer.write_all(&frames).unwrap();
    reset(peer);
    counted(&service, 300);
}

#[test]
fn calls_whose_streams_are_reset_are_counted() {
    let redis = Redis::start();
    let service = start(&redis.url());
    let mut peer = connect(&service);
    let frames = (0..300).fold(Frames::default(), |frames, _| frames.call(&debit()).reset());
    peer.write_all(&frames.bytes()).unwrap();
    counted(&service, 300);
    drop(peer);
}

#[test]
fn a_message_that_has_arrived_whole_is_counted_though_its_stream_was_not_ended() {
    let redis = Redis::start();
    let service = start(&redis.url());
    let mut peer = connect(&service);
    peer.write_all(&Frames::default().open_call(&debit()).bytes()).unwrap();
    drop(peer);
    counted(&service, 1);
}

#[test]
fn calls_that_wait_for_redis_when_their_peer_leaves_and_the_service_ends_are_counted() {
    let redis = Redis::start();
    let mut service = start(&redis.url());
    service.wait_until_ready();
    redis.signal("STOP");
    let mut peer = connect(&service);
    peer.write_all(&debits(300)).unwrap();
    peer.shutdown(Shutdown::Both).unwrap();
    service.process().signal("TERM");
    eventually("it drains", || service.log().contains("draining").then_some(()));
    redis.signal("CONT");
    assert!(service.process().0.wait().unwrap().success());
    assert_eq!(redis.query::<u32>(&["GET", &redis.key("tokens=a")]), 300);
}

/// So do clients of `/json` and of gRPC leave: they give up waiting, and Redis was only slow.
#[test]
fn a_call_over_http_whose_client_has_left_is_counted() {
    let redis = Redis::start();
    let service = start(&redis.url());
    service.wait_until_ready();
    redis.signal("STOP");
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"tokens","value":"a"}]}]}"#;
    let head = format!("POST /json HTTP/1.1\r\nhost: test\r\ncontent-length: {}", body.len());
    for _ in 0..100 {
        let mut peer = TcpStream::connect(service.http).unwrap();
        peer.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    }
    // This one is served after them.
    assert_eq!(service.get("/healthz"), "OK");
    redis.signal("CONT");
    counted(&service, 100);
}

#[test]
fn hits_over_the_largest_number_are_as_many_as_fit() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = start(store);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        // Envoy makes 2^63 hits of `nan`.
        for count in [1 << 63, u64::MAX, 1] {
            let debit = hits(descriptor(&[("tokens", "a")]), count);
            let answer = runtime.block_on(service.ask(request("shop", vec![debit]))).unwrap();
            assert_eq!(spell(&answer), "OVER_LIMIT: OVER_LIMIT 0/1000000 YEAR", "{store}: {count}");
        }
    }
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("tokens=a")]), (1 << 53) - 1);
}

/// Closes with a reset instead of an orderly end.
fn reset(peer: TcpStream) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    peer.set_nonblocking(true).unwrap();
    tokio::net::TcpStream::from_std(peer).unwrap().set_zero_linger().unwrap();
}
