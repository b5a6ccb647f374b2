//! Conformance to Envoy's protocol: clients generated from its protos, in Rust and in Python, and the
//! standard gRPC services for health and reflection.

use envoy_types::pb::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
    },
};
use envoy_types::pb::google::protobuf::UInt64Value;
use futures_util::FutureExt as _;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{v1, v1alpha};

use crate::support::{prelude::*, service as ours};

fn theirs() -> RateLimitRequest {
    RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry { key: "user".into(), value: "alice".into() }],
            limit: Some(RateLimitOverride { requests_per_unit: 7, unit: 6 }),
            hits_addend: Some(UInt64Value { value: 3 }),
            is_negative_hits: false,
        }],
        hits_addend: 9,
    }
}

#[test]
fn requests_have_the_same_bytes_as_those_of_envoys_protos() {
    let bytes = theirs().encode_to_vec();
    let ours = tollkeeper_proto::RateLimitRequest::decode(bytes.as_slice()).unwrap();
    assert_eq!(ours.encode_to_vec(), bytes);
    let descriptor = &ours.descriptors[0];
    assert_eq!(&descriptor.entries[0].value[..], b"alice");
    assert_eq!(descriptor.hits_addend, Some(3));
    assert_eq!(descriptor.limit.as_ref().unwrap().requests_per_unit, 7);
    assert_eq!(ours.hits_addend, 9);
}

#[tokio::test]
async fn a_client_of_envoys_protos_reads_the_answer() {
    let service = Service::shop().start();
    let mut client = RateLimitServiceClient::new(service.channel().await);
    let answer: RateLimitResponse = client.should_rate_limit(theirs()).await.unwrap().into_inner();
    assert_eq!(answer.overall_code, 1);
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!((status.code, status.limit_remaining), (1, 4));
    assert_eq!((limit.requests_per_unit, limit.unit), (7, 6));
    assert!(status.duration_until_reset.as_ref().unwrap().seconds >= 1);
}

#[test]
fn a_python_client_gets_the_same_answers() {
    let service = Service::shop().start();
    let mut client = Command::new(tool("python"))
        .arg(root().join("tests/support/rls_client.py"))
        .arg(service.grpc.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let questions = r#"["shop", [[[["user", "two"]], null]]]
["shop", [[[["user", "two"]], 0], [[["free", "x"]], null]]]
["shop", [[[["user", "two"]], 2], [[["tenant", "acme"]], null]]]
["unknown", [[[["user", "two"]], null]]]
["", [[[["user", "two"]], null]]]
"#;
    client.stdin.take().unwrap().write_all(questions.as_bytes()).unwrap();
    let answers = String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(
        answers,
        r#"["OK", ["OK", 1, [2, "YEAR"]]]
["OK", ["OK", 1, [2, "YEAR"]], ["OK", 4294967295, null]]
["OVER_LIMIT", ["OVER_LIMIT", 0, [2, "YEAR"]], ["OK", 1000, [1000, "MONTH"]]]
["OK", ["OK", 0, null]]
["INVALID_ARGUMENT", "domain: must not be empty"]
"#
    );
}

#[tokio::test]
async fn grpc_health_answers_to_three_names_and_reports_the_drain() {
    let mut service = Service::shop().flags(&["--drain", "60s"]).ready();
    let mut client = HealthClient::new(service.channel().await);
    let mut statuses = async || {
        let mut statuses = Vec::new();
        for name in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
            let request = HealthCheckRequest { service: name.into() };
            let status = client.check(request).await.unwrap().into_inner().status();
            statuses.push(status.as_str_name());
        }
        statuses
    };
    assert_eq!(statuses().await, ["SERVING"; 3]);
    service.process().signal("TERM");
    while service.exchange("GET", "/readyz", b"").0 == 200 {
        tokio::task::yield_now().await;
    }
    // Calls are still answered, so that callers have time to go elsewhere.
    assert_eq!(statuses().await, ["NOT_SERVING"; 3]);
    service.process().signal("TERM");
    assert!(service.process().0.wait().unwrap().success(), "a second signal ends it");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_on_a_connection_that_stays_open_during_the_drain() {
    let mut service = Service::shop().flags(&["--drain", "5s"]).ready();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(service.client().await);
    }
    let (drain, draining) = tokio::sync::watch::channel(false);
    let mut calls = tokio::task::JoinSet::new();
    for mut client in clients {
        let draining = draining.clone();
        calls.spawn(async move {
            let mut count = 0;
            // Until health reports the drain, and then ten more calls.
            let mut left = 10;
            while left > 0 {
                let call = ours::request("shop", vec![ours::descriptor(&[("free", "x")])]);
                client.should_rate_limit(call).await.unwrap();
                count += 1;
                left -= u32::from(*draining.borrow());
            }
            count
        });
    }
    service.process().signal("TERM");
    while service.exchange("GET", "/readyz", b"").0 == 200 {
        tokio::task::yield_now().await;
    }
    drain.send(true).unwrap();
    while let Some(count) = calls.join_next().await {
        assert!(count.unwrap() >= 10);
    }
    assert!(service.process().0.wait().unwrap().success(), "{}", service.log());
}

#[tokio::test]
async fn an_unknown_service_has_no_health() {
    let service = Service::shop().start();
    let request = || HealthCheckRequest { service: "unknown".into() };
    let mut client = HealthClient::new(service.channel().await);
    let status = client.check(request()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    // Watching it is no error, since a client would ask again and again.
    let mut watched = client.watch(request()).await.unwrap().into_inner();
    let status = watched.message().await.unwrap().unwrap().status();
    assert_eq!(status, ServingStatus::ServiceUnknown);
    assert!(watched.message().now_or_never().is_none(), "it stays open");
}

#[tokio::test]
async fn the_flag_turns_on_reflection_in_both_versions() {
    let service = Service::shop().flags(&["--reflection"]).start();
    let (name, host) = ("envoy.service.ratelimit.v3.RateLimitService", String::new());
    {
        use v1::server_reflection_request::MessageRequest;
        let message_request = Some(MessageRequest::FileContainingSymbol(name.into()));
        let ask = v1::ServerReflectionRequest { host: host.clone(), message_request };
        let mut client =
            v1::server_reflection_client::ServerReflectionClient::new(service.channel().await);
        let stream = tokio_stream::iter([ask]);
        let mut answers = client.server_reflection_info(stream).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap();
        assert!(format!("{answer:?}").contains("FileDescriptorResponse"), "{answer:?}");
    }
    {
        use v1alpha::server_reflection_request::MessageRequest;
        let message_request = Some(MessageRequest::FileContainingSymbol(name.into()));
        let ask = v1alpha::ServerReflectionRequest { host, message_request };
        let mut client =
            v1alpha::server_reflection_client::ServerReflectionClient::new(service.channel().await);
        let stream = tokio_stream::iter([ask]);
        let mut answers = client.server_reflection_info(stream).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap();
        assert!(format!("{answer:?}").contains("FileDescriptorResponse"), "{answer:?}");
    }
}
