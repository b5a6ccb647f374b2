//! What is logged about an OTLP collector that cannot be used: one line, with one cause as a sentence.

use crate::support::{otlp::Receiver, prelude::*, secured::Secured};

/// The cause that a service logs once, though traces and metrics are sent several times to this endpoint.
async fn cause(protocol: &str, endpoint: &str, ca: Option<&Authority>) -> String {
    cause_within("30000", protocol, endpoint, ca).await
}

/// The same with this timeout in milliseconds.
async fn cause_within(
    timeout: &str,
    protocol: &str,
    endpoint: &str,
    ca: Option<&Authority>,
) -> String {
    let mut environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", timeout),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "20"),
    ];
    if let Some(ca) = ca {
        environment.push(("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.certificate.to_str().unwrap()));
    }
    let mut service = Service::shop().environment(&environment).ready();
    let mut client = service.client().await;
    for _ in 0..3 {
        // More than the queue holds: no call waits for the collector.
        for _ in 0..100 {
            client.should_rate_limit(shop("user=a")).await.unwrap();
        }
        service.wait_for_log("OTLP");
    }
    // What is left is sent at the end.
    service.end();
    let log = service.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("OTLP")).collect();
    let [line] = lines[..] else { panic!("{lines:#?}") };
    assert!(!log.contains(endpoint) && !log.contains("its own words"), "{log}");
    line.split_once(" error=").unwrap().1.to_owned()
}

const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_or_says_nothing() {
    let gone = nobody();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let (gone, mute) = (format!("http://{gone}"), format!("http://{}", mute.local_addr().unwrap()));
    for protocol in PROTOCOLS {
        assert_eq!(cause(protocol, &gone, None).await, "Connection refused (os error 111)");
        assert_eq!(cause_within("1000", protocol, &mute, None).await, "no answer within 1s");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses() {
    let (receiver, endpoint) = Receiver::start().await;
    receiver.refuses.store(true, Ordering::Relaxed);
    assert_eq!(cause("grpc", &endpoint, None).await, "gRPC code: PermissionDenied");
    assert_eq!(cause("http/protobuf", &endpoint, None).await, "HTTP status 403 Forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_http_1_that_is_no_collector() {
    let peer = Service::shop().start();
    let endpoint = format!("http://{}", peer.http);
    let not_grpc = "the server ended the connection instead of speaking HTTP/2 (gRPC)";
    assert_eq!(cause("grpc", &endpoint, None).await, not_grpc);
    assert_eq!(cause("http/protobuf", &endpoint, None).await, "HTTP status 404 Not Found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_tls_without_it_or_with_another_authority() {
    let (peer, stranger) = (Secured::start(&[]), Authority::new());
    let plain = Service::shop().start();
    for (protocol, address) in PROTOCOLS.into_iter().zip([peer.service.grpc, peer.service.http]) {
        let without = format!("http://{address}");
        let speaks_tls = "the server speaks TLS on this port; use https:// in the endpoint";
        assert_eq!(cause(protocol, &without, None).await, speaks_tls);
        let untrusted = "the server's certificate is not signed by a trusted CA; \
                         set OTEL_EXPORTER_OTLP_CERTIFICATE to its CA";
        let with = format!("https://{address}");
        assert_eq!(cause(protocol, &with, Some(&stranger)).await, untrusted);
        let no_tls = "the server does not speak TLS on this port; use http:// in the endpoint";
        let with = format!("https://{}", plain.http);
        assert_eq!(cause(protocol, &with, Some(&stranger)).await, no_tls);
    }
}
