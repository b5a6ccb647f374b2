//! Values that the chart refuses, and what Helm then shows: the value's name, and what is allowed.

use crate::support::{chart::*, rows::rows};

const ROWS: &str = include_str!("refusals.txt");

/// What Helm shows when it does not render the chart with these values.
#[track_caller]
pub fn refusal(arguments: &[&str]) -> String {
    let rendered = helm(&[&["template", "release", "helm"], arguments].concat());
    rendered.err().unwrap_or_else(|| panic!("not refused: {arguments:?}"))
}

#[track_caller]
pub fn refused(arguments: &[&str], reason: &str) {
    let error = refusal(arguments);
    assert!(error.contains(reason), "{arguments:?}: {error}");
}

#[test]
fn a_value_of_another_type_is_refused_by_its_name() {
    for [set, name] in rows(ROWS, "types") {
        refused(&["--set", &set], &name);
    }
}

#[test]
fn a_value_of_a_bad_form_is_refused_in_words_without_a_pattern_or_a_secret() {
    for [set, reason] in ["forms", "flags", "stores"].map(|section| rows(ROWS, section)).concat() {
        let error = refusal(&["--set", &set]);
        assert!(error.contains(&reason), "{set}: {error}");
        for hidden in ["pattern", "[a-z", "[0-9", "anyOf", "s3cret"] {
            assert!(!error.contains(hidden), "{set}: {error}");
        }
    }
    refused(&["--set-string", "maxMessageBytes=1023"], "must be a size from 1KiB to 64MiB");
    let bounds = "maxMessageBytes=64MiB,decisionBudget=60000ms,store.memoryCountersMax=1000000000,podDisruptionBudget.maxUnavailable=100%";
    render(&["--set", bounds]);
    render(&["--set", "extraArgs={--workers=2},extraEnv[0].name=TOLLKEEPER_REFLECTION"]);
    for url in [
        "redis://user@[::1]:6379/15",
        "valkeys://h:65535/",
        "redis+sentinel://a:1\\,b/main/2",
        "rediss+cluster://a\\,b:2/0",
        "redis+unix:///run/redis.sock?db=1",
    ] {
        render(&["--set", &format!("store.url={url}")]);
    }
}

#[test]
fn every_problem_of_the_values_is_reported_at_once() {
    let error = refusal(&["--set", "replicas=2,decisionBudget=15,log.level=inf0"]);
    for name in ["store.url memory://", "decisionBudget is", "log.level is"] {
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn a_secret_without_a_name_is_refused() {
    for [key, name] in rows(ROWS, "secrets") {
        let reason = format!("{key} is \"other\", but {name} is empty: name the Secret");
        refused(&["--set", &format!("{key}=other")], &reason);
    }
}

#[test]
fn values_that_contradict_each_other_are_refused_by_their_names() {
    for [set, reason] in rows(ROWS, "contradictions") {
        refused(&["--set", &set], &reason);
    }
    refused(&["--set-json", "rules={}"], "does not start without rules");
    let own_egress = "networkPolicy.enabled=true,networkPolicy.clients[0].podSelector.a=b,networkPolicy.storePorts=null";
    render(&["--set", "store.url=redis://h:7000", "--set", own_egress]);
    let limit = "autoscaling.enabled=true,resources.requests.cpu=null,resources.limits.cpu=1";
    render(&["--set", "store.url=redis://h", "--set", limit]);
    render(&["--set", "podLabels=null"]);
    let control_plane = "controlPlane.url=xds://h:1?node=a";
    for source in [control_plane, "existingRulesConfigMap=mine", r"rules.shop\.yaml=domain: shop"] {
        render(&["--set", source]);
        render(&["--set", source, "--set", r"rules.old\.yaml=null"]);
    }
}

#[test]
fn optional_values_may_be_null() {
    let uses = "networkPolicy.enabled=true,networkPolicy.clients[0].podSelector.a=b,\
        tls.secret=s,tls.clientCaSecret.name=c,monitoring.scrape.kind=PodMonitor,monitoring.scrape.tlsConfig=null";
    let nulls = "settings=null,imagePullSecrets=null,global.imagePullSecrets=null";
    refused(&["--set", uses, "--set", nulls], "monitoring.scrape.tlsConfig is missing");
    render(&["--set", &uses.replace("PodMonitor", "none"), "--set", nulls]);
}
