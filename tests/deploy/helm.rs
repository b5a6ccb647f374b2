//! The chart, rendered by the real helm.

mod combinations;
mod gitops;
mod names;
mod notes;
mod operators;
mod readme;
mod refusals;
mod rendered;

use tollkeeper::settings::{self, Arity, Row};

use crate::support::{
    certificates::Issued,
    chart::*,
    pod::{self, Source},
    prelude::*,
};

fn scenarios() -> Vec<String> {
    let files = fs::read_dir(root().join("helm/ci")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path().display().to_string()).collect();
    files.push(root().join("helm/values-production.yaml").display().to_string());
    assert_eq!(files.len(), 6);
    files
}

#[test]
fn the_chart_passes_a_strict_lint_in_every_scenario() {
    for scenario in scenarios() {
        helm(&["lint", "--strict", "helm", "--values", &scenario]).expect(&scenario);
    }
}

/// The chart's value and the flag of each setting, as the template names them.
fn values_of_flags() -> Vec<(String, String)> {
    let template = fs::read_to_string(root().join("helm/templates/_pod.tpl")).unwrap();
    let mut found = Vec::new();
    // The condition of a switch is in the line before the switch.
    let mut condition = "";
    for line in template.lines() {
        let value = line.split_once(".Values.");
        let value =
            value.or_else(|| condition.split_once(".Values.").filter(|_| !line.contains('=')));
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
    let values = documents(&helm(&["show", "values", "helm"]).unwrap()).remove(0);
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
        let (value, schema) = value_and_schema(&path);
        let (value, default) = match (&value, path.as_str()) {
            // The unit is in the value's name.
            (seconds, "drainSeconds") => (format!("{seconds}s"), row.default),
            // A pod has less memory than the service assumes.
            (Value::String(text), "store.memorySizeMax") => (text.clone(), "96MiB"),
            // A pod's log is read by machines.
            (Value::String(text), "log.format") => (text.clone(), "json"),
            // The service's default depends on where the rules come from.
            (Value::Null, "countDenied") => (row.default.to_owned(), row.default),
            (Value::Bool(on), _) => ((if *on { "on" } else { "off" }).to_owned(), row.default),
            (Value::String(text), _) => (text.clone(), row.default),
            (number, _) => (number.to_string(), row.default),
        };
        assert_eq!(value, default, "{path}");
        if let (Some((min, max)), "integer") = (&row.range, schema["type"].as_str().unwrap_or("")) {
            let bounds = [&schema["minimum"], &schema["maximum"]].map(ToString::to_string);
            assert_eq!(bounds, [seconds(min), seconds(max)], "{path}");
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

/// The flags that the arguments of the pod set: `--flag`, or `flag: flag` for files of Secrets.
fn flags_of_template() -> Vec<String> {
    let template = fs::read_to_string(root().join("helm/templates/_pod.tpl")).unwrap();
    let (args, _) = template.split_once("tollkeeper.secretsVolume").unwrap();
    let flags = args.split("--").chain(args.split("{ flag: ")).skip(1);
    let flags = flags.map(|text| leading_name(text, '-')).filter(|flag| !flag.is_empty());
    flags.collect()
}

/// The schema of a setting's value in the chart.
fn schema_of(row: &Row) -> Value {
    let as_number = |text: &String| text.parse::<u64>().ok();
    let bounds = row.range.as_ref().map(|(min, max)| (as_number(min), as_number(max)));
    match (row.value.as_str(), bounds) {
        ("on|off", _) => json!({ "type": "boolean" }),
        ("RATIO", _) => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        (_, Some((Some(min), Some(max)))) => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        (names, _) if names.contains('|') && names == names.to_lowercase() => {
            json!({ "enum": names.split('|').collect::<Vec<_>>() })
        }
        _ => json!({ "type": "string" }),
    }
}

#[test]
fn every_setting_is_a_value_of_the_chart() {
    let schema = fs::read_to_string(root().join("helm/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let others = schema["properties"]["settings"]["properties"].as_object().unwrap();
    let of_template = flags_of_template();
    let table = settings::table();
    for row in &table {
        let as_value = of_template.iter().any(|flag| flag == row.flag);
        match others.get(row.flag) {
            Some(schema) => {
                assert!(!as_value, "{} is a value and in `settings`", row.flag);
                for (key, value) in schema_of(row).as_object().unwrap() {
                    assert_eq!(schema[key], *value, "{key} of settings.{}", row.flag);
                }
            }
            None => {
                // The chart gives every setting as a flag.
                assert!(as_value || row.flag == "config", "{} is no value", row.flag);
            }
        }
    }
    for flag in others.keys().chain(&of_template) {
        assert!(table.iter().any(|row| row.flag == flag), "{flag} is no setting");
    }
    assert!(table.iter().any(|row| row.arity == Arity::Switch));
}

#[test]
fn without_rules_the_example_is_in_force() {
    let example = fs::read_to_string(root().join("helm/files/example-rules.yaml")).unwrap();
    let rules = object(&render(&[]), "ConfigMap");
    assert_eq!(rules["data"]["rules.yaml"].as_str().unwrap().trim_end(), example.trim_end());
}

/// The pods of all objects, each with its object's name.
fn pods(objects: &[Value]) -> Vec<(&Value, &Value)> {
    let mut pods = Vec::new();
    for object in objects {
        let pod = match object["kind"].as_str().unwrap() {
            "Pod" => &object["spec"],
            "Deployment" | "Job" => &object["spec"]["template"]["spec"],
            _ => continue,
        };
        pods.push((&object["metadata"]["name"], pod));
    }
    pods
}

#[test]
fn every_pod_has_the_least_privilege_and_there_is_no_role() {
    let files = scenarios();
    let scenarios = files.iter().map(|file| ["--values", file]);
    for scenario in scenarios.chain([["--set", "bundledRedis.enabled=true"]]) {
        let objects = render(&scenario);
        for (name, pod) in pods(&objects) {
            assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
            assert_eq!(pod["enableServiceLinks"], false, "{name}");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
                "{name}"
            );
            assert_eq!(pod["containers"].as_array().map(Vec::len), Some(1), "{name}");
            let container = &pod["containers"][0];
            let security = &container["securityContext"];
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }), "{name}");
        }
        let has_role = |object: &Value| object["kind"].as_str().unwrap().contains("Role");
        assert!(!objects.iter().any(has_role));
    }
}

#[test]
fn an_outage_of_redis_restarts_no_pod_and_the_end_has_time_for_the_drain() {
    for scenario in scenarios() {
        let deployment = object(&render(&["--values", &scenario]), "Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
        let drain = container["args"].as_array().unwrap().iter().find_map(|argument| {
            argument.as_str()?.strip_prefix("--drain=")?.strip_suffix('s')?.parse::<u64>().ok()
        });
        assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > drain.unwrap() + 11);
    }
}

/// The exit code of the chart's check before an installation, and what it prints.
fn check(files: &Files<'_>) -> (Option<i32>, String) {
    let job = files.objects.iter().find(|object| object["kind"] == "Job").unwrap();
    let folder = TempDir::new().unwrap();
    let pod = &job["spec"]["template"]["spec"];
    let (code, out, error) = run(&mut pod::command(pod, files, folder.path()));
    (code, out + &error)
}

#[test]
fn the_rules_are_checked_before_an_upgrade_changes_anything() {
    let objects = render(&[]);
    let job = objects.iter().find(|object| object["kind"] == "Job").unwrap();
    let hooks = &job["metadata"]["annotations"]["helm.sh/hook"];
    assert_eq!(hooks, "pre-install,pre-upgrade,pre-rollback");
    let check = |rules: &str| check(&Files { rules, ..Files::of(&objects) });
    let (code, out) = check("domain: shop\ndescriptors: [{ key: user }]\n");
    assert_eq!(code, Some(0), "{out}");
    let (code, out) = check("domain: shop\ndescriptor: [{ key: user }]\n");
    assert_eq!((code, out.contains("did you mean `descriptors`?")), (Some(2), true), "{out}");
}

#[test]
fn bad_settings_fail_the_check_and_secrets_that_do_not_exist_yet_do_not() {
    let check = |arguments: &[&str], is_installed: bool| {
        check(&Files { is_installed, ..Files::of(&render(arguments)) })
    };
    let secrets = "store.url=rediss://user@redis,store.passwordSecret.name=a,store.tls.caSecret.name=b,\
                   store.tls.certSecret.name=c,tls.secret=d,tls.clientCaSecret.name=e,clientDomains.shop[0]=shop,\
                   admin.tokenSecret.name=f,holds.keySecret.name=g,notices.keySecret.name=h,settings.notices-url=http://hook";
    let (code, out) = check(&["--set", secrets], false);
    assert_eq!(code, Some(0), "{out}");
    for flag in [
        "store-password-file",
        "store-tls-cert",
        "tls-cert",
        "admin-token-file",
        "hold-key-file",
        "notices-key-file",
    ] {
        assert!(out.contains(&format!("warning: --{flag}: ")), "{flag}: {out}");
    }
    for (set, problem) in [
        ("extraArgs={--workers=many}", "--workers: invalid value `many`"),
        ("settings.log-denials=often", "--log-denials: invalid value `often`"),
        (
            "extraEnv[0].name=TOLLKEEPER_WORKERS,extraEnv[0].value=many",
            "TOLLKEEPER_WORKERS: invalid",
        ),
    ] {
        let (code, out) = check(&["--set", secrets, "--set", set], false);
        assert_eq!(code, Some(2), "{set}: {out}");
        assert!(out.contains(problem), "{set}: {out}");
    }
    // What exists is read.
    let no_certificate = "tls.secret=d,tls.certKey=secret,tls.keyKey=secret";
    let (code, out) = check(&["--set", no_certificate], true);
    assert_eq!(code, Some(2), "{out}");
    assert!(out.contains("no certificate in PEM format"), "{out}");
}

#[test]
fn an_overlay_is_checked_with_the_rules_or_without_those_of_a_control_plane() {
    let rules = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: day } }]\n";
    let (good, bad) =
        ("domain: shop\ndefaults: { hold: 1m }", "domain: shop\ndefaults: { holds: 1m }");
    let control_plane = ["--set-string", "controlPlane.url=xds://h:1?node=a"];
    for (arguments, overlay, expected) in [
        (&[][..], good, Some(0)),
        (&[], bad, Some(2)),
        (&control_plane, good, Some(0)),
        (&control_plane, bad, Some(2)),
    ] {
        let files = [overlay, rules].map(|text| TextFile::new("file", text));
        let overlay = format!("rulesOverlay={}", &*files[0]);
        let mut all = vec!["--set-file", &overlay];
        let rules = format!(r"rules.a\.yaml={}", &*files[1]);
        if arguments.is_empty() {
            all.extend(["--set-file", &rules]);
        }
        all.extend(arguments);
        let (code, out) = check(&Files::of(&render(&all)));
        assert_eq!(code, expected, "{all:?}: {out}");
        assert!(code == Some(0) || out.contains("did you mean `hold`?"), "{all:?}");
    }
}

/// The data of the ConfigMaps and Secrets that a test's pods mount.
struct Files<'a> {
    objects: &'a [Value],
    /// Before, there are copies of the ConfigMaps for hooks, and no Secrets.
    is_installed: bool,
    /// The rules, where the chart has none of its own.
    rules: &'a str,
    certificates: Option<&'a Issued>,
}

impl<'a> Files<'a> {
    fn of(objects: &'a [Value]) -> Self {
        Self { objects, is_installed: true, rules: "", certificates: None }
    }
}

impl Source for Files<'_> {
    fn files(&self, kind: &str, name: &str) -> Vec<(String, String)> {
        if kind == "ConfigMap" && !self.rules.is_empty() && !name.ends_with("-clients") {
            return vec![("a.yaml".to_owned(), self.rules.to_owned())];
        }
        let named = |object: &&Value| {
            let (name_of, hook) = (&object["metadata"]["name"], "helm.sh/hook");
            let is_hook = object["metadata"]["annotations"][hook].is_string();
            object["kind"] == kind && name_of == name && (self.is_installed || is_hook)
        };
        if let Some(object) = self.objects.iter().find(named) {
            let data = object["data"].as_object().unwrap().iter();
            return data.map(|(key, text)| (key.clone(), text.as_str().unwrap().into())).collect();
        }
        if !self.is_installed {
            return Vec::new();
        }
        let text = |text: &str| text.to_owned();
        let secret = || text("a-secret-of-the-test-as-long-as-a-key");
        let keys = ["secret", "redis-password", "keys"];
        let mut data: Vec<_> = keys.map(|key| (text(key), secret())).into();
        if let Some(issued) = self.certificates {
            for (key, file) in [
                ("tls.crt", &issued.certificate),
                ("tls.key", &issued.key),
                ("ca.crt", &issued.authority),
            ] {
                data.push((text(key), fs::read_to_string(file).unwrap()));
            }
        }
        data
    }
}

#[test]
fn the_rendered_command_line_starts_the_binary() {
    let authority = Authority::new();
    let issued = authority.server(&["localhost"]);
    for scenario in scenarios() {
        let objects = render(&["--values", &scenario]);
        let folder = TempDir::new().unwrap();
        // A scenario may mount a ConfigMap of its own.
        let rules = if scenario.contains("everything") { "domain: a" } else { "" };
        let sources = Files { rules, certificates: Some(&issued), ..Files::of(&objects) };
        let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
        let rendered = pod::command(pod, &sources, folder.path());
        let store = Redis::absent();
        // No Redis needs to answer here.
        let address = format!("127.0.0.1:{}", store.port);
        let arguments = rendered.get_args().map(|argument| argument.to_str().unwrap());
        let mut command = Command::new(rendered.get_program());
        command.args(arguments.map(|argument| argument.replace("redis.example:6379", &address)));
        // It listens once settings, rules and files are accepted.
        let service = Service::spawn(command, folder);
        let log = service.log();
        assert!(!log.contains("has no effect"), "{scenario}: {log}");
    }
}

#[test]
fn the_values_on_the_page_of_kubernetes_are_accepted() {
    let page = page("kubernetes.md");
    let samples = blocks(&page, "yaml");
    assert!(samples.len() > 1);
    for sample in samples {
        render(&["--values", &TextFile::new("values.yaml", sample)]);
    }
    for name in page.split("alert `").skip(1).map(|rest| rest.split('`').next().unwrap()) {
        let alerts = fs::read_to_string(root().join("helm/files/alerts.yaml")).unwrap();
        assert!(alerts.contains(&format!("alert: {name}")), "no alert {name}");
    }
}

#[test]
fn every_object_has_the_annotations_and_the_namespace_that_values_set_for_all() {
    let all = "namespaceOverride=edge,commonAnnotations.team=a,bundledRedis.enabled=true,networkPolicy.enabled=true,networkPolicy.clients[0].podSelector.a=b";
    let some = "deploymentAnnotations.team=b,podAnnotations.tier=c,service.annotations.lb=d";
    let monitoring = "monitoring.scrape.kind=ServiceMonitor,monitoring.scrape.namespace=watchers,monitoring.alerts.enabled=true,monitoring.dashboard.enabled=true,monitoring.dashboard.annotations.grafana_folder=Gateways";
    let objects = render(&["--set", all, "--set", some, "--set", monitoring]);
    assert!(objects.len() > 14, "{} objects", objects.len());
    for object in &objects {
        let (kind, metadata) = (&object["kind"], &object["metadata"]);
        // What is set for one kind wins.
        let is_deployment = kind == "Deployment" && metadata["name"] == "release-tollkeeper";
        let team = if is_deployment { "b" } else { "a" };
        assert_eq!(metadata["annotations"]["team"], team, "{metadata}");
        let namespace = if kind == "ServiceMonitor" { "watchers" } else { "edge" };
        assert_eq!(metadata["namespace"], namespace, "{metadata}");
    }
    let pod = &object(&objects, "Deployment")["spec"]["template"]["metadata"];
    assert_eq!(pod["annotations"], json!({ "team": "a", "tier": "c" }));
    let monitor = &object(&objects, "ServiceMonitor")["spec"];
    assert_eq!(monitor["namespaceSelector"], json!({ "matchNames": ["edge"] }));
    let is_dashboard =
        |object: &&Value| object["metadata"]["name"] == "release-tollkeeper-dashboard";
    let dashboard = objects.iter().find(is_dashboard).unwrap();
    assert_eq!(dashboard["metadata"]["annotations"]["grafana_folder"], "Gateways");
    let test = objects.iter().find(|object| object["kind"] == "Pod").unwrap();
    let address = "--addr=release-tollkeeper.edge.svc:8081";
    assert!(test["spec"]["containers"][0]["args"].as_array().unwrap().contains(&address.into()));
}
