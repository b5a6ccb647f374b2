//! Policies that change, and an Envoy Gateway that restarts, ends, or gets other certificates.

use super::{Gateway, LIMITS, certificates, record};
use crate::support::prelude::*;

/// The service keeps domains that are missing this long after it has reconnected.
const GRACE: Duration = Duration::from_secs(10);

const PLAIN: &str = "      - limit: {requests: 3, unit: Hour}";
const FIVE: &str = "      - limit: {requests: 5, unit: Hour}";

/// A gateway whose route `plain` has nothing left.
fn start_exhausted() -> Gateway {
    let gateway = Gateway::start();
    for expected in [200, 200, 200, 429] {
        assert_eq!(gateway.get("/plain"), expected);
    }
    gateway
}

/// Waits for another stream than the one that was open before, while every request is answered by its limit.
#[track_caller]
fn wait_for_another_stream(gateway: &Gateway, before: &Value) {
    wait_until("another stream", || {
        assert_limits(gateway);
        let now = gateway.pod.control_plane();
        let is_new = now["connected"] == true && now["accepted_at"] != before["accepted_at"];
        is_new
    });
}

/// An exhausted limit denies, and other requests pass. While the service failed, both would be 500, and without rules 200.
#[track_caller]
fn assert_limits(gateway: &Gateway) {
    assert_eq!(gateway.get("/plain"), 429);
    assert_eq!(gateway.get("/shadow"), 200);
}

#[track_caller]
fn wait_for_loss(gateway: &Gateway) {
    wait_until("the stream is lost", || {
        assert_limits(gateway);
        gateway.pod.control_plane()["connected"] == false
    });
}

#[test]
fn an_edited_policy_applies_to_requests_and_keeps_what_was_counted() {
    let gateway = start_exhausted();
    let edit = Instant::now();
    gateway.write_policies(&LIMITS.replacen(PLAIN, FIVE, 1));
    wait_until("five an hour", || {
        let rules = gateway.pod.rules().join("\n");
        rules.contains("requests_per_unit=5")
    });
    record("an edited policy was in force after", &format!("{:.1?}", edit.elapsed()));
    // Four were counted.
    assert_eq!([gateway.get("/plain"), gateway.get("/plain")], [200, 429]);
}

#[test]
fn a_deleted_policy_ends_its_limit_alone() {
    let gateway = start_exhausted();
    let (first, others) = LIMITS.split_once("\n---\n").unwrap();
    assert!(first.contains("name: plain"));
    gateway.write_policies(others);
    wait_until("the rule is gone", || {
        let rules = gateway.pod.rules().join("\n");
        !rules.contains("/plain/")
    });
    wait_until("its requests pass", || gateway.get("/plain") == 200);
    let ban = [("x-ban", "yes")];
    assert_eq!(gateway.send("GET", "/kinds", &ban).0, 429);
}

#[test]
fn without_its_control_plane_the_rules_stay_and_no_call_fails() {
    let mut gateway = start_exhausted();
    let rules = gateway.pod.rules();
    gateway.kill_control_plane();
    wait_for_loss(&gateway);
    for _ in 0..100 {
        assert_limits(&gateway);
    }
    assert_eq!(gateway.pod.rules(), rules);
    let failure = gateway.pod.control_plane()["failure"].clone();
    assert!(failure.is_string(), "{failure}");
}

#[test]
fn a_restarted_control_plane_brings_the_same_rules_back_and_no_call_fails() {
    let mut gateway = start_exhausted();
    let rules = gateway.pod.rules();
    let before = gateway.pod.control_plane();
    gateway.kill_control_plane();
    wait_for_loss(&gateway);
    gateway.start_control_plane();
    wait_for_another_stream(&gateway, &before);
    // By then, what it has not sent is gone.
    let end = Instant::now() + GRACE + Duration::from_secs(1);
    while Instant::now() < end {
        assert_limits(&gateway);
    }
    assert_eq!(gateway.pod.rules(), rules);
}

/// It counts its versions from 1 again. For a client that named the last version, it would be silent.
#[test]
fn a_control_plane_that_restarts_without_policies_ends_all_limits() {
    let mut gateway = start_exhausted();
    let before = gateway.pod.control_plane();
    gateway.kill_control_plane();
    wait_for_loss(&gateway);
    gateway.write_policies("");
    gateway.start_control_plane();
    wait_until("no rule is left", || gateway.pod.rules().is_empty());
    let after = gateway.pod.control_plane();
    let versions = format!("{} and {}", before["version"], after["version"]);
    record("versions before and after a restart", &versions);
    wait_until("requests pass", || gateway.get("/plain") == 200);
}

#[test]
fn certificates_of_another_authority_are_used_without_a_restart_of_the_service() {
    let mut gateway = start_exhausted();
    let before = gateway.pod.control_plane();
    assert!(gateway.pod.shows_a_certificate_of_its_authority());
    certificates::rotate(&gateway.path("config"));
    gateway.write_secret();
    gateway.kill_control_plane();
    gateway.start_control_plane();
    wait_until("the service reconnects", || {
        let now = gateway.pod.control_plane();
        now["connected"] == true && now["accepted_at"] != before["accepted_at"]
    });
    let log = gateway.pod.log();
    let used = "the TLS files of the control plane have changed and are in use";
    assert!(log.contains(used), "{log}");
    wait_until("its clients see the new certificate", || {
        gateway.pod.shows_a_certificate_of_its_authority()
    });
    // Envoy reads the file with the authority of the service once, so its pods are replaced too.
    gateway.start_envoy();
    wait_until("Envoy has its routes", || gateway.try_status("GET", "/open", &[]) == 200);
    assert_limits(&gateway);
}
