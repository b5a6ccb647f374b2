//! What Envoy Gateway's probes, its command `egctl` and its dashboard read.

use std::fs;

use super::{Gateway, pod, theirs};

#[test]
fn the_probes_of_the_deployment_succeed() {
    let gateway = Gateway::start();
    for name in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let probe = &gateway.pod.container[name]["httpGet"];
        assert_eq!(probe["scheme"], "HTTP", "{name}");
        let port = u16::try_from(probe["port"].as_u64().unwrap()).unwrap();
        let answer = gateway.pod.get(port, probe["path"].as_str().unwrap());
        assert_eq!(answer, (200, "OK".to_owned()), "{name}");
    }
}

#[test]
fn rlconfig_lists_every_policy_for_egctl() {
    let gateway = Gateway::start();
    let (status, _) = gateway.pod.get(pod::DEBUG, "/rlconfig");
    assert_eq!(status, 200);
    let rules = gateway.pod.rules().join("\n");
    let route = "httproute/default/plain/rule/0/match/0/*";
    let plain = format!("default/eg/http.{route}_{route}");
    assert!(rules.contains(&plain), "{rules}");
    for limit in [
        "unit=HOUR requests_per_unit=3, shadow_mode: false, quota_mode: false",
        "unit=MONTH requests_per_unit=100, shadow_mode: false, quota_mode: false",
        "unit=DAY requests_per_unit=4, shadow_mode: false, quota_mode: false",
        "unit=YEAR requests_per_unit=1000, shadow_mode: false, quota_mode: false",
        "unit=HOUR requests_per_unit=1, shadow_mode: true, quota_mode: false",
        "unit=HOUR requests_per_unit=21, shadow_mode: false, quota_mode: false",
        "unit=SECOND requests_per_unit=0, shadow_mode: false, quota_mode: false",
    ] {
        assert!(rules.contains(limit), "{limit}: {rules}");
    }
}

/// The names in its dashboard, at the port that its annotations give to Prometheus, except the names of a program in Go.
#[test]
fn the_metrics_of_the_dashboard_count_hits_and_denials() {
    let gateway = Gateway::start();
    for _ in 0..5 {
        gateway.get("/plain");
    }
    let (_, metrics) = gateway.pod.get(gateway.pod.metrics.port(), "/metrics");
    let dashboard = fs::read_to_string(theirs("dashboard.json")).unwrap();
    let mut count = 0;
    for part in dashboard.split("\"expr\": \"").skip(1) {
        let name: String = part
            .chars()
            .skip_while(|character| *character == '(')
            .take_while(|character| character.is_alphanumeric() || *character == '_')
            .collect();
        if !name.starts_with("go_") {
            count += 1;
            assert!(metrics.contains(&format!("\n{name}")), "{name}: {metrics}");
        }
    }
    assert!(count >= 5, "{count} names in the dashboard");
    for (name, value) in [("total_hits", 5), ("over_limit", 2)] {
        let line = metrics.lines().find(|line| {
            line.starts_with(&format!("ratelimit_service_rate_limit_{name}{{"))
                && line.contains("/plain/")
        });
        let line = line.unwrap_or_else(|| panic!("{name}: {metrics}"));
        assert!(line.ends_with(&format!(" {value}")), "{line}");
    }
}
