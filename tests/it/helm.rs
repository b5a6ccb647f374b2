//! The chart, rendered by the real helm.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;
use tollkeeper::settings;

use crate::support::{Process, redis_server::Redis, root, service::tollkeeper, tool};

/// Runs helm in the project's folder; returns stdout, or stderr if helm fails.
fn helm(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(tool("helm")).current_dir(root()).args(arguments).output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

fn scenarios() -> Vec<String> {
    let files = fs::read_dir(root().join("helm/ci")).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path().display().to_string()).collect();
    assert_eq!(files.len(), 3);
    files
}

/// The rendered objects, as JSON.
pub fn render(arguments: &[&str]) -> Vec<Value> {
    const TO_JSON: &str = "import json, sys, yaml; json.dump([each for each in yaml.safe_load_all(sys.stdin) if each], sys.stdout)";
    let yaml = helm(&[&["template", "release", "helm"], arguments].concat()).unwrap();
    serde_json::from_value(python(TO_JSON, &yaml)).unwrap()
}

/// Runs a Python script that turns YAML into JSON.
pub fn python(script: &str, yaml: &str) -> Value {
    let mut python = Command::new(tool("python"))
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(yaml.as_bytes()).unwrap();
    serde_json::from_slice(&python.wait_with_output().unwrap().stdout).unwrap()
}

pub fn object(objects: &[Value], kind: &str) -> Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap_or_else(|| panic!("no {kind}"))
        .clone()
}

#[track_caller]
fn refused(arguments: &[&str], reason: &str) {
    let error = helm(&[&["template", "release", "helm"], arguments].concat()).expect_err(reason);
    assert!(error.contains(reason), "{error}");
}

#[test]
fn the_chart_passes_a_strict_lint_in_every_scenario() {
    for scenario in scenarios() {
        helm(&["lint", "--strict", "helm", "--values", &scenario]).expect(&scenario);
    }
}

#[test]
fn replicas_and_the_failure_mode_reach_the_service() {
    let arguments =
        ["--set", "replicas=3,store.url=redis://r:6379,onStoreFailure=local,headers=both"];
    let container =
        &object(&render(&arguments), "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"].as_array().unwrap();
    for flag in ["--replicas=3", "--on-store-failure=local", "--headers=both"] {
        assert!(args.contains(&Value::from(flag)), "{flag}: {args:?}");
    }
    refused(&["--set", "onStoreFailure=maybe"], "onStoreFailure");
}

/// The chart's value and the flag of each setting, as the template names them.
fn values_of_flags() -> Vec<(String, String)> {
    let template = fs::read_to_string(root().join("helm/templates/deployment.yaml")).unwrap();
    let mut found = Vec::new();
    // The condition of a switch is in the line before the switch.
    let mut condition = "";
    for line in template.lines() {
        let value = line.split_once(".Values.").or_else(|| condition.split_once(".Values."));
        if let (Some((_, flag)), Some((_, value))) = (line.split_once("--"), value) {
            found.push((leading_name(value, '.'), leading_name(flag, '-')));
        }
        condition = if line.contains("{{- if") { line } else { "" };
    }
    found
}

/// The letters, and the separators between them, at the start of a text.
fn leading_name(text: &str, separator: char) -> String {
    text.chars().take_while(|c| c.is_ascii_alphabetic() || *c == separator).collect()
}

/// The default and the schema of one of the chart's values.
fn value_and_schema(path: &str) -> (Value, Value) {
    const TO_JSON: &str =
        "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)";
    let values = python(TO_JSON, &helm(&["show", "values", "helm"]).unwrap());
    let schema = fs::read_to_string(root().join("helm/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let in_values = format!("/{}", path.replace('.', "/"));
    let in_schema = format!("/properties/{}", path.replace('.', "/properties/"));
    (at(&values, &in_values), at(&schema, &in_schema))
}

fn at(tree: &Value, path: &str) -> Value {
    tree.pointer(path).unwrap_or_else(|| panic!("no {path}")).clone()
}

#[test]
fn each_value_has_the_default_and_the_bounds_of_its_setting() {
    let settings = settings::table();
    let mut checked = 0;
    for (path, flag) in values_of_flags() {
        let row = settings.iter().find(|row| row.flag == flag).unwrap_or_else(|| panic!("{flag}"));
        if path == "store.passwordSecret" {
            continue;
        }
        let (value, schema) = value_and_schema(&path);
        let (value, default) = match (&value, path.as_str()) {
            // The unit is in the value's name.
            (seconds, "drainSeconds") => (format!("{seconds}s"), row.default),
            // A pod's log is read by machines.
            (Value::String(text), "log.format") => (text.clone(), "json"),
            (Value::Bool(on), _) => ((if *on { "on" } else { "off" }).to_owned(), row.default),
            (Value::String(text), _) => (text.clone(), row.default),
            (number, _) => (number.to_string(), row.default),
        };
        assert_eq!(value, default, "{path}");
        if let (Some((min, max)), "integer") = (&row.range, schema["type"].as_str().unwrap_or("")) {
            let bounds = [&schema["minimum"], &schema["maximum"]].map(ToString::to_string);
            // A Deployment may be scaled to any number, including 0.
            assert!(
                path == "replicas" || bounds == [seconds(min), seconds(max)],
                "{path}: {bounds:?}"
            );
        }
        if let Some(allowed) = schema["enum"].as_array() {
            let names: Vec<&str> = allowed.iter().map(|name| name.as_str().unwrap()).collect();
            assert_eq!(names.join("|"), row.value, "{path}");
        }
        checked += 1;
    }
    assert!(checked > 10, "{checked} values found in the template");
}

/// A bound of a setting as a number of seconds, or of whatever has no unit.
fn seconds(bound: &str) -> String {
    bound.trim_end_matches('s').replace("10m", "600")
}

#[test]
fn every_setting_is_a_value_of_the_chart() {
    let schema = fs::read_to_string(root().join("helm/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let others = schema["properties"]["settings"]["properties"].as_object().unwrap();
    let mut flags: Vec<String> = others.keys().cloned().collect();
    flags.extend(values_of_flags().into_iter().map(|(_, flag)| flag));
    // The chart sets the first three itself. The admin address stays on loopback.
    flags.extend(["grpc-addr", "http-addr", "rules", "admin-addr", "config"].map(str::to_owned));
    // The chart mounts no certificates yet.
    flags.extend(["tls-cert", "tls-key", "tls-client-ca", "client-domains"].map(str::to_owned));
    flags.push("admin-token-file".to_owned());
    flags.sort();
    let mut known: Vec<&str> = settings::table().iter().map(|row| row.flag).collect();
    known.sort_unstable();
    assert_eq!(flags, known);
    refused(&["--set", "settings.drain=5s"], "additional properties");
}

#[test]
fn misspelled_values_are_refused() {
    for key in ["replica=2", "store.uri=redis://x", "store.passwordSecret.nam=x", "log.levle=info"]
    {
        refused(&["--set", key], "additional properties");
    }
    refused(&["--set-string", r"rules.README\.md=text"], "additional properties");
}

#[test]
fn the_memory_store_with_two_replicas_is_refused_with_a_reason() {
    refused(&["--set", "replicas=2"], "each replica would count on its own");
}

#[test]
fn a_password_in_the_store_url_is_refused_with_a_hint() {
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
fn a_chart_without_a_password_secret_is_accepted() {
    let pod = &object(&render(&["--set", "store.passwordSecret=null"]), "Deployment")["spec"];
    assert!(!pod.to_string().contains("secret"), "{pod}");
}

#[test]
fn labels_that_the_chart_sets_are_refused_with_a_reason() {
    for label in ["app\\.kubernetes\\.io/name", "helm\\.sh/chart"] {
        refused(&["--set", &format!("podLabels.{label}=x")], "which the chart sets itself");
    }
    render(&["--set", "podLabels=null"]);
}

#[test]
fn rule_files_are_passed_on_unchanged() {
    let text = "   # indented more than the next line\ndomain: a\n";
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
        let drain = container["args"].as_array().unwrap().iter().find_map(|argument| {
            argument.as_str()?.strip_prefix("--drain=")?.strip_suffix('s')?.parse::<u64>().ok()
        });
        assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > drain.unwrap() + 11);
    }
}

#[test]
fn the_rendered_command_line_starts_the_binary() {
    for scenario in scenarios() {
        let objects = render(&["--values", &scenario]);
        let folder = TempDir::new().unwrap();
        let is_rules = |object: &&Value| {
            object["kind"] == "ConfigMap"
                && object["metadata"]["name"].as_str().unwrap().ends_with("-rules")
        };
        let files = objects.iter().find(is_rules).map_or_else(
            // This scenario mounts a ConfigMap of its own.
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
                // No Redis needs to answer here.
                .replace("redis.example:6379", &format!("127.0.0.1:{}", store.port))
        };
        let mut command = tollkeeper();
        command
            .args(container["args"].as_array().unwrap().iter().map(private))
            // The chart leaves this flag at its default, a fixed port on the pod's loopback.
            .args(["--admin-addr", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = Process::spawn(&mut command);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("tollkeeper ready"), "{scenario}: {line}");
    }
}
