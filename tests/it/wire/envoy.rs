//! The main use: a stock Envoy limits real HTTP traffic by our answers, counted in a real Redis.

use std::{
    convert::Infallible,
    os::unix::net::UnixListener,
    sync::mpsc::{Receiver, channel},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client, server,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_stream::pending;

use crate::support::{envoy::*, prelude::*};

mod traces;

const RULES: &str = "
domain: envoy
descriptors:
  - key: generic_key
    value: api
    descriptors:
      - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
      - { key: user, value: hasty, rate_limit: { unit: second, requests_per_unit: 1 } }
";

/// One rule for each path that envoy.yaml routes.
const CASES: &str = "
domain: envoy
descriptors:
  - key: case
    value: shadow
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - { key: case, value: banned, rate_limit: { name: banned, unit: year, requests_per_unit: 0 } }
  - key: case
    value: vip
    rate_limit: { unit: year, requests_per_unit: 2, replaces: [{ name: banned }] }
  - { key: case, value: quota-one, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: case, value: quota-two, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - key: case
    value: hits
    metadata: { tier: gold }
    rate_limit: { unit: year, requests_per_unit: 7 }
  - key: case
    value: tokens
    rate_limit: { unit: year, requests_per_unit: 1000, count_denied: true }
  - key: case
    value: held
    rate_limit: { unit: year, requests_per_unit: 1000000, count_denied: true }
  - { key: case, value: override, rate_limit: { unit: year, requests_per_unit: 99 } }
  - key: generic_key
    value: api
    descriptors:
      - { key: user, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 3 } }
";

#[test]
fn routes_drive_shadows_replaced_limits_quotas_hits_and_overrides() {
    let flags = &["--headers", "both", "--dynamic-metadata"];
    let (_redis, service) = Service::with(CASES).flags(flags).on_redis();
    let envoy = Envoy::start(service.grpc);
    assert_eq!(envoy.statuses_at("/shadow"), [200; 4]);
    assert_eq!(envoy.statuses_at("/banned"), [429; 2]);
    assert_eq!(envoy.statuses_at("/replaced"), [200, 200, 429]);
    assert_eq!(envoy.statuses_at("/quota"), [200, 200, 429]);
    // Each request makes three hits: two requests fit into seven.
    assert_eq!(envoy.statuses_at("/hits"), [200, 200, 429]);
    assert_eq!(envoy.statuses_at("/override"), [200, 200, 429]);

    let denied = envoy.get_at("/hits", b"x");
    assert_eq!(denied.header("ratelimit-limit"), Some("7"));
    assert_eq!(denied.header("ratelimit-remaining"), Some("0"));
    let policy = "\"case=hits\";q=7;w=31536000";
    assert_eq!(denied.header("ratelimit-policy"), Some(policy));
    assert!(denied.header("ratelimit").unwrap().starts_with("\"case=hits\";r=0;t="));
    let retry_after = denied.head.matches("retry-after: ").count();
    assert_eq!(retry_after, 1, "only ours, without a second one from Envoy: {}", denied.head);

    envoy.get(b"alice");
    service.assert_metric("rule=\"generic_key=api|user=alice\"");

    let log = eventually("the access log", || {
        let log = std::fs::read_to_string(envoy.folder.path().join("access.log")).ok()?;
        log.contains("/ {").then_some(log)
    });
    let line = log.lines().find_map(|line| line.strip_prefix("/hits ")).unwrap();
    let metadata: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(metadata["domain"], "envoy");
    assert_eq!(metadata["descriptors"][0]["entries"][0], "case=hits");
    assert_eq!(metadata["descriptors"][0]["hitsAddend"], 3);
    assert_eq!(metadata["metadata"]["tier"], "gold");
}

/// Envoy checks before the request, and debits 600 of 1,000 hits when its stream ends.
#[test]
fn debits_at_the_end_of_streams_deny_the_third_request() {
    let (redis, service) = Service::with(CASES).on_redis();
    let envoy = Envoy::start(service.grpc);
    for debits in 1..=2 {
        assert_eq!(envoy.get_at("/tokens", b"x").status, 200);
        eventually("the debit", || {
            let key = redis.keys().into_iter().find(|key| key.contains("case=tokens"))?;
            (redis.query::<u64>(&["GET", &key]) == 600 * debits).then_some(())
        });
    }
    assert_eq!(envoy.get_at("/tokens", b"x").status, 429);
}

/// Makes this number of requests, whose responses do not end, each on a stream of its own.
async fn hold(envoy: &Envoy, requests: usize) -> Vec<Response<Incoming>> {
    let socket = tokio::net::TcpStream::connect(envoy.public).await.unwrap();
    let client = client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = client.handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let mut held = Vec::new();
    for _ in 0..requests {
        sender.ready().await.unwrap();
        let request = Request::get("http://x/held").body(Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        held.push(response);
    }
    held
}

/// An upstream that begins every response and ends none.
async fn endless(listener: tokio::net::UnixListener) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let service = service_fn(|_: Request<Incoming>| async {
            let body = StreamBody::new(pending::<Result<Frame<Bytes>, Infallible>>());
            Ok::<_, Infallible>(Response::new(body))
        });
        let mut server = server::conn::http2::Builder::new(TokioExecutor::new());
        server.max_concurrent_streams(10_000);
        tokio::spawn(server.serve_connection(TokioIo::new(socket), service));
    }
}

/// An Envoy that shuts down writes the calls of all its streams, and closes the connection at once.
///
/// `TOLLKEEPER_EXITS=20 cargo test --test it the_debits_of_all_open_streams` ends as many of each size.
#[tokio::test(flavor = "multi_thread")]
async fn the_debits_of_all_open_streams_are_counted_when_envoy_shuts_down() {
    let (redis, service) = Service::with(CASES).on_redis();
    let mut debits = 0;
    let times = std::env::var("TOLLKEEPER_EXITS").map_or(1, |text| text.parse().unwrap());
    for streams in [300, 1_500, 2_000].repeat(times) {
        let mut envoy = Envoy::start(service.grpc);
        let upstream =
            tokio::net::UnixListener::bind(envoy.folder.path().join("held.sock")).unwrap();
        let upstream = tokio::spawn(endless(upstream));
        let held = hold(&envoy, streams).await;
        envoy.process.signal("TERM");
        envoy.process.0.wait().unwrap();
        debits += 7 * streams;
        eventually(&format!("{debits} debits are counted"), || {
            let key = redis.keys().into_iter().find(|key| key.contains("case=held"))?;
            (redis.query::<usize>(&["GET", &key]) == debits).then_some(())
        });
        drop(held);
        upstream.abort();
    }
}

#[test]
fn a_tracing_header_of_a_client_does_not_disable_its_limit() {
    let (redis, service) = Service::with(RULES).on_redis();
    let envoy = Envoy::start(service.grpc);
    for kilobytes in [0, 17, 50, 1_000] {
        let user = format!("with-{kilobytes}");
        let state = format!("a={}", "x".repeat(kilobytes * 1_000));
        let statuses = [(); 5].map(|()| envoy.get_traced(&user, state.as_bytes()).status);
        assert_eq!(statuses, [200, 200, 200, 429, 429], "{kilobytes} KB");
    }
    // About the largest headers that Envoy accepts.
    envoy.get_traced("with-8000", &[b'x'; 8_000_000]);
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("user=with-8000")]), 1);
    // Envoy itself refuses the other control characters.
    for byte in [b'\t', b' ', b'"', b',', b'=', b'~', 0x80, 0xff] {
        let user = format!("byte-{byte}");
        let statuses = [(); 4].map(|()| envoy.get_traced(&user, &[b'a', byte, b'b']).status);
        assert_eq!(statuses, [200, 200, 200, 429], "{byte}");
    }
}

#[test]
fn envoy_allows_requests_up_to_the_limit_and_then_answers_429_with_headers() {
    let (redis, service) = Service::with(RULES).on_redis();
    let envoy = Envoy::start(service.grpc);

    let first = envoy.get(b"alice");
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-limit"), Some("3, 3;w=31536000"));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("2"));
    assert_eq!(envoy.statuses(b"alice"), [200, 200]);

    let denied = envoy.get(b"alice");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let time: Vec<i64> = redis.query(&["TIME"]);
    let left = 31_536_000 - time[0] % 31_536_000;
    for name in ["x-ratelimit-reset", "retry-after"] {
        let reset: i64 = denied.header(name).expect(name).parse().unwrap();
        assert!((0..=2).contains(&(reset - left)), "{name}: {reset}, left {left}");
    }

    assert_eq!(envoy.get(b"bob").status, 200, "another client has a limit of its own");
    assert_eq!(
        redis.query::<u64>(&["GET", &redis.key("user=alice")]),
        3,
        "denied calls are not counted"
    );
    redis.assert_no_key_leaks();
}

#[test]
fn envoy_gives_its_client_the_rule_and_the_body_of_a_denial() {
    let redis = Redis::start();
    let (store, flags) = (&redis.url(), &["--rule-header", "--denied-body", "problem"]);
    let service = Service::with(RULES).on(store).flags(flags).start();
    let envoy = Envoy::start(service.grpc);
    assert_eq!(envoy.statuses(b"alice"), [200, 200, 200, 429]);
    let denied = envoy.get(b"alice");
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    let rule = denied.header("x-ratelimit-rule").unwrap();
    assert!(rule.starts_with("\"generic_key=api|user\";t="), "{rule}");
    assert!(denied.head.contains("\r\n\r\n{") && denied.head.contains("#quota-exceeded"));
}

/// An Envoy with further filters in front, whose upstream passes on the head of each request.
fn envoy_before(service: &Service, filters: &str) -> (Envoy, Receiver<String>) {
    let folder = TempDir::new().unwrap();
    let upstream = UnixListener::bind(folder.path().join("raw.sock")).unwrap();
    let (heads, received) = channel();
    thread::spawn(move || {
        for stream in upstream.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), Vec::new());
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                .unwrap();
            if heads.send(String::from_utf8(head).unwrap()).is_err() {
                return;
            }
        }
    });
    let set_metadata = "          - name: envoy.filters.http.set_metadata\n";
    let config = replace(
        include_str!("../../support/envoy.yaml"),
        &[
            ("@TIMEOUT@", 1, "30s"),
            (
                "pipe: { path: \"@FOLDER@/upstream.sock\" } } }",
                1,
                "pipe: { path: \"@FOLDER@/raw.sock\" } } }",
            ),
            (set_metadata, 1, &(filters.to_owned() + set_metadata)),
        ],
    );
    let config = config
        .replace("@FOLDER@", folder.path().to_str().unwrap())
        .replace("@RLS_PORT@", &service.grpc.port().to_string());
    (Envoy::run(&config, folder), received)
}

/// The values of `x-tier` that the upstream gets from four requests of a user, the fifth of which is denied.
fn tiers_seen((envoy, heads): &(Envoy, Receiver<String>), user: &str) -> [Vec<String>; 4] {
    let seen = std::array::from_fn(|_| {
        assert_eq!(envoy.get(user.as_bytes()).status, 200);
        let head = heads.recv().unwrap();
        head.lines().filter_map(|line| line.strip_prefix("x-tier: ").map(str::to_owned)).collect()
    });
    assert_eq!(envoy.get(user.as_bytes()).status, 429);
    seen
}

/// The protocol has no way to replace a header, so Envoy must remove what a client sends.
#[test]
fn envoy_adds_the_header_of_a_tier_after_a_header_of_the_client_unless_it_removes_that_first() {
    let rules = "
domain: envoy
descriptors:
  - key: generic_key
    value: api
    descriptors:
      - key: user
        rate_limit:
          unit: year
          requests_per_unit: 4
          tiers:
            - { at: 100, request_headers: { X-Tier: warn } }
            - { at: 50, request_headers: { x-tier: low } }
";
    let (_redis, service) = Service::with(rules).on_redis();
    let envoy = envoy_before(&service, "");
    assert_eq!(tiers_seen(&envoy, "alice"), [vec![], vec!["low"], vec!["low"], vec!["warn"]]);
    let [one, two, _, four] = tiers_seen(&envoy, "bob\r\nx-tier: client");
    assert_eq!([one, two, four], [vec!["client"], vec!["client", "low"], vec!["client", "warn"]]);
    let mutation = "          - name: envoy.filters.http.header_mutation
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
              mutations: { request_mutations: [{ remove: x-tier }] }
";
    let envoy = envoy_before(&service, mutation);
    let seen = tiers_seen(&envoy, "carol\r\nx-tier: client");
    assert_eq!(seen, [vec![], vec!["low"], vec!["low"], vec!["warn"]]);
}

#[test]
fn a_denied_client_is_allowed_in_the_next_window() {
    let (redis, service) = Service::with(RULES).on_redis();
    let envoy = Envoy::start(service.grpc);
    // The limit is one per second. So both answers occur in time, and each second in Redis counts one hit.
    wait_until("a denial", || envoy.get(b"hasty").status == 429);
    wait_until("the next second", || envoy.get(b"hasty").status == 200);
    for key in redis.keys() {
        let count: Option<u64> = redis.query(&["GET", &key]);
        assert!(count.is_none_or(|count| count == 1), "{key}: {count:?}");
    }
}

#[test]
fn a_header_that_is_not_utf8_is_limited_like_others() {
    let (redis, service) = Service::with(RULES).on_redis();
    let envoy = Envoy::start(service.grpc);
    assert_eq!(envoy.statuses(b"a\xff\xfeb"), [200, 200, 200, 429]);
    assert_eq!(envoy.get(b"a\xff\xffb").status, 200, "other bytes are another client");
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("user=a%FF%FEb")]), 3);
}

#[test]
fn envoy_allows_requests_while_the_service_is_down_and_limits_them_again_afterwards() {
    let redis = Redis::start();
    let store = redis.url();
    let service = Service::with(RULES).on(&store).start();
    let envoy = Envoy::start(service.grpc);
    assert_eq!(envoy.statuses(b"alice"), [200, 200, 200, 429]);

    let address = service.grpc.to_string();
    drop(service);
    assert_eq!(envoy.statuses(b"alice"), [200, 200, 200, 200]);

    let _service = Service::with(RULES).on(&store).flags(&["--grpc-addr", &address]).start();
    wait_until("limited again", || envoy.get(b"alice").status == 429);
}
