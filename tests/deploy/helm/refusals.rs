//! Values that the chart refuses, and what Helm then shows: the value's name, and what is allowed.

use crate::support::chart::{helm, render};

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
    for (set, name) in [
        ("replicas=two", "/replicas"),
        ("replicas=-1", "/replicas"),
        ("replicas=10001", "/replicas"),
        ("drainSeconds=5s", "/drainSeconds"),
        ("drainSeconds=-1", "/drainSeconds"),
        ("autoscaling.targetCPU=0", "/autoscaling/targetCPU"),
        ("countDenied=no thanks", "/countDenied"),
        ("settings.connection-age=30", "/settings/connection-age"),
        ("store.overLimitCache=10000001", "/store/overLimitCache"),
        ("store.memoryCountersMax=999", "/store/memoryCountersMax"),
        ("store.memoryCountersMax=1000000001", "/store/memoryCountersMax"),
        ("store.url=null", "missing property 'url'"),
        ("store.tls.certSecret.keyKey=null", "missing property 'keyKey'"),
        ("log=null", "missing property 'log'"),
        ("probes.readiness.periodSeconds=0", "/probes/readiness/periodSeconds"),
        ("dnsPolicy=First", "/dnsPolicy"),
        ("extraContainers[0].name=a", "/extraContainers/0"),
        ("admin.tokenSecret=token", "/admin/tokenSecret"),
        ("podLabels.a=1", "/podLabels/a"),
        ("nodeSelector.a=true", "/nodeSelector/a"),
        ("service.annotations.a=1", "/service/annotations/a"),
        ("tolerations[0]=edge", "/tolerations/0"),
        (r"rules.a\.yaml.domain=shop", "/rules/a.yaml"),
    ] {
        refused(&["--set", set], name);
    }
}

#[test]
fn a_value_of_a_bad_form_is_refused_in_words_without_a_pattern() {
    for (set, reason) in [
        ("nameOverride=ABC", "nameOverride is \"ABC\", and must be lower-case letters"),
        ("fullnameOverride=1a", "\"1a\" cannot be the name of a Service"),
        ("image.digest=sha256:1", "image.digest is \"sha256:1\", and must be sha256: and 64"),
        ("existingRulesConfigMap=My_rules", "existingRulesConfigMap is \"My_rules\", and must be"),
        ("serviceAccount.name=a b", "serviceAccount.name is \"a b\""),
        ("podDisruptionBudget.maxUnavailable=0", "maxUnavailable is \"0\", and must be at least 1"),
        ("podDisruptionBudget.maxUnavailable=0%", "maxUnavailable is \"0%\""),
        ("podDisruptionBudget.maxUnavailable=101%", "maxUnavailable is \"101%\""),
        ("podDisruptionBudget.maxUnavailable=-1", "maxUnavailable is \"-1\""),
        ("decisionBudget=15", "decisionBudget is \"15\", and must be a duration from 1ms to 1m"),
        ("decisionBudget=0ms", "decisionBudget is \"0ms\""),
        ("decisionBudget=000s", "decisionBudget is \"000s\""),
        ("decisionBudget=60001ms", "decisionBudget is \"60001ms\""),
        ("decisionBudget=2m", "decisionBudget is \"2m\""),
        ("monitoring.scrape.interval=30", "interval is \"30\", and must be a duration such as 30s"),
        ("settings.connection-age=5 min", "settings.connection-age is \"5 min\""),
        ("settings.max-arriving-bytes=1GB", "settings.max-arriving-bytes is \"1GB\""),
        ("settings.header-limit=a b", "settings.header-limit is \"a b\", and must be the name of"),
        ("settings.key-prefix=a{b}", "settings.key-prefix is \"a{b}\""),
        ("controlPlane.tls.name=a b", "controlPlane.tls.name is \"a b\", and must be a DNS name"),
        ("store.tls.name=https://h", "store.tls.name is \"https://h\""),
        ("log.level=inf0", "log.level is \"inf0\", and must be error, warn, info, debug or off"),
        ("monitoring.alerts.runbook=a b", "monitoring.alerts.runbook is \"a b\""),
        ("test.descriptor=user", "test.descriptor is \"user\", and must be a descriptor such as"),
        ("extraArgs={-x}", "extraArgs contains \"-x\""),
        (
            r"rules.README\.md=text",
            "rules contains \"README.md\": the name of a rule file must end",
        ),
        (r"rules.a\.test\.yaml=text", "rules contains \"a.test.yaml\": a name in .test.yaml"),
        ("maxMessageBytes=4MB", "maxMessageBytes is \"4MB\", and must be a size from 1KiB"),
        ("maxMessageBytes=0MiB", "must be a size from 1KiB to 64MiB"),
        ("maxMessageBytes=65537KiB", "must be a size from 1KiB to 64MiB"),
        ("tls.secret=My_cert", "tls.secret is \"My_cert\", and must be the name of a Secret"),
        ("tls.secret=cert,tls.keyKey=a b", "tls.keyKey is \"a b\", and must be a key of a Secret"),
        ("controlPlane.url=xds://h?node=a", "controlPlane.url must be xds://host:port?node=ID"),
        ("controlPlane.url=xds://h:1", "controlPlane.url must be xds://host:port?node=ID"),
        ("controlPlane.url=xds://h:65536?node=a", "controlPlane.url must be"),
        ("controlPlane.url=http://h:1?node=a", "controlPlane.url must be"),
    ] {
        let error = refusal(&["--set", set]);
        assert!(error.contains(reason), "{set}: {error}");
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
    for (set, reason) in [
        (
            "extraArgs={--store=redis://:s3cret@h}",
            "extraArgs contains --store, which another value",
        ),
        ("extraArgs={--grpc-addr=0.0.0.0:99}", "extraArgs contains --grpc-addr, which another"),
        (
            "extraArgs={--workers=2},settings.workers=3",
            "extraArgs contains --workers, which another",
        ),
        (
            "extraEnv[0].name=TOLLKEEPER_STORE,extraEnv[0].value=redis://:s3cret@h",
            "extraEnv contains TOLLKEEPER_STORE, but --store has precedence",
        ),
    ] {
        let error = refusal(&["--set", set]);
        assert!(error.contains(reason), "{set}: {error}");
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
    for (key, name) in [
        ("store.passwordSecret.key", "store.passwordSecret.name"),
        ("store.sentinel.passwordSecret.key", "store.sentinel.passwordSecret.name"),
        ("store.tls.caSecret.key", "store.tls.caSecret.name"),
        ("store.tls.certSecret.certKey", "store.tls.certSecret.name"),
        ("store.tls.certSecret.keyKey", "store.tls.certSecret.name"),
        ("controlPlane.tls.caSecret.key", "controlPlane.tls.caSecret.name"),
        ("controlPlane.tls.certSecret.certKey", "controlPlane.tls.certSecret.name"),
        ("controlPlane.tls.certSecret.keyKey", "controlPlane.tls.certSecret.name"),
        ("tls.certKey", "tls.secret"),
        ("tls.keyKey", "tls.secret"),
        ("tls.clientCaSecret.key", "tls.clientCaSecret.name"),
        ("admin.tokenSecret.key", "admin.tokenSecret.name"),
        ("holds.keySecret.key", "holds.keySecret.name"),
    ] {
        let reason = format!("{key} is \"other\", but {name} is empty: name the Secret");
        refused(&["--set", &format!("{key}=other")], &reason);
    }
}

#[test]
fn values_that_contradict_each_other_are_refused_by_their_names() {
    let redis = "store.url=redis://h";
    for (sets, reason) in [
        (&["bundledRedis.enabled=true", redis][..], "store.url names another store"),
        (&["store.passwordSecret.name=s"], "store.passwordSecret needs a store.url"),
        (
            &["bundledRedis.enabled=true,store.passwordSecret.name=s"],
            "store.passwordSecret needs a store.url",
        ),
        (&[redis, "store.sentinel.user=u"], "store.sentinel needs a store.url"),
        (&[redis, "store.sentinel.passwordSecret.name=s"], "store.sentinel needs a store.url"),
        (&[redis, "store.tls.name=h"], "store.tls needs a store.url that begins with rediss"),
        (&[redis, "store.tls.caSecret.name=ca"], "store.tls needs"),
        (&["store.tls.certSecret.name=cert"], "store.tls needs"),
        (&["controlPlane.tls.name=h"], "needs a controlPlane.url that begins with xds+tls://"),
        (
            &["controlPlane.url=xds://h:1?node=a,controlPlane.tls.caSecret.name=ca"],
            "controlPlane.tls needs",
        ),
        (&["tls.clientCaSecret.name=ca"], "tls.clientCaSecret needs tls.secret"),
        (&["clientDomains.a={shop}"], "clientDomains needs tls.clientCaSecret"),
        (&["test.clientSecret=cert"], "test.clientSecret needs tls.secret"),
        (
            &["monitoring.alerts.disabled={Late}"],
            "monitoring.alerts names Late, but the alerts are Tollkeeper",
        ),
        (&["admin.service=true"], "admin.service needs admin.tokenSecret"),
        (
            &["networkPolicy.adminClients[0].podSelector.a=b"],
            "networkPolicy.adminClients needs admin.tokenSecret",
        ),
        (&["service.nodePorts.grpc=30081"], "service.nodePorts needs the service.type"),
        (
            &["service.externalTrafficPolicy=Local"],
            "service.externalTrafficPolicy needs the service.type LoadBalancer",
        ),
        (
            &[redis, "autoscaling.enabled=true,autoscaling.minReplicas=11"],
            "autoscaling.minReplicas is greater than autoscaling.maxReplicas",
        ),
        (
            &[redis, "autoscaling.enabled=true,resources.requests.cpu=null"],
            "autoscaling.targetCPU is a part of resources.requests.cpu, which is missing",
        ),
        (&["service.grpcPort=8080"], "service.grpcPort and service.httpPort are both 8080"),
        (
            &["store.url=redis+cluster://a:6379\\,b:7001/0,networkPolicy.enabled=true"],
            "networkPolicy.storePorts does not contain 7001, a port of store.url",
        ),
        (
            &["networkPolicy.enabled=true,networkPolicy.storePorts={7000}", redis],
            "networkPolicy.storePorts does not contain 6379",
        ),
        (
            &[
                "store.url=redis+sentinel://u@[::1]/main",
                "networkPolicy.enabled=true,networkPolicy.storePorts={6379}",
            ],
            "networkPolicy.storePorts does not contain 26379",
        ),
    ] {
        refused(&["--set", &sets.join(",")], reason);
    }
    let own_egress = "networkPolicy.enabled=true,networkPolicy.storePorts=null";
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
