//! The chart, rendered by the real helm.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Process, redis_server::Redis, root, service::tollkeeper, tool};

/// Runs helm on the chart; stdout, or stderr where it fails.
fn helm(words: &[&str]) -> Result<String, String> {
    let output = Command::new(tool("helm")).current_dir(root()).args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn scenarios() -> Vec<String> {
    let files = fs::read_dir(root().join("helm/ci")).unwrap();
    let files: Vec<_> = files.map(|it| it.unwrap().path().display().to_string()).collect();
    assert_eq!(files.len(), 3);
    files
}

/// The rendered objects, as JSON.
fn render(words: &[&str]) -> Vec<Value> {
    const TO_JSON: &str = "import json, sys, yaml; json.dump([it for it in yaml.safe_load_all(sys.stdin) if it], sys.stdout)";
    let yaml = helm(&[&["template", "release", "helm"], words].concat()).unwrap();
    let mut python = Command::new(tool("python"))
        .args(["-c", TO_JSON])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(yaml.as_bytes()).unwrap();
    serde_json::from_slice(&python.wait_with_output().unwrap().stdout).unwrap()
}

fn object(objects: &[Value], kind: &str) -> Value {
    objects.iter().find(|it| it["kind"] == kind).unwrap_or_else(|| panic!("no {kind}")).clone()
}

#[track_caller]
fn refused(words: &[&str], reason: &str) {
    let error = helm(&[&["template", "release", "helm"], words].concat()).expect_err(reason);
    assert!(error.contains(reason), "{error}");
}

#[test]
fn the_chart_passes_a_strict_lint_in_every_scenario() {
    for scenario in scenarios() {
        helm(&["lint", "--strict", "helm", "--values", &scenario]).expect(&scenario);
    }
}

#[test]
fn each_replica_knows_its_share_and_what_to_answer_without_a_store() {
    let words = ["--set", "replicas=3,store.url=redis://r:6379,onStoreFailure=local,headers=both"];
    let container =
        &object(&render(&words), "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"].as_array().unwrap();
    for flag in ["--replicas=3", "--on-store-failure=local", "--headers=both"] {
        assert!(args.contains(&Value::from(flag)), "{flag}: {args:?}");
    }
    refused(&["--set", "onStoreFailure=maybe"], "onStoreFailure");
}

#[test]
fn misspelled_keys_are_refused() {
    for key in ["replica=2", "store.uri=redis://x", "store.passwordSecret.nam=x", "log.levle=info"]
    {
        refused(&["--set", key], "additional properties");
    }
    refused(&["--set-string", r"rules.README\.md=text"], "additional properties");
}

#[test]
fn the_memory_store_with_two_replicas_is_refused_in_words() {
    refused(&["--set", "replicas=2"], "each replica would count for itself");
}

#[test]
fn a_password_in_the_stores_url_is_refused_in_words() {
    for url in ["redis://:s3cret@h:6379", "redis://user:s3cret@h", "redis://user:s3/cret@h"] {
        refused(&["--set", &format!("store.url={url}")], "store.passwordSecret");
    }
}

#[test]
fn values_with_which_the_service_would_not_start_are_refused() {
    for set in ["rules=null", r"rules.rules\.yaml=null", r"rules.rules\.yaml= "] {
        refused(&["--set", set], "does not start without rules");
    }
    for (set, reason) in [
        ("decisionBudget=0ms", "/decisionBudget"),
        ("decisionBudget=000s", "/decisionBudget"),
        ("decisionBudget=60001ms", "/decisionBudget"),
        ("decisionBudget=2m", "/decisionBudget"),
        ("store.url=redis://", "/store/url"),
        ("store.url=redis://:6379", "/store/url"),
        ("store.url=redis:///0", "/store/url"),
        ("store.url=redis://user@", "/store/url"),
        ("store.url=redis://h:x", "/store/url"),
        ("store.overLimitCache=10000001", "/store/overLimitCache"),
        ("store.url=null", "missing property 'url'"),
        ("log=null", "missing property 'log'"),
        ("store.memoryCountersMax=999", "/store/memoryCountersMax"),
        ("store.memoryCountersMax=1000000001", "/store/memoryCountersMax"),
        ("maxMessageBytes=0MiB", "must be from 1KiB to 64MiB"),
        ("maxMessageBytes=65537KiB", "must be from 1KiB to 64MiB"),
    ] {
        refused(&["--set", set], reason);
    }
    refused(&["--set-string", "maxMessageBytes=1023"], "must be from 1KiB to 64MiB");
    let bounds = "maxMessageBytes=64MiB,decisionBudget=60000ms,store.memoryCountersMax=1000000000,store.url=redis://user@[::1]:6379/15";
    render(&["--set", bounds]);
    render(&["--set", "rules=null,existingRulesConfigMap=mine"]);
}

#[test]
fn no_secret_is_no_error() {
    let pod = &object(&render(&["--set", "store.passwordSecret=null"]), "Deployment")["spec"];
    assert!(!pod.to_string().contains("secret"), "{pod}");
}

#[test]
fn labels_that_the_chart_sets_are_refused_in_words() {
    for label in ["app\\.kubernetes\\.io/name", "helm\\.sh/chart"] {
        refused(&["--set", &format!("podLabels.{label}=x")], "which the chart sets itself");
    }
    render(&["--set", "podLabels=null"]);
}

#[test]
fn rules_arrive_as_they_were_written() {
    let text = "   # further right than what follows\ndomain: a\n";
    let rule_file = format!(r"rules.a\.yaml={text}");
    let rules = object(&render(&["--set-string", &rule_file]), "ConfigMap");
    assert_eq!(rules["data"]["a.yaml"], text);
}

#[test]
fn the_pod_has_the_least_privilege() {
    for scenario in scenarios() {
        let pod =
            &object(&render(&["--values", &scenario]), "Deployment")["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["enableServiceLinks"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let container = &pod["containers"][0];
        let security = &container["securityContext"];
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["capabilities"]["drop"][0], "ALL");
        assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
        assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
        let drain = container["args"].as_array().unwrap().iter().find_map(|it| {
            it.as_str()?.strip_prefix("--drain=")?.strip_suffix('s')?.parse::<u64>().ok()
        });
        assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > drain.unwrap() + 11);
    }
}

#[test]
fn the_rendered_command_line_starts_the_binary() {
    for scenario in scenarios() {
        let objects = render(&["--values", &scenario]);
        let folder = TempDir::new().unwrap();
        let files = objects.iter().find(|it| it["kind"] == "ConfigMap").map_or_else(
            // The scenario brings rules of its own.
            || serde_json::json!({ "a.yaml": "domain: a" }),
            |rules| rules["data"].clone(),
        );
        for (name, text) in files.as_object().unwrap() {
            fs::write(folder.path().join(name), text.as_str().unwrap()).unwrap();
        }
        fs::write(folder.path().join("password"), "secret").unwrap();

        let container =
            object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0].clone();
        let store = Redis::absent();
        let private = |argument: &Value| {
            let folder = folder.path().to_str().unwrap();
            argument
                .as_str()
                .unwrap()
                .replace("0.0.0.0:8081", "127.0.0.1:0")
                .replace("0.0.0.0:8080", "127.0.0.1:0")
                .replace("/etc/tollkeeper/rules", folder)
                .replace("/etc/tollkeeper/secret", folder)
                // Nobody needs to answer here.
                .replace("redis.example:6379", &format!("127.0.0.1:{}", store.port))
        };
        let mut command = tollkeeper();
        command
            .args(container["args"].as_array().unwrap().iter().map(private))
            // The chart leaves it at its default, which is the pod's own.
            .args(["--admin-addr", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = Process::spawn(&mut command);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("tollkeeper ready: "), "{scenario}: {line}");
    }
}
