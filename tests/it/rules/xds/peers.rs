//! Peers that are no control plane, and control planes without rules: what counts as connected, and what is logged.

use super::{metric, rules, start};
use crate::support::{ads::*, prelude::*, secured::Secured};

const NO_STREAM: &str = "no stream from the control plane";

fn url(address: impl std::fmt::Display) -> String {
    format!("xds://{address}?node={NODE}")
}

fn failed(service: &Service) -> f64 {
    metric(service, "ratelimit_xds_connections_total{outcome=\"failed\"}")
}

/// Waits for this many failed attempts, which must all have the one cause that is shown and logged.
#[track_caller]
fn fails_with(service: &Service, attempts: f64, expected: &str) {
    wait_until("failed attempts", || failed(service) >= attempts);
    let control_plane = &rules(service)["control_plane"];
    let failure = control_plane["failure"].as_str().unwrap();
    assert_eq!(failure, expected);
    assert_eq!(control_plane["connected"], false);
    assert_eq!(metric(service, "ratelimit_xds_connected"), 0.0);
    assert_eq!(metric(service, "ratelimit_xds_connections_total{outcome=\"opened\"}"), 0.0);
    let log = service.log();
    assert!(log.contains(expected), "{log}");
    assert_eq!(log.matches(NO_STREAM).count(), 1, "{log}");
    assert!(!log.contains("connected to the control plane"), "{log}");
}

#[test]
fn a_peer_that_says_nothing_is_not_connected_and_its_silence_is_logged() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = start(&url(mute.local_addr().unwrap()), &[]);
    fails_with(&service, 1.0, "no answer within 10s; with TLS, use xds+tls:// in --rules");
}

#[test]
fn a_peer_that_speaks_http_1_has_one_cause() {
    let peer = Service::shop().start();
    let service = start(&url(peer.http), &[]);
    let ended = "the server ended the connection instead of speaking HTTP/2 (gRPC); with TLS, use xds+tls:// in --rules";
    fails_with(&service, 4.0, ended);
}

#[test]
fn a_peer_that_speaks_tls_has_one_cause() {
    let peer = Secured::start(&[]);
    let service = start(&url(peer.service.grpc), &[]);
    fails_with(&service, 4.0, "the server speaks TLS on this port; use xds+tls:// in --rules");
}

#[test]
fn a_grpc_server_without_the_discovery_service_is_not_connected_and_its_refusal_stays_visible() {
    let peer = Service::shop().start();
    let service = start(&url(peer.grpc), &[]);
    let cause = "the server has no discovery service (UNIMPLEMENTED for \
                 envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources)";
    fails_with(&service, 4.0, cause);
}

#[test]
fn that_rules_stay_is_logged_only_once_there_are_some() {
    let ads = FakeAds::start();
    let port = ads.port;
    drop(ads);
    let service = start(&url(format_args!("127.0.0.1:{port}")), &[]);
    wait_until("a failure", || failed(&service) >= 1.0);
    assert!(service.log().contains("there are no rules yet"), "{}", service.log());
    assert!(!service.log().contains("the rules stay"), "{}", service.log());
    let ads = FakeAds::start_on(port);
    ads.request();
    ads.respond("1", "n1", &[]);
    ads.request();
    drop(ads);
    service.wait_for_log("the rules stay");
    let log = service.log();
    assert_eq!(log.matches("connected to the control plane").count(), 1, "{log}");
}

#[test]
fn a_service_that_becomes_ready_without_rules_warns_once() {
    const WARNING: &str = "no rules within 10s";
    let ads = FakeAds::start();
    let with_rules = start(&ads.url(), &[]);
    ads.request();
    ads.respond("1", "n1", &[]);
    with_rules.wait_until_ready();
    assert!(!with_rules.log().contains(WARNING), "{}", with_rules.log());

    let silent = FakeAds::start();
    let without = start(&silent.url(), &[]);
    without.wait_until_ready();
    let log = without.log();
    assert_eq!(log.matches(WARNING).count(), 1, "{log}");
    assert!(log.contains("every call passes until the control plane xds://"), "{log}");
}
