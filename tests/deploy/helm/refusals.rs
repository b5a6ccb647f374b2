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
fn misspelled_values_are_refused() {
    for key in [
        "replica=2",
        "store.uri=redis://x",
        "store.passwordSecret.nam=x",
        "store.tls.caSecret.nam=x",
        "log.levle=info",
        "autoscaling.enable=true",
        "podDisruptionBudget.minAvailabe=1",
        "networkPolicy.client=x",
        "serviceAccount.nam=x",
        "monitoring.scrape.kid=none",
        "bundledRedis.enable=true",
        "bundledRedis.resources.limit.memory=1Gi",
        "resources.limit.memory=1Gi",
        "tls.clientCaSecret.nam=x",
        "admin.token=x",
        "controlPlane.uri=xds://a:1?node=b",
        "controlPlane.tls.caSecret.nam=x",
        "service.headles=true",
        "settings.drain=5s",
        "imagePullSecrets[0].nam=x",
        "test.domian=x",
        "rulesCheck.enable=true",
    ] {
        let reason = if key.starts_with("imagePull") { "not allowed" } else { "is not a value" };
        refused(&["--set", key], reason);
    }
}

#[test]
fn a_value_of_another_type_is_refused_by_its_name() {
    for [set, name] in rows(ROWS, "types") {
        refused(&["--set", &set], &name);
    }
}

#[test]
fn a_value_of_a_bad_form_is_refused_in_words_without_a_pattern() {
    for [set, reason] in rows(ROWS, "forms") {
        let error = refusal(&["--set", &set]);
        assert!(error.contains(&reason), "{set}: {error}");
        for part_of_a_pattern in ["pattern", "[a-z", "[0-9", "anyOf"] {
            assert!(!error.contains(part_of_a_pattern), "{set}: {error}");
        }
    }
    refused(&["--set-string", "maxMessageBytes=1023"], "must be a size from 1KiB to 64MiB");
    let bounds = "maxMessageBytes=64MiB,decisionBudget=60000ms,store.memoryCountersMax=1000000000,podDisruptionBudget.maxUnavailable=100%";
    render(&["--set", bounds]);
}

#[test]
fn a_flag_or_a_variable_of_another_value_is_refused_and_its_text_is_not_repeated() {
    for [set, reason] in rows(ROWS, "flags") {
        let error = refusal(&["--set", &set]);
        assert!(error.contains(&reason), "{set}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
    render(&["--set", "extraArgs={--workers=2},extraEnv[0].name=TOLLKEEPER_REFLECTION"]);
}

#[test]
fn a_bad_store_url_is_refused_in_words_and_not_repeated() {
    for url in [
        "redis://",
        "redis://:6379",
        "redis:///0",
        "redis://user@",
        "redis://h:x",
        "redis://h:65536",
        "redis://h:0",
        "redis://h h",
        "redis+sentinel://h",
        "redis+cluster://h/1",
        "http://h",
        "redis://u:s3cret@h:x",
    ] {
        let error = refusal(&["--set", &format!("store.url={url}")]);
        assert!(error.contains("store.url must be memory://, redis://host:port[/db]"), "{error}");
        assert!(!error.contains("s3cret") && !error.contains("[0-9"), "{error}");
    }
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
fn the_memory_store_with_several_replicas_is_refused_with_a_reason() {
    for set in ["replicas=2", "autoscaling.enabled=true"] {
        refused(&["--set", set], "each replica would count on its own");
    }
}

#[test]
fn a_password_in_the_store_url_is_refused_with_a_hint() {
    for url in ["redis://:s3cret@h:6379", "redis://user:s3cret@h", "redis://user:s3/cret@h"] {
        refused(&["--set", &format!("store.url={url}")], "store.passwordSecret");
    }
}

#[test]
fn rules_without_text_are_refused() {
    for set in [r"rules.rules\.yaml=null", r"rules.rules\.yaml= "] {
        refused(&["--set", set], "does not start without rules");
    }
    refused(&["--set-json", "rules={}"], "does not start without rules");
}

#[test]
fn two_sources_of_rules_are_refused_by_their_names() {
    let control_plane = "controlPlane.url=xds://h:1?node=a";
    let (config_map, rules) = ("existingRulesConfigMap=mine", r"rules.shop\.yaml=domain: shop");
    for (sources, names) in [
        ([control_plane, config_map], "controlPlane.url and existingRulesConfigMap are"),
        ([control_plane, rules], "controlPlane.url and rules are"),
        ([config_map, rules], "existingRulesConfigMap and rules are"),
    ] {
        refused(&["--set", &sources.join(",")], names);
    }
    for source in [control_plane, config_map, rules] {
        render(&["--set", source]);
        render(&["--set", source, "--set", "rules.old\\.yaml=null"]);
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
    let redis = "store.url=redis://h";
    for [set, reason] in rows(ROWS, "contradictions") {
        refused(&["--set", &set], &reason);
    }
    let own_egress = "networkPolicy.enabled=true,networkPolicy.clients[0].podSelector.a=b,networkPolicy.storePorts=null";
    render(&["--set", "store.url=redis://h:7000", "--set", own_egress]);
    let limit = "autoscaling.enabled=true,resources.requests.cpu=null,resources.limits.cpu=1";
    render(&["--set", redis, "--set", limit]);
}

#[test]
fn labels_that_the_chart_sets_are_refused_with_a_reason() {
    for label in ["app\\.kubernetes\\.io/name", "helm\\.sh/chart"] {
        refused(&["--set", &format!("podLabels.{label}=x")], "which the chart sets itself");
    }
    render(&["--set", "podLabels=null"]);
}

#[test]
fn optional_values_may_be_null() {
    let uses = "networkPolicy.enabled=true,networkPolicy.clients[0].podSelector.a=b,\
        tls.secret=s,tls.clientCaSecret.name=c,monitoring.scrape.kind=PodMonitor,monitoring.scrape.tlsConfig=null";
    let nulls = "settings=null,imagePullSecrets=null,global.imagePullSecrets=null";
    refused(&["--set", uses, "--set", nulls], "monitoring.scrape.tlsConfig is missing");
    render(&["--set", &uses.replace("PodMonitor", "none"), "--set", nulls]);
}
