use std::time::Duration;

use super::*;
use crate::engine::rule::WhenDenied;

fn flags(flags: &[(&'static str, &str)]) -> TypedFlags {
    flags.iter().map(|(flag, value)| (*flag, vec![value.into()])).collect()
}

#[track_caller]
fn good(variables: &[(&str, &str)]) -> Settings {
    let resolved = resolve(&TypedFlags::new(), &Environment::new(variables.iter().copied()));
    assert_eq!(resolved.problems, [""; 0]);
    resolved.settings
}

fn problems(variables: &[(&str, &str)]) -> Vec<String> {
    resolve(&TypedFlags::new(), &Environment::new(variables.iter().copied())).problems
}

#[test]
fn the_defaults_need_no_setting() {
    let settings = good(&[]);
    assert_eq!(settings.listen.grpc.value.to_string(), "127.0.0.1:8081");
    assert_eq!(settings.store.url.to_string(), "memory://");
    assert_eq!(settings.store.memory_max.counters, 1_000_000);
    assert_eq!(settings.store.timeouts.budget, Duration::from_millis(15));
    assert_eq!(settings.store.over_limit_cache, 100_000);
    assert_eq!(settings.calls.message_bytes_max, 4 << 20);
    assert_eq!(settings.warnings, [""; 0]);
}

#[test]
fn a_former_name_of_a_setting_still_works_and_the_present_one_has_precedence() {
    use crate::engine::rule::ExhaustedChecks::{Allowed, Denied};
    let of = |variables: &[(&str, &str)]| good(variables).rules.options.defaults.exhausted_checks;
    let former = ("TOLLKEEPER_EXHAUSTED_LOOKS", "allow");
    assert_eq!(of(&[former]), Allowed);
    assert_eq!(of(&[former, ("TOLLKEEPER_EXHAUSTED_CHECKS", "deny")]), Denied);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "exhausted-looks: allow").unwrap();
    let config = ("TOLLKEEPER_CONFIG", file.path().to_str().unwrap());
    assert_eq!(of(&[config]), Allowed);
    assert_eq!(good(&[former]).warnings, [""; 0]);
}

#[test]
fn every_setting_has_its_own_flag_and_a_variable_that_kubernetes_does_not_inject() {
    let rows = table();
    let mut flags: Vec<&str> = rows.iter().map(|row| row.flag).collect();
    flags.sort_unstable();
    flags.dedup();
    assert_eq!(flags.len(), rows.len());
    for row in rows {
        assert!(reader::row::is_ours(&row.variable()), "{}", row.variable());
    }
}

#[test]
fn a_cluster_needs_scripts() {
    let store = ("TOLLKEEPER_STORE", "redis+cluster://a,b");
    good(&[store]);
    let problems = problems(&[store, ("TOLLKEEPER_REDIS_SCRIPTS", "off")]);
    assert_eq!(problems, ["TOLLKEEPER_REDIS_SCRIPTS: must be on for a cluster"]);
}

#[test]
fn a_flag_wins_over_its_variable() {
    let environment =
        Environment::new([("TOLLKEEPER_DRAIN", "2s"), ("TOLLKEEPER_REFLECTION", "true")]);
    let flags = flags(&[("drain", "1s"), ("reflection", "false")]);
    let Resolved { settings, problems, .. } = resolve(&flags, &environment);
    assert_eq!(problems, [""; 0]);
    assert_eq!(settings.process.drain, Duration::from_secs(1));
    assert!(!settings.listen.reflection);
}

/// Resolves with a file of settings; returns the settings, and the problems without the file's folder.
fn with_file(text: &str, typed: &[(&'static str, &str)]) -> (Settings, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.yaml");
    std::fs::write(&path, text).unwrap();
    let mut typed = flags(typed);
    typed.insert("config", vec![path.into()]);
    let environment = Environment::new([("TOLLKEEPER_MAX_DESCRIPTORS", "7")]);
    let Resolved { settings, problems, .. } = resolve(&typed, &environment);
    let folder = format!("{}/", folder.path().display());
    (settings, problems.iter().map(|problem| problem.replace(&folder, "")).collect())
}

#[test]
fn a_file_of_settings_yields_to_variables_and_flags() {
    let text = "drain: 1s\nworkers: 010\nmax-descriptors: 9\nrules: [a, 'b c']\nreflection: on\n";
    let (settings, problems) = with_file(text, &[("drain", "2s")]);
    assert_eq!(problems, [""; 0]);
    assert_eq!(settings.process.drain, Duration::from_secs(2));
    assert_eq!(settings.process.workers, 10);
    assert_eq!(settings.calls.bounds.descriptors_max, 7);
    let RuleSource::Files(paths) = settings.rules.source.value else { panic!("files") };
    assert_eq!(paths, [std::path::Path::new("a"), std::path::Path::new("b c")]);
    assert!(settings.listen.reflection);
    assert_eq!(with_file("# nothing\n", &[]).1, [""; 0]);
}

#[test]
fn problems_of_a_file_of_settings_name_their_location() {
    let text = "\
grpc_addr: x
config:
drain: soon
workers: [1, 2]
reflection: yes
[a]: b
drain: 6s
store:
rules: []
tls-cert: [~]
log: { level: info }
log-level: { tollkeeper: debug }
admin-token-file: ''
---
b: c
";
    let expected = [
        "t.yaml:1:1: unknown setting `grpc_addr`; did you mean `grpc-addr`?",
        "t.yaml:2:1: unknown setting `config`",
        "t.yaml:3:1: drain: invalid value `soon`: must be a duration from 0s to 10m",
        "t.yaml:4:1: workers: must be one value, not a list",
        "t.yaml:5:1: reflection: invalid value `yes`: must be on or off",
        "t.yaml:6:1: the name of a setting must be text",
        "t.yaml:7:1: drain: duplicate setting",
        "t.yaml:8:1: store: has no value; write one, or remove the setting",
        "t.yaml:9:8: rules: the list must not be empty; write a value, or remove the setting",
        "t.yaml:10:12: tls-cert: each item of the list must be a value; write one, or remove the item",
        "t.yaml:11:1: unknown setting `log`",
        "t.yaml:12:12: log-level: must be a value, not a mapping",
        "t.yaml:13:1: admin-token-file: must not be empty",
        "t.yaml:14:1: one YAML document per file; move this one into its own file",
    ];
    assert_eq!(with_file(text, &[]).1, expected);
    assert_eq!(
        with_file("rules: [a, null, { b: c }]\nstore:\n", &[("drain", "x")]).1,
        [
            "--drain: invalid value `x`: must be a duration from 0s to 10m",
            "t.yaml:1:12: rules: each item of the list must be a value; write one, or remove the item",
            "t.yaml:2:1: store: has no value; write one, or remove the setting",
        ]
    );
    let item =
        "t.yaml:1:12: rules: each item of the list must be a value; write one, or remove the item";
    assert_eq!(with_file("rules: [a, [b]]\n", &[]).1, [item]);
    let file = ["t.yaml:1:1: must be a mapping from settings to values, such as `drain: 5s`"];
    assert_eq!(with_file("- drain\n", &[]).1, file);
    assert_eq!(with_file("drain: [", &[]).1.len(), 1);
    let missing = flags(&[("config", "/no")]);
    let problems = resolve(&missing, &Environment::default()).problems;
    assert_eq!(problems, ["--config: /no: No such file or directory (os error 2)"]);
}

#[test]
fn an_empty_variable_counts_as_unset() {
    assert_eq!(good(&[("TOLLKEEPER_DRAIN", "")]).process.drain, Duration::from_secs(5));
}

#[test]
fn every_problem_is_reported_at_once_under_the_name_that_was_used() {
    let environment = Environment::new([
        ("TOLLKEEPER_STORE", "http://u:s3cret@h"),
        ("TOLLKEEPER_STORE_PASSWORD_FILE", "/does/not/exist"),
        ("TOLLKEEPER_STORE_POOL_SIZE", "0"),
        ("TOLLKEEPER_DRAIN", "99999999h"),
    ]);
    let flags = flags(&[("grpc-addr", "abc"), ("reflection", "yes"), ("max-descriptors", "-1")]);
    let expected = [
        "--grpc-addr: invalid value `abc`: must be an IP address and a port, such as 127.0.0.1:8081",
        "--reflection: invalid value `yes`: must be on or off",
        "TOLLKEEPER_STORE: the scheme must be memory, redis, rediss, redis+unix, redis+sentinel, rediss+sentinel, redis+cluster or rediss+cluster, followed by ://",
        "TOLLKEEPER_STORE_PASSWORD_FILE: /does/not/exist: No such file or directory (os error 2)",
        "TOLLKEEPER_STORE_POOL_SIZE: invalid value `0`: must be a whole number from 1 to 1000",
        "--max-descriptors: invalid value `-1`: must be a whole number from 1 to 1000",
        "TOLLKEEPER_DRAIN: invalid value `99999999h`: must be a duration from 0s to 10m",
    ];
    assert_eq!(resolve(&flags, &environment).problems, expected);
}

#[test]
fn tests_and_explain_have_the_default_bound_of_the_service() {
    let max = crate::rls::decode::Bounds::default().descriptors_max;
    assert_eq!(good(&[]).calls.bounds.descriptors_max, max);
}

#[test]
fn an_empty_path_and_standard_input_are_refused() {
    for row in table().into_iter().filter(|row| row.value == "PATH") {
        for (path, problem) in [
            ("", "must not be empty"),
            ("-", "must be a path; standard input is not supported here"),
        ] {
            let typed = flags(&[(row.flag, path)]);
            let problems = resolve(&typed, &Environment::default()).problems;
            assert_eq!(problems[0], format!("--{}: {problem}", row.flag));
        }
    }
    let problems = problems(&[("TOLLKEEPER_RULES", "a:-")]);
    let expected = "TOLLKEEPER_RULES: must be a path; standard input is not supported here";
    assert_eq!(problems, [expected]);
}

#[test]
fn an_empty_path_of_rules_is_refused() {
    let typed = flags(&[("rules", "")]);
    let Resolved { settings, problems: found, .. } = resolve(&typed, &Environment::default());
    assert_eq!(found, ["--rules: must not be empty"]);
    let RuleSource::Files(paths) = settings.rules.source.value else { panic!("files") };
    assert!(paths.is_empty(), "the loader would report it again");
    assert_eq!(problems(&[("TOLLKEEPER_RULES", "a::b")]), ["TOLLKEEPER_RULES: must not be empty"]);
}

#[test]
fn a_control_plane_is_given_alone_and_charges_denied_calls_by_default() {
    let url = ("TOLLKEEPER_RULES", "xds://h:18001?node=a");
    let settings = good(&[url]);
    let RuleSource::ControlPlane(target) = &settings.rules.source.value else { panic!("a URL") };
    assert_eq!(target.to_string(), url.1);
    let when_denied = |settings: &Settings| settings.rules.options.defaults.when_denied;
    assert_eq!(when_denied(&settings), WhenDenied::Counted);
    assert_eq!(when_denied(&good(&[url, ("TOLLKEEPER_COUNT_DENIED", "off")])), WhenDenied::Free);
    assert_eq!(when_denied(&good(&[])), WhenDenied::Free);

    let two = TypedFlags::from([("rules", vec!["a.yaml".into(), url.1.into()])]);
    let problems = resolve(&two, &Environment::default()).problems;
    assert_eq!(problems, ["--rules: a control plane sends all rules: give its URL alone"]);
}

#[test]
fn the_tls_of_a_control_plane_is_checked_at_the_start() {
    let ca = ("TOLLKEEPER_RULES_TLS_CA", "/does/not/exist");
    let with_tls = ("TOLLKEEPER_RULES", "xds+tls://h:18001?node=a");
    let missing =
        "TOLLKEEPER_RULES_TLS_CA: /does/not/exist: No such file or directory (os error 2)";
    assert_eq!(problems(&[with_tls, ca]), [missing]);
    let without_tls = ("TOLLKEEPER_RULES", "xds://h:18001?node=a");
    let unused = "TOLLKEEPER_RULES_TLS_CA has no effect: only xds+tls:// uses TLS";
    assert_eq!(good(&[without_tls, ca]).warnings, [unused]);
    let unused = "TOLLKEEPER_RULES_TLS_CA has no effect: the rules come from files";
    assert_eq!(good(&[ca]).warnings, [unused]);
    let alone = problems(&[with_tls, ("TOLLKEEPER_RULES_TLS_KEY", "/dev/null")]);
    assert_eq!(alone[0], "TOLLKEEPER_RULES_TLS_KEY: needs --rules-tls-cert");
}

#[test]
fn tls_files_are_checked_at_the_start() {
    let store = ("TOLLKEEPER_STORE", "rediss://h");
    let missing = |variable| problems(&[store, (variable, "/does/not/exist")]).join("\n");
    let problem =
        "TOLLKEEPER_STORE_TLS_CA: /does/not/exist: No such file or directory (os error 2)";
    assert_eq!(missing("TOLLKEEPER_STORE_TLS_CA"), problem);
    let pair = ("TOLLKEEPER_STORE_TLS_CERT", "TOLLKEEPER_STORE_TLS_KEY");
    let problem = "TOLLKEEPER_STORE_TLS_CERT: /dev/null: no certificate in PEM format";
    assert_eq!(problems(&[store, (pair.0, "/dev/null"), (pair.1, "/dev/null")]), [problem]);
    let problem = "TOLLKEEPER_STORE_TLS_KEY: /no: No such file or directory (os error 2)";
    assert_eq!(problems(&[store, (pair.0, "/dev/null"), (pair.1, "/no")]), [problem]);
    let alone = "TOLLKEEPER_STORE_TLS_CERT: needs --store-tls-key";
    assert!(missing("TOLLKEEPER_STORE_TLS_CERT").starts_with(alone));
    let empty = ("TOLLKEEPER_STORE_TLS_CA", "/dev/null");
    let problem = "TOLLKEEPER_STORE_TLS_CA: /dev/null: no certificate in PEM format";
    assert_eq!(problems(&[store, empty]), [problem]);
}

#[test]
fn bad_tls_files_are_not_reported_as_missing_settings_too() {
    let variables = [
        ("TOLLKEEPER_TLS_CERT", "/no"),
        ("TOLLKEEPER_TLS_KEY", "/no"),
        ("TOLLKEEPER_TLS_CLIENT_CA", "/no"),
        ("TOLLKEEPER_CLIENT_DOMAINS", "/no"),
        ("TOLLKEEPER_ADMIN_ADDR", "0.0.0.0:1"),
    ];
    let problem = |name| format!("{name}: /no: No such file or directory (os error 2)");
    let expected = ["TOLLKEEPER_TLS_CERT", "TOLLKEEPER_CLIENT_DOMAINS"].map(problem);
    assert_eq!(problems(&variables), expected);
}

#[test]
fn a_password_file_is_checked_at_the_start() {
    let store = ("TOLLKEEPER_STORE", "redis+sentinel://h/m");
    for variable in ["TOLLKEEPER_STORE_PASSWORD_FILE", "TOLLKEEPER_STORE_SENTINEL_PASSWORD_FILE"] {
        let missing = format!("{variable}: /no: No such file or directory (os error 2)");
        assert_eq!(problems(&[store, (variable, "/no")]), [missing]);
        let empty = format!("{variable}: /dev/null: the file is empty");
        assert_eq!(problems(&[store, (variable, "/dev/null")]), [empty]);
    }
}

#[test]
fn a_password_in_the_url_and_one_in_a_file_are_refused_together() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "s3cret").unwrap();
    let path = ("TOLLKEEPER_STORE_PASSWORD_FILE", file.path().to_str().unwrap());
    for scheme in ["redis://", "redis+cluster://", "redis+unix://"] {
        let place = if scheme == "redis+unix://" { "/socket" } else { "h" };
        let both = format!("{scheme}user:s3cret@{place}");
        let problem = "TOLLKEEPER_STORE_PASSWORD_FILE: the URL of TOLLKEEPER_STORE has a \
                       password too: remove one";
        assert_eq!(problems(&[("TOLLKEEPER_STORE", &both), path]), [problem]);
        let user_alone = format!("{scheme}user@{place}");
        assert_eq!(good(&[("TOLLKEEPER_STORE", &user_alone), path]).warnings, [""; 0]);
    }
}

/// It may be a password without its colon.
#[test]
fn a_user_without_a_password_is_refused_and_not_shown() {
    for url in ["redis://s3cret@h", "redis+cluster://s3cret@h", "redis+unix://s3cret@/run/r"] {
        let expected = "TOLLKEEPER_STORE: has a user and no password: write :PASSWORD@ or \
                        USER:PASSWORD@, or set --store-password-file";
        assert_eq!(problems(&[("TOLLKEEPER_STORE", url)]), [expected], "{url}");
    }
}

#[test]
fn a_password_is_never_shown() {
    let settings = good(&[("TOLLKEEPER_STORE", "redis://user:s3cret@127.0.0.1:6379/2")]);
    assert_eq!(settings.store.url.to_string(), "redis://user:***@127.0.0.1:6379/2");
    assert!(!format!("{settings:?}").contains("s3cret"));
}

#[test]
fn a_setting_that_has_no_effect_is_a_warning() {
    let name = ("TOLLKEEPER_HEADER_RESET", "X-Reset");
    let unused = "TOLLKEEPER_HEADER_RESET has no effect: --headers is not ratelimit or both";
    assert_eq!(good(&[name]).warnings, [unused]);
    assert_eq!(good(&[name, ("TOLLKEEPER_HEADERS", "draft")]).warnings, [unused]);
    assert_eq!(good(&[name, ("TOLLKEEPER_HEADERS", "both")]).warnings, [""; 0]);

    let password = ("TOLLKEEPER_STORE_PASSWORD_FILE", "/dev/null");
    let unused = "TOLLKEEPER_STORE_PASSWORD_FILE has no effect: memory:// takes no password";
    assert_eq!(good(&[password]).warnings, [unused]);

    let missing = ("TOLLKEEPER_STORE_PASSWORD_FILE", "/does/not/exist");
    assert_eq!(good(&[missing]).warnings, [unused]);

    for (variable, value, why) in [
        ("TOLLKEEPER_STORE_POOL_SIZE", "4", "memory:// has no connections"),
        ("TOLLKEEPER_OVER_LIMIT_CACHE", "5", "memory:// needs no cache"),
    ] {
        let unused = format!("{variable} has no effect: {why}");
        assert_eq!(good(&[(variable, value)]).warnings, [unused]);
        let redis = ("TOLLKEEPER_STORE", "redis://h");
        assert_eq!(good(&[(variable, value), redis]).warnings, [""; 0]);
    }

    for (variable, store, why) in [
        ("TOLLKEEPER_STORE_TLS_CA", "memory://", "memory:// has no connections"),
        ("TOLLKEEPER_STORE_TLS_CA", "redis://h", "only rediss:// uses TLS"),
        ("TOLLKEEPER_STORE_TLS_NAME", "redis://h", "only rediss:// uses TLS"),
        ("TOLLKEEPER_STORE_SENTINEL_USER", "redis://h", "only redis+sentinel:// has Sentinels"),
    ] {
        let unused = format!("{variable} has no effect: {why}");
        let settings = good(&[(variable, "value"), ("TOLLKEEPER_STORE", store)]);
        assert_eq!(settings.warnings, [unused]);
    }

    let prefix = ("TOLLKEEPER_KEY_PREFIX", "a:");
    let unused = "TOLLKEEPER_KEY_PREFIX has no effect: memory:// has no keys in Redis";
    assert_eq!(good(&[prefix]).warnings, [unused]);

    let key = ("TOLLKEEPER_NOTICES_KEY_FILE", "/does/not/exist");
    let unused = "TOLLKEEPER_NOTICES_KEY_FILE has no effect: --notices-url is off";
    assert_eq!(good(&[key]).warnings, [unused]);

    let flags = flags(&[("shadow-mode", "on"), ("quota-mode", "on")]);
    let unused = ["--quota-mode has no effect: --shadow-mode is on"];
    assert_eq!(resolve(&flags, &Environment::default()).settings.warnings, unused);
}

#[test]
fn an_unknown_variable_with_the_prefix_is_a_warning_unless_kubernetes_injected_it() {
    let settings = good(&[
        ("TOLLKEEPER_GRPC_ADR", "x"),
        ("TOLLKEEPER_ADDR", "127.0.0.1:8081"),
        ("TOLLKEEPER_PORT", "tcp://10.0.0.1:8081"),
        ("TOLLKEEPER_PORT_8081_TCP_ADDR", "10.0.0.1"),
        ("TOLLKEEPER_SERVICE_HOST", "10.0.0.1"),
    ]);
    let expected = "TOLLKEEPER_GRPC_ADR: no such setting; did you mean `TOLLKEEPER_GRPC_ADDR`?";
    assert_eq!(settings.warnings, [expected]);
}

#[track_caller]
fn exports(variables: &[(&str, &str)]) -> (bool, bool) {
    let options = good(variables).telemetry.export;
    (options.export_traces.is_some(), options.export_metrics.is_some())
}

#[test]
fn spans_and_metrics_are_exported_only_if_the_standard_variables_say_so() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    assert_eq!(exports(&[]), (false, false));
    assert_eq!(exports(&[endpoint]), (true, true));
    assert_eq!(exports(&[endpoint, ("OTEL_METRICS_EXPORTER", "none")]), (true, false));
    assert_eq!(exports(&[endpoint, ("OTEL_SDK_DISABLED", "true")]), (false, false));
}

#[test]
fn a_bad_endpoint_is_reported_once_under_the_name_that_was_used() {
    let (endpoint, bad) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://h:4317");
    let traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let problem = |name: &str| format!("{name}: must be a URL with http:// or https:// and a host");
    assert_eq!(problems(&[(endpoint, bad)]), [problem(endpoint)]);
    assert_eq!(problems(&[(traces, bad)]), [problem(traces)]);
    assert_eq!(problems(&[(endpoint, "http://h"), (traces, bad)]), [problem(traces)]);
    assert_eq!(problems(&[(endpoint, bad), (traces, "http://h")]), [problem(endpoint)]);
}

fn range(flag: &str) -> (String, String) {
    table().into_iter().find(|row| row.flag == flag).and_then(|row| row.range).unwrap()
}

#[test]
fn durations_and_sizes_are_spelled_as_they_are_read() {
    assert_eq!(range("decision-budget"), ("1ms".to_owned(), "1m".to_owned()));
    assert_eq!(range("drain"), ("0s".to_owned(), "10m".to_owned()));
    assert_eq!(range("max-message-bytes"), ("1KiB".to_owned(), "64MiB".to_owned()));
    for (text, millis) in [("1ms", 1), ("60000ms", 60_000), ("1m", 60_000), ("007s", 7000)] {
        let budget = good(&[("TOLLKEEPER_DECISION_BUDGET", text)]).store.timeouts.budget;
        assert_eq!(budget, Duration::from_millis(millis), "{text}");
    }
}
