//! Calls whose client has left: a call that has arrived whole is counted, as Envoy expects when it shuts down.

use std::{collections::BTreeMap, iter, net::Shutdown};

use tollkeeper_proto::{
    quota::{
        BucketId, RateLimitQuotaUsageReports, rate_limit_quota_usage_reports::BucketQuotaUsage,
    },
    v1::{Call, DecideRequest, call::Mode},
};

use crate::support::{
    http2::{self, Frames},
    prelude::*,
    stores::one,
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 1000000, count_denied: true } }
  - { key: place, rate_limit: { algorithm: in_flight, requests_per_unit: 50, hold: 10m } }
  - { key: budget, rate_limit: { unit: year, requests_per_unit: 5000, hold: { for: 10m, estimate: 100 } } }
  - { key: hot, rate_limit: { unit: year, requests_per_unit: 1000, lease: auto } }
  - { key: proxied, rate_limit: { unit: year, requests_per_unit: 1000 } }
";

const QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

fn start(store: &str) -> Service {
    Service::with(RULES).on(store).ready()
}

fn debit() -> Vec<u8> {
    shop("tokens=a(1)").encode_to_vec()
}

/// The frames of `calls` calls on a new connection.
fn debits(calls: u32) -> Vec<u8> {
    (0..calls).fold(Frames::default(), |frames, _| frames.call(&debit())).bytes()
}

/// A connection on which the service has announced its flow-control window.
fn connect(service: &Service) -> TcpStream {
    let mut client = TcpStream::connect(service.grpc).unwrap();
    client.write_all(&http2::opening()).unwrap();
    while http2::read_frame(&mut client).0 != http2::WINDOW_UPDATE {}
    client
}

/// Waits until `debits` debits are counted.
#[track_caller]
fn wait_until_counted(service: &Service, debits: u32) {
    let no_hits = shop("tokens=a(0)");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    wait_until(&format!("{debits} debits are counted"), || {
        let answer = runtime.block_on(service.ask(no_hits.clone())).unwrap();
        answer.statuses[0].limit_remaining == 1_000_000 - debits
    });
}

/// The client leaves, the service is told to end, and then Redis, which was stopped, goes on.
#[track_caller]
fn leave_before_redis_answers(client: &TcpStream, service: &mut Service, redis: &Redis) {
    client.shutdown(Shutdown::Both).unwrap();
    service.process().signal("TERM");
    service.wait_for_log("draining");
    redis.signal("CONT");
    assert!(service.process().0.wait().unwrap().success());
}

#[test]
fn calls_that_are_written_in_one_go_before_the_connection_ends_are_counted() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = start(store);
        let mut sent = 0;
        for calls in [300, 1_000, 4_000] {
            let mut client = connect(&service);
            client.write_all(&debits(calls)).unwrap();
            // Not closed: with unread data that would be a reset, which the next test covers.
            client.shutdown(Shutdown::Write).unwrap();
            sent += calls;
            wait_until_counted(&service, sent);
        }
    }
}

/// If Envoy's socket holds unread answers when Envoy ends, the connection ends with a reset, and loses what has not arrived.
#[test]
fn calls_whose_connection_is_reset_are_counted() {
    let redis = Redis::start();
    let service = start(&redis.url());
    let mut sent = 0;
    for calls in [300, 3_500, 3_500] {
        let mut client = connect(&service);
        let frames = debits(calls);
        // More than a receive buffer has by default, and what each system allows.
        assert!(calls == 300 || (150_000..200_000).contains(&frames.len()), "{}", frames.len());
        client.write_all(&frames).unwrap();
        reset(client);
        sent += calls;
        wait_until_counted(&service, sent);
    }
}

#[test]
fn calls_whose_streams_are_reset_are_counted() {
    let redis = Redis::start();
    let service = start(&redis.url());
    let mut client = connect(&service);
    let frames = (0..300).fold(Frames::default(), |frames, _| frames.call(&debit()).reset());
    client.write_all(&frames.bytes()).unwrap();
    wait_until_counted(&service, 300);
    drop(client);
}

#[test]
fn a_whole_message_is_counted_even_if_its_stream_did_not_end() {
    let redis = Redis::start();
    let service = start(&redis.url());
    let mut client = connect(&service);
    client.write_all(&Frames::default().open_call(&debit()).bytes()).unwrap();
    drop(client);
    wait_until_counted(&service, 1);
}

#[test]
fn messages_of_a_stream_that_is_reset_are_counted_though_the_service_ends() {
    let redis = Redis::start();
    let mut service =
        Service::with(RULES).on(&redis.url()).flags(&["--decision-budget", "5s"]).ready();
    redis.signal("STOP");
    let mut client = connect(&service);
    let calls = vec![Call {
        descriptors: vec![one("tokens", "a")],
        mode: Mode::Debit.into(),
        ..Call::default()
    }];
    let message = DecideRequest { domain: "shop".to_owned(), calls }.encode_to_vec();
    let frames = Frames::default().many_headers("/tollkeeper.v1.Tollkeeper/DecideStream", 0);
    let frames = (0..50).fold(frames, |frames, _| frames.message(&message, 0));
    client.write_all(&frames.reset().ping().bytes()).unwrap();
    while http2::read_frame(&mut client).0 != http2::PING {}
    leave_before_redis_answers(&client, &mut service, &redis);
    assert_eq!(redis.query::<u32>(&["GET", &redis.key("tokens=a")]), 50);
}

#[test]
fn what_a_proxy_has_reported_on_a_stream_that_is_reset_is_counted() {
    let redis = Redis::start();
    let service = start(&redis.url());
    let usage = |user: u32| BucketQuotaUsage {
        bucket_id: Some(BucketId {
            bucket: BTreeMap::from([("proxied".to_owned(), user.to_string().into())]),
        }),
        num_requests_allowed: 2,
        ..BucketQuotaUsage::default()
    };
    // More than a few buckets are followed in several turns.
    for (reports, users) in [(5, 0..40), (1, 100..800)] {
        let bucket_quota_usages = users.clone().map(usage).collect();
        let report = RateLimitQuotaUsageReports { domain: "shop".to_owned(), bucket_quota_usages };
        let report = report.encode_to_vec();
        let frames = Frames::default().many_headers(QUOTAS, 0);
        let frames = (0..reports).fold(frames, |frames, _| frames.message(&report, 0));
        connect(&service).write_all(&frames.reset().bytes()).unwrap();
        wait_until("all hits are counted", || {
            let used = |user| service.counter("shop", &format!("proxied={user}"))["used"].as_u64();
            [users.start, users.end - 1].into_iter().all(|user| used(user) >= Some(2 * reports))
        });
    }
}

#[test]
fn calls_that_wait_for_redis_are_counted_though_the_client_leaves_and_the_service_ends() {
    let redis = Redis::start();
    let mut service = start(&redis.url());
    redis.signal("STOP");
    let mut client = connect(&service);
    client.write_all(&debits(300)).unwrap();
    leave_before_redis_answers(&client, &mut service, &redis);
    assert_eq!(redis.query::<u32>(&["GET", &redis.key("tokens=a")]), 300);
}

/// Nobody else has its token.
#[test]
fn what_a_call_takes_whose_client_leaves_before_the_answer_is_given_back() {
    let redis = Redis::start();
    let service = start(&redis.url());
    wait_until_counted(&service, 0);
    redis.signal("STOP");
    let mut client = connect(&service);
    let take = request("shop", vec![one("place", "a"), one("budget", "a")]).encode_to_vec();
    let takes = (0..10).fold(Frames::default(), |frames, _| frames.call(&take).reset());
    client.write_all(&takes.ping().bytes()).unwrap();
    while http2::read_frame(&mut client).0 != http2::PING {}
    redis.signal("CONT");
    for rule in ["place", "budget"] {
        let unused = format!("ratelimit_holds_total{{outcome=\"unused\",rule=\"{rule}\"}} 10\n");
        service.wait_for_metric(&unused);
    }
}

#[test]
fn a_lease_goes_back_whose_client_leaves_before_the_answer() {
    let redis = Redis::start();
    let service = start(&redis.url());
    redis.signal("STOP");
    let mut client = connect(&service);
    let descriptors = vec![one("hot", "a")];
    let lease = Call { descriptors, mode: Mode::Lease.into(), hits: Some(5), ..Call::default() };
    let message = DecideRequest { domain: "shop".to_owned(), calls: vec![lease] }.encode_to_vec();
    let call = |frames: Frames, method| {
        let frames = frames.many_headers(&format!("/tollkeeper.v1.Tollkeeper/{method}"), 0);
        frames.data(&message).reset()
    };
    let methods = iter::repeat_n("Decide", 10).chain(iter::repeat_n("DecideStream", 10));
    let frames = methods.fold(Frames::default(), call).ping();
    client.write_all(&frames.bytes()).unwrap();
    while http2::read_frame(&mut client).0 != http2::PING {}
    redis.signal("CONT");
    service.wait_for_metric("ratelimit_lease_hits_total{event=\"given_back\"} 100\n");
    assert_eq!(service.counter("shop", "hot=a")["used"], 0);
}

#[tokio::test]
async fn the_first_leases_of_a_batch_go_back_too_if_its_client_leaves_behind_them() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.port, 1);
    let service = Service::with(RULES).on(&proxy.url).flags(&["--decision-budget", "1m"]).ready();
    let lease = Call {
        descriptors: vec![one("hot", "a")],
        mode: Mode::Lease.into(),
        hits: Some(2),
        ..Call::default()
    };
    let calls = vec![lease; 200];
    let message = DecideRequest { domain: "shop".to_owned(), calls }.encode_to_vec();
    let call = Frames::default().many_headers("/tollkeeper.v1.Tollkeeper/Decide", 0);
    let call = call.data(&message).bytes();
    let mut client = connect(&service);
    proxy.step();
    client.write_all(&call).unwrap();
    // The first group has 80 calls.
    loop {
        proxy.request().await;
        let charged = redis.keys().into_iter().find(|key| key.contains("hot=a"));
        if charged.is_some_and(|key| redis.query::<u32>(&["GET", &key]) > 160) {
            break;
        }
        proxy.pass();
    }
    let mut leaves = Frames::default();
    leaves.stream = 1;
    client.write_all(&leaves.reset().ping().bytes()).unwrap();
    while http2::read_frame(&mut client).0 != http2::PING {}
    proxy.heal();
    proxy.pass();
    service.wait_for_metric("ratelimit_lease_hits_total{event=\"given_back\"} 400\n");
    assert_eq!(service.counter("shop", "hot=a")["used"], 0);
}

/// What is under way is read, and nothing more: of all requests, not of each.
#[test]
fn batches_whose_clients_have_left_read_no_further_counters() {
    let redis = Redis::start();
    let mut service =
        Service::with(RULES).on(&redis.url()).flags(&["--decision-budget", "1m"]).ready();
    let before = redis.runs_of("evalsha");
    redis.signal("STOP");
    let call = |number| {
        let descriptors = (0..4).map(|of| one("tokens", &format!("{number}-{of}"))).collect();
        Call { descriptors, mode: Mode::Read.into(), ..Call::default() }
    };
    let calls = (0..20).map(call).collect();
    let message = DecideRequest { domain: "shop".to_owned(), calls }.encode_to_vec();
    let frames = Frames::default().many_headers("/tollkeeper.v1.Tollkeeper/Decide", 0);
    let frames = frames.data(&message).reset().ping().bytes();
    for _ in 0..3 {
        let mut client = connect(&service);
        client.write_all(&frames).unwrap();
        while http2::read_frame(&mut client).0 != http2::PING {}
    }
    redis.signal("CONT");
    service.end();
    let runs = redis.runs_of("evalsha") - before;
    assert!(runs <= 16, "{runs} of 240 counters were read");
}

/// A client that gives up while Redis is slow.
#[test]
fn an_http_call_whose_client_has_left_is_counted() {
    let redis = Redis::start();
    let service = start(&redis.url());
    redis.signal("STOP");
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"tokens","value":"a"}]}]}"#;
    let head = format!("POST /json HTTP/1.1\r\nhost: test\r\ncontent-length: {}", body.len());
    for _ in 0..100 {
        let mut client = TcpStream::connect(service.http).unwrap();
        client.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    }
    // This request is served after them.
    assert_eq!(service.get("/healthz"), "OK");
    redis.signal("CONT");
    wait_until_counted(&service, 100);
}

/// Sends requests to the admin address while Redis stands still, and leaves. Returns how often the command ran.
#[track_caller]
fn runs_of_those_who_left(redis: &Redis, command: &str, requests: &[&str]) -> u64 {
    let mut service = start(&redis.url());
    // Its digests have a key from now on.
    let path = "/counters?domain=shop&descriptor=0123456789abcdef";
    assert_eq!(service.admin("GET", path).0, 404);
    let are_open = |count: usize| {
        service.wait_for_metric(&format!("ratelimit_connections{{listener=\"admin\"}} {count}\n"));
    };
    are_open(0);
    let before = redis.runs_of(command);
    redis.signal("STOP");
    let ask = |request: &&str| {
        let mut client = TcpStream::connect(service.admin).unwrap();
        client
            .write_all(format!("{request} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())
            .unwrap();
        client
    };
    let clients: Vec<_> = requests.iter().map(ask).collect();
    are_open(clients.len());
    drop(clients);
    are_open(0);
    redis.signal("CONT");
    service.end();
    redis.runs_of(command) - before
}

/// Only the first of them reads its counter.
#[test]
fn one_call_is_explained_at_a_time() {
    let redis = Redis::start();
    let path = "POST /explain?domain=shop&d=tokens=a";
    let runs = runs_of_those_who_left(&redis, "evalsha", &[path; 5]);
    assert!(runs <= 1, "{runs} counters were read");
}

/// Only the first of them takes a step.
#[test]
fn the_keys_are_walked_for_one_request_at_a_time() {
    let redis = Redis::start();
    let list = "GET /counters/list?domain=shop";
    let digest = "GET /counters?domain=shop&descriptor=0123456789abcdef";
    let runs = runs_of_those_who_left(&redis, "scan", &[list, digest, list, digest]);
    assert!(runs <= 1, "{runs} steps");
}

#[test]
fn a_walk_of_the_keys_ends_when_its_client_has_left() {
    let redis = Redis::start();
    let fill = "for number = 1, 50000 do redis.call('SET', number, '') end";
    redis.query::<()>(&["EVAL", fill, "0"]);
    let path = "GET /counters?domain=shop&descriptor=0123456789abcdef";
    let runs = runs_of_those_who_left(&redis, "scan", &[path]);
    assert!(runs <= 1, "{runs} steps");
}

#[test]
fn hits_beyond_the_largest_number_saturate() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = start(store);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        // Envoy turns `nan` into 2^63 hits.
        for count in [1 << 63, u64::MAX, 1] {
            let debit = hits(descriptor(&[("tokens", "a")]), count);
            let answer = runtime.block_on(service.ask(request("shop", vec![debit]))).unwrap();
            assert_eq!(spell(&answer), "OVER_LIMIT: OVER_LIMIT 0/1000000 YEAR", "{store}: {count}");
        }
    }
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("tokens=a")]), (1 << 53) - 1);
}

/// Closes the connection with a reset.
fn reset(client: TcpStream) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    client.set_nonblocking(true).unwrap();
    tokio::net::TcpStream::from_std(client).unwrap().set_zero_linger().unwrap();
}
