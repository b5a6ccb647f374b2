use std::time::Duration;

use super::*;
use crate::{
    engine::rule::{ExhaustedChecks, ModeOverride, WhenDenied},
    settings::{
        HangUp, ReadyNeeds, Resolved, RuleSource, RulesNeeded, Settings, StoreUrl, TypedFlags,
        resolve,
    },
    store::redis::wire::{endpoint::AclUser, password::Password},
    telemetry::{MetricsCompat, OtlpProtocol, ParentUse, RootSampling, Sampling},
};

fn resolved(variables: &[(&str, &str)]) -> Resolved {
    let flags = TypedFlags::from([("compat", vec!["envoyproxy-ratelimit".into()])]);
    resolve(&flags, &Environment::new(variables.iter().copied()))
}

#[track_caller]
fn good(variables: &[(&str, &str)]) -> Settings {
    let resolved = resolved(variables);
    assert_eq!(resolved.problems, [""; 0], "{variables:?}");
    resolved.settings
}

#[track_caller]
fn silent(variables: &[(&str, &str)]) -> Settings {
    let settings = good(variables);
    assert_eq!(settings.warnings, [""; 0], "{variables:?}");
    settings
}

#[track_caller]
fn refused(variables: &[(&str, &str)], problem: &str) {
    assert_eq!(resolved(variables).problems, [problem], "{variables:?}");
}

#[track_caller]
fn warned(variables: &[(&str, &str)], warnings: &[&str]) {
    assert_eq!(good(variables).warnings, warnings, "{variables:?}");
}

#[track_caller]
fn files(settings: &Settings) -> Vec<std::path::PathBuf> {
    match &settings.rules.source.value {
        RuleSource::Files(paths) => paths.clone(),
        RuleSource::ControlPlane(target) => panic!("{target}"),
    }
}

#[test]
fn without_a_variable_the_defaults_are_those_of_the_old_service() {
    let settings = silent(&[]);
    assert_eq!(settings.listen.grpc.value.to_string(), "0.0.0.0:8081");
    assert_eq!(settings.listen.http.value.to_string(), "0.0.0.0:8080");
    assert_eq!(settings.listen.debug.as_ref().unwrap().value.to_string(), "0.0.0.0:6070");
    assert!(settings.listen.admin.is_none() && settings.listen.metrics.is_none());
    let socket = "redis+unix:///var/run/nutcracker/ratelimit.sock?db=0";
    assert_eq!(settings.store.url.to_string(), socket);
    let folder = std::path::Path::new("/srv/runtime_data/current/config");
    assert_eq!(files(&settings), [folder]);
    assert_eq!(settings.telemetry.log.filter.to_string(), "warn");
    assert_eq!(settings.rules.options.defaults.when_denied, WhenDenied::Counted);
    assert_eq!(settings.rules.options.defaults.exhausted_checks, ExhaustedChecks::Allowed);
    assert_eq!(settings.process.hang_up, HangUp::Stops);
}

#[test]
fn its_environment_is_read_only_on_request() {
    let flags = TypedFlags::new();
    let variables =
        Environment::new([("PORT", "no"), ("REDIS_URL", "h"), ("BACKEND_TYPE", "memcache")]);
    let Resolved { settings, problems, .. } = resolve(&flags, &variables);
    assert_eq!((problems, settings.warnings), (vec![], vec![]));
    assert_eq!(settings.store.url.to_string(), "memory://");
    assert_eq!(settings.process.hang_up, HangUp::Ignored);
}

#[test]
fn our_own_variables_have_precedence_and_the_others_are_named() {
    let settings = good(&[
        ("TOLLKEEPER_STORE", "memory://"),
        ("REDIS_URL", "rediss://not-read"),
        ("REDIS_AUTH", "s3cret"),
        ("REDIS_TYPE", "SINGLE"),
        ("BACKEND_TYPE", "memcache"),
        ("TOLLKEEPER_GRPC_ADDR", "127.0.0.1:1"),
        ("GRPC_PORT", "2"),
        ("GRPC_HOST", "::"),
        ("GRPC_UDS", "/socket"),
        ("TOLLKEEPER_COUNT_DENIED", "off"),
    ]);
    assert_eq!(settings.store.url.to_string(), "memory://");
    assert_eq!(settings.listen.grpc.value.to_string(), "127.0.0.1:1");
    assert_eq!(settings.rules.options.defaults.when_denied, WhenDenied::Free);
    let expected = [
        "GRPC_UDS has no effect: TOLLKEEPER_GRPC_ADDR is set",
        "REDIS_AUTH has no effect: TOLLKEEPER_STORE is set",
        "BACKEND_TYPE has no effect: TOLLKEEPER_STORE is set",
        "GRPC_HOST has no effect: TOLLKEEPER_GRPC_ADDR is set",
        "GRPC_PORT has no effect: TOLLKEEPER_GRPC_ADDR is set",
        "REDIS_TYPE has no effect: TOLLKEEPER_STORE is set",
        "REDIS_URL has no effect: TOLLKEEPER_STORE is set",
    ];
    assert_eq!(settings.warnings, expected);
}

#[test]
fn a_variable_with_two_effects_is_reported_only_if_both_are_overridden() {
    let admin = ("TOLLKEEPER_ADMIN_ADDR", "127.0.0.1:1");
    let debug = silent(&[admin, ("DEBUG_PORT", "7")]).listen.debug.unwrap();
    assert_eq!(debug.value.to_string(), "0.0.0.0:7");
    let compat = ("TOLLKEEPER_METRICS_COMPAT", "none");
    silent(&[compat, ("USE_PROMETHEUS", "true"), ("HOST", "::")]);
    let store = ("TOLLKEEPER_STORE", "redis://h");
    let (tls, ca) = (("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/no"));
    let no_tls = |name: &str| format!("{name} has no effect: only rediss:// uses TLS");
    warned(&[store, tls, ca], &[&no_tls("REDIS_TLS_CACERT")]);
    let ours = ("TOLLKEEPER_STORE_TLS_CA", "/no");
    let expected = [
        "REDIS_TLS has no effect: TOLLKEEPER_STORE is set",
        "REDIS_TLS_CACERT has no effect: TOLLKEEPER_STORE_TLS_CA is set",
        &no_tls(ours.0),
    ];
    warned(&[store, tls, ca, ours], &expected);
}

#[test]
fn a_password_file_has_precedence_over_a_password_in_a_variable() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "s3cret").unwrap();
    let ours = ("TOLLKEEPER_STORE_PASSWORD_FILE", file.path().to_str().unwrap());
    let auth = "REDIS_AUTH has no effect: TOLLKEEPER_STORE_PASSWORD_FILE is set";
    warned(&[ours, ("REDIS_AUTH", "a:b")], &[auth]);
    let theirs = ("REDIS_AUTH_FILE", ours.1);
    silent(&[theirs]);
    let both = [theirs, ("REDIS_AUTH", "a:b")];
    warned(&both, &["REDIS_AUTH_FILE has no effect: REDIS_AUTH is set"]);
}

#[test]
fn addresses_are_made_of_hosts_and_ports() {
    let settings = silent(&[
        ("HOST", "::"),
        ("GRPC_HOST", "localhost"),
        ("GRPC_PORT", "9"),
        ("DEBUG_PORT", "0"),
        ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
    ]);
    assert_eq!(settings.listen.http.value.to_string(), "[::]:8080");
    assert_eq!(settings.listen.grpc.value.to_string(), "127.0.0.1:9");
    assert_eq!(settings.listen.debug.map(|address| address.value.port()), Some(0));
    assert_eq!(settings.listen.connections.age, Some(Duration::from_secs(5400)));
    assert_eq!(silent(&[("GRPC_MAX_CONNECTION_AGE", "0")]).listen.connections.age, None);
    let socket = "GRPC_UDS: not supported: gRPC is served on TCP only; set GRPC_HOST and GRPC_PORT";
    refused(&[("GRPC_UDS", "/socket")], socket);
}

#[test]
fn metrics_have_an_address_if_they_are_asked_for() {
    let on = ("USE_PROMETHEUS", "T");
    let metrics = |variables: &[(&str, &str)]| {
        let settings = silent(&[&[on], variables].concat());
        assert_eq!(settings.telemetry.export.compat, MetricsCompat::Envoyproxy);
        let (address, path) = settings.listen.metrics.unwrap();
        format!("{}{path}", address.value)
    };
    assert_eq!(metrics(&[]), "0.0.0.0:9090/metrics");
    assert_eq!(metrics(&[("PROMETHEUS_ADDR", ":19001")]), "0.0.0.0:19001/metrics");
    assert_eq!(metrics(&[("PROMETHEUS_ADDR", ":1"), ("HOST", "::")]), "[::]:1/metrics");
    let path = ("PROMETHEUS_PATH", "/stats/all");
    assert_eq!(metrics(&[("PROMETHEUS_ADDR", "127.0.0.1:1"), path]), "127.0.0.1:1/stats/all");
    warned(
        &[("PROMETHEUS_ADDR", ":1"), path, ("USE_PROMETHEUS", "0")],
        &[
            "PROMETHEUS_ADDR has no effect: USE_PROMETHEUS is not true",
            "PROMETHEUS_PATH has no effect: USE_PROMETHEUS is not true",
        ],
    );
    assert_eq!(metrics(&[("PROMETHEUS_ADDR", "localhost:1"), path]), "127.0.0.1:1/stats/all");
    assert_eq!(metrics(&[("PROMETHEUS_ADDR", "[::1]:1"), path]), "[::1]:1/stats/all");
    let address = "PROMETHEUS_ADDR: invalid value `h:1`: must be an IP address and a port, or a \
                   colon and a port, such as :9090";
    refused(&[on, ("PROMETHEUS_ADDR", "h:1")], address);
    let path = "PROMETHEUS_PATH: invalid value `metrics`: must be a path such as /metrics, of at \
                most 256 visible ASCII characters";
    refused(&[on, ("PROMETHEUS_PATH", "metrics")], path);
}

#[test]
fn tls_is_for_grpc_and_needs_its_switch() {
    let certificate = ("GRPC_SERVER_TLS_CERT", "/no/cert");
    let key = ("GRPC_SERVER_TLS_KEY", "/no/key");
    let ca = ("GRPC_CLIENT_TLS_CACERT", "/no/ca");
    let off = "has no effect: GRPC_SERVER_USE_TLS is not true";
    let warnings = [certificate.0, key.0, ca.0].map(|name| format!("{name} {off}"));
    assert_eq!(good(&[certificate, key, ca]).warnings, warnings);
    let on = ("GRPC_SERVER_USE_TLS", "true");
    let missing = "GRPC_SERVER_TLS_CERT: /no/cert: No such file or directory (os error 2)";
    refused(&[on, certificate, key], missing);
    let name = ("GRPC_CLIENT_TLS_SAN", "client");
    let name_problem = "GRPC_CLIENT_TLS_SAN: not supported: set TOLLKEEPER_CLIENT_DOMAINS to a \
                        file with the names of clients";
    assert_eq!(resolved(&[on, certificate, key, name]).problems, [name_problem, missing]);
}

#[test]
fn half_of_a_tls_pair_is_one_problem_with_the_name_of_the_missing_variable() {
    let on = ("GRPC_SERVER_USE_TLS", "true");
    let certificate = ("GRPC_SERVER_TLS_CERT", "/no");
    let key = ("GRPC_SERVER_TLS_KEY", "/no");
    let ca = ("GRPC_CLIENT_TLS_CACERT", "/no");
    let both = "GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY";
    refused(&[on], &format!("GRPC_SERVER_USE_TLS: needs {both}"));
    refused(&[on, certificate], "GRPC_SERVER_TLS_CERT: needs GRPC_SERVER_TLS_KEY");
    refused(&[on, key], "GRPC_SERVER_TLS_KEY: needs GRPC_SERVER_TLS_CERT");
    refused(&[on, ca], &format!("GRPC_CLIENT_TLS_CACERT: needs {both}"));
    refused(&[on, ca, certificate], "GRPC_SERVER_TLS_CERT: needs GRPC_SERVER_TLS_KEY");
    let ours = ("TOLLKEEPER_TLS_CERT", "/no");
    refused(&[on, ours], "TOLLKEEPER_TLS_CERT: needs --tls-key");
    refused(&[on, ours, certificate], "TOLLKEEPER_TLS_CERT: needs --tls-key");

    let redis = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "h:1"), ("REDIS_TLS", "true")];
    let [cert, key] = ["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"];
    refused(&[&redis[..], &[(cert, "/no")]].concat(), &format!("{cert}: needs {key}"));
    refused(&[&redis[..], &[(key, "/no")]].concat(), &format!("{key}: needs {cert}"));
    let ours = ("TOLLKEEPER_STORE_TLS_KEY", "/no");
    refused(&[&redis[..], &[ours]].concat(), "TOLLKEEPER_STORE_TLS_KEY: needs --store-tls-cert");

    let control_plane =
        [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")];
    let [cert, key] = ["CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"];
    refused(&[&control_plane[..], &[(cert, "/no")]].concat(), &format!("{cert}: needs {key}"));
    refused(&[&control_plane[..], &[(key, "/no")]].concat(), &format!("{key}: needs {cert}"));
}

fn store(variables: &[(&str, &str)]) -> String {
    let settings = good(variables);
    let StoreUrl::Redis(url) = &settings.store.url else { panic!("no Redis") };
    let password = url.access.password.as_ref().map(|password| password.read().unwrap());
    let user = name_of(&url.access.user);
    format!("{url} {}:{}", user, password.unwrap_or_default())
}

/// The name of a user, if there is one, which is never shown.
fn name_of(user: &Option<AclUser>) -> &str {
    match user {
        Some(AclUser::Named(name) | AclUser::BesidePassword { name, .. }) => name,
        None => "",
    }
}

#[test]
fn every_form_of_redis_url_is_read() {
    let tcp = ("REDIS_SOCKET_TYPE", "tcp");
    let url = |url| ("REDIS_URL", url);
    let auth = |auth| ("REDIS_AUTH", auth);
    let sentinel = ("REDIS_TYPE", "SENTINEL");
    let cluster = ("REDIS_TYPE", "cluster");
    let tls = ("REDIS_TLS", "1");
    assert_eq!(store(&[tcp, url("redis:6379")]), "redis://redis:6379/0 :");
    assert_eq!(store(&[tcp, url("h:1"), auth("p@:ss/%")]), "redis://***:***@h:1/0 p@:ss/%");
    assert_eq!(store(&[tcp, url("h:1"), auth("s3cret")]), "redis://:***@h:1/0 :s3cret");
    assert_eq!(store(&[tcp, url("redis://h:1/11"), auth("p")]), "redis://:***@h:1/11 :p");
    assert_eq!(store(&[tcp, url("redis://u:p@h:1/2")]), "redis://u:***@h:1/2 u:p");
    assert_eq!(store(&[tcp, url("h:1"), tls]), "rediss://h:1/0 :");
    assert_eq!(store(&[url("/run/a?b.sock")]), "redis+unix:///run/a?b.sock?db=0 :");
    let sentinels = url("main,a:26379,b:26380");
    let expected = "redis+sentinel://***:***@a:26379,b:26380/main/0 u:p";
    assert_eq!(store(&[sentinel, sentinels, auth("u:p")]), expected);
    assert_eq!(store(&[cluster, url("a:1,b:2"), tls]), "rediss+cluster://a:1,b:2 :");
    assert_eq!(store(&[cluster, url("redis://a:1,redis://b")]), "redis+cluster://a:1,b:6379 :");
}

#[test]
fn nothing_of_redis_auth_is_shown_since_all_of_it_may_be_a_password() {
    let tcp = ("REDIS_SOCKET_TYPE", "tcp");
    let settings = good(&[tcp, ("REDIS_URL", "h:1"), ("REDIS_AUTH", "s3:cret")]);
    let StoreUrl::Redis(url) = &settings.store.url else { panic!("no Redis") };
    assert_eq!(url.to_string(), "redis://***:***@h:1/0");
    let user = url.access.user.as_ref().unwrap();
    assert_eq!(user.to_string(), "the user in REDIS_AUTH");
    assert!(!format!("{settings:?}").contains("s3"), "{settings:?}");
    let with_colon = [tcp, ("REDIS_URL", "h:1"), ("REDIS_AUTH", "default:s3:cret")];
    assert_eq!(store(&with_colon), "redis://***:***@h:1/0 default:s3:cret");
}

#[test]
fn a_bad_redis_url_is_refused_without_its_text() {
    let tcp = ("REDIS_SOCKET_TYPE", "tcp");
    for (variables, problem) in [
        (&[("REDIS_URL", "s3cret:1")][..], "must be the absolute path of a socket, since"),
        (&[tcp, ("REDIS_URL", "redis://:s3cret@h:x")], "host 1: the port must be"),
        (
            &[tcp, ("REDIS_URL", "redis://:s3cret@h"), ("REDIS_AUTH", "s3cret")],
            "has a password, and so",
        ),
        (&[tcp], "must be set: host and port"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "s3cret")], "must be the master's name"),
        (&[("REDIS_TYPE", "CLUSTER")], "must be nodes of the cluster"),
        (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "redis://:s3cret@a:1")], "must be nodes"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", ",a:1")], "must be the master's name"),
        (&[tcp, ("REDIS_URL", "rediss://:s3cret@h")], "rediss:// is not supported here: write"),
        (&[tcp, ("REDIS_URL", "http://:s3cret@h")], "must be host:port, such as redis:6379, or"),
        (&[tcp, ("REDIS_URL", "/s3cret")], "must be host:port, such as redis:6379, since"),
        (&[tcp, ("REDIS_URL", "h:1?s3cret")], "takes no query"),
        (&[tcp, ("REDIS_URL", "a:1,b:2")], "has several hosts: for these set REDIS_TYPE"),
        (&[("REDIS_TLS", "true")], "a Unix socket has no TLS"),
    ] {
        let problems = resolved(variables).problems.join("\n");
        assert!(
            problems.starts_with(&format!("REDIS_URL: {problem}")),
            "{variables:?}: {problems}"
        );
        assert!(!problems.contains("s3cret"), "{problems}");
        assert!(!problems.contains("redis+"), "{problems}");
    }
}

#[test]
fn sentinels_have_a_login_of_their_own() {
    let of = |auth| {
        let variables =
            [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main,a:1"), ("REDIS_SENTINEL_AUTH", auth)];
        let StoreUrl::Redis(url) = silent(&variables).store.url else { panic!("no Redis") };
        let access = url.sentinel_access;
        let password = access.password.as_ref().map(Password::read).unwrap().unwrap();
        format!("{} {password}", name_of(&access.user))
    };
    assert_eq!(of("p"), " p");
    assert_eq!(of("u:p:q"), "u p:q");
    warned(
        &[("REDIS_SENTINEL_AUTH", "p")],
        &["REDIS_SENTINEL_AUTH has no effect: REDIS_TYPE is not SENTINEL"],
    );
}

#[test]
fn limits_and_answers_follow_their_variables() {
    let settings = silent(&[
        ("SHADOW_MODE", "true"),
        ("NEAR_LIMIT_RATIO", "0.5"),
        ("CACHE_KEY_PREFIX", "p:"),
        ("REDIS_POOL_SIZE", "20"),
        ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "TRUE"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "t"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
        ("LOG_LEVEL", "Warning"),
        ("LOG_FORMAT", "JSON"),
    ]);
    assert_eq!(settings.rules.options.defaults.mode_override, ModeOverride::Shadow);
    assert_eq!(settings.rules.options.defaults.when_denied, WhenDenied::Free);
    assert_eq!(settings.store.key_prefix, "p:");
    assert_eq!(settings.store.pool_size, 20);
    assert_eq!(settings.store.ready, ReadyNeeds::Store);
    let [limit, remaining, _] = settings.calls.headers.classic.clone().unwrap();
    assert_eq!((&*limit, &*remaining), ("X-Limit", "RateLimit-Remaining"));
    for (level, ours) in [("panic", "error"), ("trace", "debug"), ("info", "info")] {
        let settings = silent(&[("LOG_LEVEL", level)]);
        assert_eq!(settings.telemetry.log.filter.to_string(), ours);
    }
    warned(
        &[("SHADOW_MODE", "true"), ("QUOTA_MODE", "true")],
        &["QUOTA_MODE has no effect: SHADOW_MODE is on"],
    );
    warned(
        &[("LIMIT_RESET_HEADER", "X")],
        &["LIMIT_RESET_HEADER has no effect: LIMIT_RESPONSE_HEADERS_ENABLED is not true"],
    );
}

#[test]
fn readiness_needs_the_rules_that_it_needed() {
    let (healthy, force) =
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "FORCE_START_WITHOUT_INITIAL_CONFIG");
    for (kind, variables, expected) in [
        ("GRPC_XDS_SOTW", &[][..], RulesNeeded::Once),
        ("GRPC_XDS_SOTW", &[(force, "false")], RulesNeeded::Once),
        ("GRPC_XDS_SOTW", &[(force, "true")], RulesNeeded::None),
        ("GRPC_XDS_SOTW", &[(force, "true"), (healthy, "true")], RulesNeeded::Always),
        ("FILE", &[(force, "true")], RulesNeeded::None),
        ("FILE", &[(healthy, "true")], RulesNeeded::Always),
    ] {
        let settings = silent(&[variables, &[("CONFIG_TYPE", kind)]].concat());
        assert_eq!(settings.rules.needed, expected, "{kind} {variables:?}");
    }
}

#[test]
fn the_size_of_the_local_cache_becomes_a_number_of_counters() {
    for (bytes, counters) in [("0", 0), ("1", 1), ("1048576", 8192), ("99999999999", 10_000_000)] {
        let settings = silent(&[("LOCAL_CACHE_SIZE_IN_BYTES", bytes)]);
        assert_eq!(settings.store.over_limit_cache, counters, "{bytes}");
    }
}

#[test]
fn a_bad_value_names_its_variable_its_form_and_its_bound() {
    for (name, value, allowed) in [
        ("PORT", "65536", "a whole number from 0 to 65535, without leading zeros"),
        ("GRPC_PORT", "08081", "a whole number from 0 to 65535, without leading zeros"),
        ("HOST", "example.com", "an IP address, such as 0.0.0.0 or ::"),
        ("REDIS_TLS", "yes", "true or false, also as 1, t, 0 or f"),
        ("GRPC_MAX_CONNECTION_AGE", "30", "a duration with units, such as 10s or 1h30m"),
        ("REDIS_TIMEOUT", "10", "a duration with units, such as 10s or 1h30m"),
        ("REDIS_POOL_SIZE", "-1", "a whole number of 0 or more, without leading zeros"),
        ("NEAR_LIMIT_RATIO", "80%", "a number, such as 0.8"),
        ("REDIS_SOCKET_TYPE", "udp", "one of: unix, tcp"),
        ("REDIS_TYPE", "RING", "one of: SINGLE, SENTINEL, CLUSTER"),
        ("CONFIG_TYPE", "XDS", "one of: FILE, GRPC_XDS_SOTW"),
        ("BACKEND_TYPE", "dynamo", "one of: redis, memcache"),
        ("LOG_LEVEL", "loud", "one of: panic, fatal, error, warn, warning, info, debug, trace"),
        ("USE_STATSD", "maybe", "true or false, also as 1, t, 0 or f"),
    ] {
        refused(&[(name, value)], &format!("{name}: invalid value `{value}`: must be {allowed}"));
    }
}

#[test]
fn a_value_beyond_our_bound_is_read_as_the_bound_with_a_warning() {
    for (name, value, bound, limit) in [
        ("GRPC_MAX_CONNECTION_AGE", "48h", "24h", "more than the maximum"),
        ("GRPC_MAX_CONNECTION_AGE", "100us", "1s", "less than the minimum"),
        ("REDIS_POOL_SIZE", "2000", "1000", "more than the maximum"),
        ("REDIS_POOL_SIZE", "0", "1", "less than the minimum"),
        ("NEAR_LIMIT_RATIO", "1.5", "1", "more than the maximum"),
    ] {
        let warning = format!("{name}: `{value}` is {limit} here: {bound} is used");
        warned(&[(name, value)], &[&warning]);
    }
    let settings = good(&[("GRPC_MAX_CONNECTION_AGE", "25h"), ("REDIS_POOL_SIZE", "1001")]);
    assert_eq!(settings.listen.connections.age, Some(Duration::from_secs(24 * 3600)));
    assert_eq!(settings.store.pool_size, 1000);
    let overridden = "GRPC_MAX_CONNECTION_AGE has no effect: TOLLKEEPER_CONNECTION_AGE is set";
    let ours = ("TOLLKEEPER_CONNECTION_AGE", "1m");
    warned(&[ours, ("GRPC_MAX_CONNECTION_AGE", "48h")], &[overridden]);
}

#[test]
fn each_variable_without_effect_is_one_warning() {
    for row in envoyproxy_ratelimit_variables() {
        let name = row.name.replace('…', "X_TAGS");
        let why = match row.effect {
            Effect::Nothing(why) | Effect::AsAsked(_, why) => why,
            Effect::Sets(_) => continue,
        };
        let value = match (&row.form, &row.effect) {
            (_, Effect::AsAsked("true", _)) => "false",
            (variable::VariableForm::Switch, _) => "true",
            (variable::VariableForm::Time, _) => "1s",
            (variable::VariableForm::Number { .. }, _) => "1",
            (variable::VariableForm::Among(values), _) => values[0],
            _ => "s3cret",
        };
        let settings = good(&[(&name, value)]);
        assert_eq!(settings.warnings, [format!("{name} has no effect: {why}")]);
        if let Effect::AsAsked(asked, _) = row.effect {
            silent(&[(&name, asked)]);
        }
    }
}

#[test]
fn spans_are_exported_only_if_they_are_enabled() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
    let off = silent(&[endpoint]).telemetry.export;
    assert!(off.export_traces.is_none() && off.export_metrics.is_none());

    let on = ("TRACING_ENABLED", "true");
    let export = silent(&[
        on,
        endpoint,
        ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
        ("TRACING_SERVICE_NAMESPACE", "eg"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-1"),
        ("TRACING_SAMPLING_RATE", "0.5"),
    ])
    .telemetry
    .export;
    assert!(export.export_metrics.is_none() && export.export_logs.is_none());
    let traces = export.export_traces.unwrap();
    assert_eq!(traces.protocol, OtlpProtocol::HttpProtobuf);
    assert_eq!(traces.variable, endpoint.0);
    let sampling = Sampling { parent: ParentUse::Followed, root: RootSampling::Ratio(0.5) };
    assert_eq!(export.sampling, sampling);
    for pair in [
        ("service.name", "envoy-ratelimit"),
        ("service.namespace", "eg"),
        ("service.instance.id", "pod-1"),
    ] {
        assert!(export.resource.contains(&(pair.0, pair.1.to_owned())), "{pair:?}");
    }

    let traces = |variables: &[(&str, &str)]| {
        let export = silent(&[&[on], variables].concat()).telemetry.export;
        let traces = export.export_traces.unwrap();
        (traces.url.to_string(), traces.protocol)
    };
    let http = OtlpProtocol::HttpProtobuf;
    assert_eq!(traces(&[]), ("http://localhost:4318/".to_owned(), http));
    let grpc = ("TRACING_EXPORTER_PROTOCOL", "grpc");
    assert_eq!(traces(&[grpc]), ("http://localhost:4317/".to_owned(), OtlpProtocol::Grpc));
    warned(&[grpc], &["TRACING_EXPORTER_PROTOCOL has no effect: TRACING_ENABLED is not true"]);
}

#[test]
fn statsd_gets_metrics_if_it_is_asked_for() {
    assert_eq!(silent(&[]).telemetry.statsd, None);
    let on = ("USE_STATSD", "true");
    assert_eq!(silent(&[on]).telemetry.statsd.unwrap(), "localhost:8125");
    let place = [on, ("STATSD_HOST", "statsd.example"), ("STATSD_PORT", "9125")];
    assert_eq!(silent(&place).telemetry.statsd.unwrap(), "statsd.example:9125");
    let bad = "STATSD_HOST: invalid value `a b:8125`: must be a host and a port, such as statsd:8125, or off";
    refused(&[on, ("STATSD_HOST", "a b")], bad);
}

#[test]
fn requests_get_headers_if_they_are_asked_for() {
    let names = |variables: &[(&str, &str)]| silent(variables).calls.headers.in_request.clone();
    assert_eq!(names(&[]), None);
    let on = ("LIMIT_REQUEST_HEADERS_ENABLED", "true");
    let own = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"].map(str::to_owned);
    assert_eq!(names(&[on]), Some(own));
    let left = ("LIMIT_REQUEST_REMAINING_HEADER", "x-left");
    assert_eq!(names(&[on, left]).unwrap()[1], "x-left");
    let why =
        "LIMIT_REQUEST_REMAINING_HEADER has no effect: LIMIT_REQUEST_HEADERS_ENABLED is not true";
    warned(&[left], &[why]);
}

#[test]
fn a_misspelt_variable_is_a_warning_and_those_of_others_are_none() {
    for (name, meant) in [
        ("LIMIT_RESPONSE_HEADERS_ENABLE", "LIMIT_RESPONSE_HEADERS_ENABLED"),
        ("REDIS_POOLSIZE", "REDIS_POOL_SIZE"),
        ("GRPC_MAX_CONECTION_AGE", "GRPC_MAX_CONNECTION_AGE"),
    ] {
        warned(&[(name, "1")], &[&format!("{name} has no effect; did you mean {meant}?")]);
    }
    for name in ["REDIS_HOST", "REDIS_PORT", "REDIS_PORT_6379_TCP", "HOSTNAME", "LOG_FILE"] {
        silent(&[(name, "1")]);
    }
}

#[test]
fn rule_files_are_in_a_folder_of_three_parts() {
    let settings = silent(&[
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
    ]);
    assert_eq!(files(&settings), [std::path::Path::new("/data/ratelimit/config")]);
    let settings = silent(&[("RUNTIME_SUBDIRECTORY", "/sub/"), ("RUNTIME_APPDIRECTORY", "/app")]);
    let folder = "/srv/runtime_data/current/sub/app";
    assert_eq!(files(&settings), [std::path::Path::new(folder)]);
    let settings = silent(&[("RUNTIME_ROOT", "/"), ("RUNTIME_APPDIRECTORY", "/")]);
    assert_eq!(files(&settings), [std::path::Path::new("/")]);
    warned(
        &[("CONFIG_GRPC_XDS_NODE_ID", "a")],
        &["CONFIG_GRPC_XDS_NODE_ID has no effect: CONFIG_TYPE is not GRPC_XDS_SOTW"],
    );
}

fn translated(variables: &[(&str, &str)]) -> Translated {
    translate(&Environment::new(variables.iter().copied()), &|_| None)
}

#[test]
fn a_control_plane_without_tls_has_the_defaults_of_the_old_client() {
    let kind = ("CONFIG_TYPE", "GRPC_XDS_SOTW");
    let rules = |variables: &[(&str, &str)]| {
        let translated = translated(&[&[kind], variables].concat());
        translated.settings["rules"].value.to_str().unwrap().to_owned()
    };
    assert_eq!(rules(&[]), "xds://localhost:18000?node=default");
    let url = ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///ai:18002");
    let node = ("CONFIG_GRPC_XDS_NODE_ID", "a b&c");
    assert_eq!(rules(&[url, node]), "xds://ai:18002?node=a%20b%26c");
    let RuleSource::ControlPlane(target) = silent(&[kind, url, node]).rules.source.value else {
        panic!("the rules come from files")
    };
    assert_eq!(target.to_string(), "xds://ai:18002?node=a b&c");
    let bad = "must be a host and a port, such as localhost:18000";
    for (written, problem) in [
        ("ai", bad.to_owned()),
        ("ai:x", bad.to_owned()),
        ("user@ai:1", bad.to_owned()),
        ("http://ai:18002", format!("{bad}, without a scheme")),
        (
            "https://ai:18002",
            format!("{bad}, without https://; for TLS set CONFIG_GRPC_XDS_SERVER_USE_TLS to true"),
        ),
    ] {
        let name = "CONFIG_GRPC_XDS_SERVER_URL";
        refused(&[kind, (name, written)], &format!("{name}: {problem}"));
    }
    let node = "CONFIG_GRPC_XDS_NODE_ID: must be at most 256 bytes without control characters";
    refused(&[kind, ("CONFIG_GRPC_XDS_NODE_ID", "a\nb")], node);
}
