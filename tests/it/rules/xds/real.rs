//! A real go-control-plane, of Envoy Gateway's version and before it changed its semantics.

use super::{ask, bad, limit, metric, rules, start, wait_for};
use crate::support::{ads::NODE, control_plane::*, prelude::*};

const BOTH: [Semantics; 2] = [Semantics::New, Semantics::Old];

/// Waits until `shop` has this limit a year, or none.
#[track_caller]
fn wait_for_limit(service: &Service, limit: Option<u32>) {
    let expected = limit.map(|limit| format!("{limit} per year"));
    wait_until(&format!("{expected:?}"), || {
        let shown = rules(service);
        let found = shown["domains"][0]["rules"][0]["limit"].as_str().map(str::to_owned);
        found == expected
    });
}

#[tokio::test]
async fn rules_come_change_and_go() {
    for semantics in BOTH {
        let mut server = ControlPlane::start(semantics);
        let service = start(&server.url(), &[]);
        server.set("1", &[limit("shop", "user", 3)]);
        wait_for_limit(&service, Some(3));
        assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 2/3 YEAR");
        server.set("2", &[limit("shop", "user", 4)]);
        wait_for_limit(&service, Some(4));
        assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 2/4 YEAR");
        server.set("3", &[]);
        wait_for_limit(&service, None);
        server.set("4", &[limit("shop", "user", 5)]);
        wait_for_limit(&service, Some(5));
        server.set_without_the_type();
        wait_for_limit(&service, None);
        assert_eq!(rules(&service)["control_plane"]["version"], "", "{semantics:?}");
    }
}

#[test]
fn a_bad_snapshot_is_refused_a_few_times_and_a_good_one_follows() {
    for semantics in BOTH {
        let mut server = ControlPlane::start(semantics);
        let service = start(&server.url(), &[]);
        server.set("1", &[limit("shop", "user", 3)]);
        wait_for_limit(&service, Some(3));
        server.set("2", &[bad("shop")]);
        wait_until("a refusal", || metric(&service, "ratelimit_xds_nacks_total") >= 1.0);
        // This server answers a refusal at once with the same again: without a pause, 1,700 a second.
        thread::sleep(Duration::from_secs(2));
        let refusals = server.events().into_iter().filter(|event| {
            event["error"].as_str().is_some_and(|error| error.contains("must not be empty"))
        });
        assert!((1..=3).contains(&refusals.count()), "{semantics:?}");
        assert_eq!(rules(&service)["control_plane"]["version"], "1");
        server.set("3", &[limit("shop", "user", 5)]);
        wait_for_limit(&service, Some(5));
    }
}

/// Envoy Gateway counts its versions from 1 again.
#[tokio::test]
async fn a_restarted_server_that_uses_the_same_version_again_is_not_missed() {
    for semantics in BOTH {
        let mut server = ControlPlane::start(semantics);
        let service = start(&server.url(), &[]);
        server.set("1", &[limit("shop", "user", 3)]);
        wait_for_limit(&service, Some(3));
        server.stop();
        wait_until("the loss", || metric(&service, "ratelimit_xds_connected") == 0.0);
        assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 2/3 YEAR");
        server.set("1", &[limit("shop", "user", 4)]);
        server.start_again();
        wait_for_limit(&service, Some(4));
        assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 2/4 YEAR");
        // And without limits, which the same version would hide.
        server.stop();
        wait_until("the loss", || metric(&service, "ratelimit_xds_connected") == 0.0);
        server.set("1", &[]);
        server.start_again();
        wait_for_limit(&service, None);
    }
}

/// A service that presents the certificate in this folder.
fn start_with_tls(server: &ControlPlane, name: &str, folder: &Path) -> Service {
    let path = |name: &str| folder.join(name).display().to_string();
    let (ca, certificate, key) = (path("ca.crt"), path("tls.crt"), path("tls.key"));
    let url = format!("xds+tls://{}?node={NODE}", server.address);
    let flags = ["--rules-tls-ca", &ca, "--rules-tls-cert", &certificate, "--rules-tls-key", &key];
    start(&url, &[&flags[..], &["--rules-tls-name", name]].concat())
}

#[track_caller]
fn wait_for_failure(service: &Service, words: &str) {
    wait_until(words, || {
        let failure = rules(service)["control_plane"]["failure"].clone();
        failure.as_str().is_some_and(|failure| failure.contains(words))
    });
}

#[test]
fn with_tls_both_sides_are_verified_and_certificates_that_change_are_used() {
    let authority = Authority::new();
    let (theirs, ours) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    authority.server(&["envoy-gateway"]).install(theirs.path());
    authority.client().install(ours.path());
    let mut server = ControlPlane::start_with_tls(theirs.path());
    server.set("1", &[limit("shop", "user", 3)]);
    let service = start_with_tls(&server, "envoy-gateway", ours.path());
    wait_for(&service, "1");

    let wrong_name = start_with_tls(&server, "another", ours.path());
    wait_for_failure(
        &wrong_name,
        "the server's certificate is for envoy-gateway, not for another; connect to one of its names, or set --rules-tls-name",
    );

    // Another authority: first the server's files change, then ours.
    let next = Authority::new();
    next.server(&["envoy-gateway"]).install(theirs.path());
    server.stop();
    server.set("2", &[limit("shop", "user", 4)]);
    server.start_again();
    wait_for_failure(&service, "not signed by a trusted CA; set --rules-tls-ca to its CA");
    assert_eq!(rules(&service)["domains"][0]["rules"][0]["limit"], "3 per year");
    fs::copy(&next.certificate, ours.path().join("ca.crt")).unwrap();
    wait_for_failure(&service, "certificate");
    next.client().install(ours.path());
    wait_for_limit(&service, Some(4));
    assert!(
        service.log().contains("the TLS files of the control plane have changed and are in use")
    );
}

#[test]
fn a_server_without_tls_is_named_as_such() {
    let ours = TempDir::new().unwrap();
    Authority::new().client().install(ours.path());
    let server = ControlPlane::start(Semantics::New);
    let service = start_with_tls(&server, "envoy-gateway", ours.path());
    wait_for_failure(&service, "the server does not speak TLS on this port; use xds:// in --rules");
}

#[test]
fn a_server_with_tls_that_says_nothing_without_it_is_named_as_such() {
    let (authority, theirs) = (Authority::new(), TempDir::new().unwrap());
    authority.server(&["envoy-gateway"]).install(theirs.path());
    let server = ControlPlane::start_with_tls(theirs.path());
    let service = start(&server.url(), &[]);
    wait_for_failure(
        &service,
        "the server ended the connection instead of speaking HTTP/2 (gRPC); with TLS, use xds+tls:// in --rules",
    );
    wait_until("failed attempts", || {
        let failed = metric(&service, "ratelimit_xds_connections_total{outcome=\"failed\"}");
        failed >= 4.0
    });
    assert_eq!(service.log().matches("no stream from").count(), 1, "{}", service.log());
}
