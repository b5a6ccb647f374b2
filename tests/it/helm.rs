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
    serde_json::from_value(python(TO_JSON, &yaml)).unwrap()
}

/// Runs a script, which turns YAML into JSON.
fn python(script: &str, yaml: &str) -> Value {
    let mut python = Command::new(tool("python"))
        .args(["-c", script])
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
fn replicas_and_the_failure_mode_reach_the_service() {
    let words = ["--set", "replicas=3,store.url=redis://r:6379,onStoreFailure=local,headers=both"];
    let container =
        &object(&render(&words), "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"].as_array().unwrap();
    for flag in ["--replicas=3", "--on-store-failure=local", "--headers=both"] {
        assert!(args.contains(&Value::from(flag)), "{flag}: {args:?}");
    }
    refused(&["--set", "onStoreFailure=maybe"], "onStoreFailure");
}

/// The value and the flag of each setting that the chart sets, as its template has them.
fn values_of_flags() -> Vec<(String, String)> {
    let template = fs::read_to_string(root().join("helm/templates/deployment.yaml")).unwrap();
    let name = |text: &str, also: &[char]| -> String {
        text.chars().take_while(|c| c.is_ascii_alphabetic() || also.contains(c)).collect()
    };
    let mut found = Vec::new();
    // The condition of a switch is in the line before it.
    let mut condition = "";
    for line in template.lines() {
        let value = line.split_once(".Values.").or_else(|| condition.split_once(".Values."));
        if let (Some((_, flag)), Some((_, value))) = (line.split_once("--"), value) {
            found.push((name(value, &['.']), name(flag, &['-'])));
        }
        condition = if line.contains("{{- if") { line } else { "" };
    }
    found
}

/// What helm knows of a value: its default, and its schema.
fn value_and_schema(path: &str) -> (Value, Value) {
    const TO_JSON: &str =
        "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)";
    let values = python(TO_JSON, &helm(&["show", "values", "helm"]).unwrap());
    let schema = fs::read_to_string(root().join("helm/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let in_values = format!("/{}", path.replace('.', "/"));
    let in_schema = format!("/properties/{}", path.replace('.', "/properties/"));
    let of =
        |tree: &Value, path: &str| tree.pointer(path).unwrap_or_else(|| panic!("{path}")).clone();
    (of(&values, &in_values), of(&schema, &in_schema))
}

#[test]
fn each_value_of_a_setting_has_its_default_and_its_bounds() {
    let settings = settings::table();
    let mut checked = 0;
    for (path, flag) in values_of_flags() {
        let row = settings.iter().find(|row| row.flag == flag).unwrap_or_else(|| panic!("{flag}"));
        if path == "store.passwordSecret" {
            continue;
        }
        let (value, schema) = value_and_schema(&path);
        let (value, default) = match (&value, path.as_str()) {
            // Its unit is in its name.
            (seconds, "drainSeconds") => (format!("{seconds}s"), row.default),
            // Machines read a pod's log.
            (Value::String(text), "log.format") => (text.clone(), "json"),
            (Value::Bool(on), _) => ((if *on { "on" } else { "off" }).to_owned(), row.default),
            (Value::String(text), _) => (text.clone(), row.default),
            (number, _) => (number.to_string(), row.default),
        };
        assert_eq!(value, default, "{path}");
        if let (Some((min, max)), "integer") = (&row.range, schema["type"].as_str().unwrap_or("")) {
            let unit = |text: &str| text.trim_end_matches('s').replace("10m", "600");
            let bounds = [&schema["minimum"], &schema["maximum"]].map(ToString::to_string);
            // A Deployment may be scaled to 0, and to any number.
            assert!(path == "replicas" || bounds == [unit(min), unit(max)], "{path}: {bounds:?}");
        }
        if let Some(allowed) = schema["enum"].as_array() {
            let names: Vec<&str> = allowed.iter().map(|name| name.as_str().unwrap()).collect();
            assert_eq!(names.join("|"), row.value, "{path}");
        }
        checked += 1;
    }
    assert!(checked > 10, "{checked} values found in the template");
}

#[test]
fn every_setting_is_a_value_of_the_chart() {
    let schema = fs::read_to_string(root().join("helm/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let others = schema["properties"]["settings"]["properties"].as_object().unwrap();
    let mut flags: Vec<String> = others.keys().cloned().collect();
    flags.extend(values_of_flags().into_iter().map(|(_, flag)| flag));
    // The pod's own affair; the admin address has no password, and stays on its loopback.
    flags.extend(["grpc-addr", "http-addr", "rules", "admin-addr"].map(str::to_owned));
    flags.sort();
    let mut known: Vec<&str> = settings::table().iter().map(|row| row.flag).collect();
    known.sort_unstable();
    assert_eq!(flags, known);
    refused(&["--set", "settings.drain=5s"], "additional properties");
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
fn a_missing_secret_is_accepted() {
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
        assert!(line.contains("tollkeeper ready"), "{scenario}: {line}");
    }
}
