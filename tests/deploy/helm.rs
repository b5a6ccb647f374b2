//! The chart, rendered by the real helm.

mod combinations;
mod gitops;
mod names;
mod notes;
mod operators;
mod readme;
mod refusals;

use tollkeeper::settings::{self, Arity, Row};

use self::refusals::refused;
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

#[test]
fn a_registry_and_its_secrets_of_a_parent_chart_are_used_by_all_pods() {
    let rendered = render(&[
        "--set",
        "bundledRedis.enabled=true,image.repository=ghcr.io/team/tollkeeper,image.tag=v1",
        "--set",
        "global.imageRegistry=registry.example:5000/mirror,global.imagePullSecrets[0].name=a,imagePullSecrets[0].name=b",
    ]);
    let mut images = Vec::new();
    for object in &rendered {
        let pod = match object["kind"].as_str() {
            Some("Deployment" | "Job") => &object["spec"]["template"]["spec"],
            Some("Pod") => &object["spec"],
            _ => continue,
        };
        assert_eq!(pod["imagePullSecrets"], json!([{ "name": "a" }, { "name": "b" }]));
        images.push(pod["containers"][0]["image"].as_str().unwrap().to_owned());
    }
    images.sort();
    images.dedup();
    assert_eq!(
        images,
        [
            "registry.example:5000/mirror/team/tollkeeper:v1",
            "registry.example:5000/mirror/valkey/valkey:9.1-alpine",
        ]
    );
}

/// The arguments of the service's container.
fn arguments_of_the_service(arguments: &[&str]) -> Vec<String> {
    let deployment = object(&render(arguments), "Deployment");
    let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    args.as_array().unwrap().iter().map(|argument| argument.as_str().unwrap().into()).collect()
}

#[test]
fn whether_denied_calls_are_charged_is_set_only_where_a_value_says_so() {
    for source in ["rulesCheck.enabled=true", "controlPlane.url=xds://h:1?node=a"] {
        for (value, flag) in [
            ("countDenied=true", Some("--count-denied=on")),
            ("countDenied=false", Some("--count-denied=off")),
            // Files and a control plane have different defaults, which the service knows.
            ("countDenied=null", None),
        ] {
            let args = arguments_of_the_service(&["--set", source, "--set", value]);
            let found = args.iter().find(|argument| argument.starts_with("--count-denied"));
            assert_eq!(found.map(String::as_str), flag, "{source}, {value}");
        }
    }
}

#[test]
fn a_million_in_a_file_of_values_is_written_with_all_its_digits() {
    let file = "helm/ci/everything-values.yaml";
    let args = arguments_of_the_service(&["--values", file]);
    for flag in ["--max-connections=1000000", "--near-limit-ratio=0.9", "--quota-mode=true"] {
        assert!(args.iter().any(|argument| argument == flag), "{flag}: {args:?}");
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
fn a_chart_without_a_password_secret_is_accepted() {
    let pod = &object(&render(&["--set", "store.passwordSecret=null"]), "Deployment")["spec"];
    assert!(!pod.to_string().contains("secret"), "{pod}");
}

#[test]
fn rule_files_are_passed_on_unchanged() {
    let text = "   # indented more than the next line\ndomain: a\n";
    let rule_file = format!(r"rules.a\.yaml={text}");
    let rules = object(&render(&["--set-string", &rule_file]), "ConfigMap");
    assert_eq!(rules["data"], json!({ "a.yaml": text }), "without the example");
}

#[test]
fn an_overlay_is_mounted_where_the_service_reads_it() {
    let objects = render(&["--values", "helm/ci/xds-values.yaml"]);
    let overlay = object(&objects, "ConfigMap");
    assert_eq!(overlay["metadata"]["name"], "release-tollkeeper-overlay");
    let text = "domain: default/eg/http\ndefaults: { on_store_failure: local }\n";
    assert_eq!(overlay["data"], json!({ "overlay.yaml": text }));
    let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
    let flag = "--rules-overlay=/etc/tollkeeper/overlay/overlay.yaml";
    assert!(pod["containers"][0]["args"].as_array().unwrap().iter().any(|arg| arg == flag));
    let mount =
        json!({ "name": "overlay", "mountPath": "/etc/tollkeeper/overlay", "readOnly": true });
    assert_eq!(pod["containers"][0]["volumeMounts"][0], mount);
    let volume =
        json!({ "name": "overlay", "configMap": { "name": "release-tollkeeper-overlay" } });
    assert_eq!(pod["volumes"][0], volume);
}

#[test]
fn a_candidate_is_mounted_where_the_service_and_the_check_read_it() {
    let text = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unlimited: true } }]\n";
    let rules = tempfile::NamedTempFile::new().unwrap();
    fs::write(rules.path(), text).unwrap();
    let file = format!("candidate.rules={}", rules.path().display());
    let objects = render(&["--set-file", &file, "--set", "candidate.oneIn=4"]);
    for (name, kind) in [("release-tollkeeper", "Deployment"), ("release-tollkeeper-check", "Job")]
    {
        let map = format!("{name}-candidate");
        let data = objects.iter().find(|one| one["metadata"]["name"] == map).unwrap();
        assert_eq!(data["data"], json!({ "candidate.yaml": text }));
        let pod = objects.iter().find(|one| one["kind"] == kind).unwrap();
        let pod = &pod["spec"]["template"]["spec"];
        let args = pod["containers"][0]["args"].as_array().unwrap();
        for flag in ["--candidate=/etc/tollkeeper/candidate", "--candidate-one-in=4"] {
            assert!(args.iter().any(|arg| arg == flag), "{kind}: {args:?}");
        }
        let has = |list: &Value, item: Value| list.as_array().unwrap().contains(&item);
        let mount = json!({ "name": "candidate", "mountPath": "/etc/tollkeeper/candidate", "readOnly": true });
        assert!(has(&pod["containers"][0]["volumeMounts"], mount), "{kind}");
        let volume = json!({ "name": "candidate", "configMap": { "name": map } });
        assert!(has(&pod["volumes"], volume), "{kind}");
    }
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

#[test]
fn with_clients_the_network_policy_admits_no_one_else_to_the_port_that_decides_calls_over_http() {
    let clients = "networkPolicy.clients[0].podSelector.matchLabels.app=envoy";
    let on = ["--set", "networkPolicy.enabled=true", "--set", clients];
    let policy = object(&render(&on), "NetworkPolicy");
    for rule in policy["spec"]["ingress"].as_array().unwrap() {
        assert_eq!(rule["from"][0]["podSelector"]["matchLabels"]["app"], "envoy", "{rule}");
    }
    let scrapers = "networkPolicy.scrapers[0].podSelector.matchLabels.app=prometheus";
    let policy = object(&render(&[&on[..], &["--set", scrapers]].concat()), "NetworkPolicy");
    let rule = &policy["spec"]["ingress"][1];
    assert_eq!(rule["ports"], json!([{ "port": "http" }]));
    assert_eq!(rule["from"][0]["podSelector"]["matchLabels"]["app"], "prometheus");
}

#[test]
fn with_a_network_policy_the_service_reaches_the_webhook_of_notices_by_the_port_of_its_url() {
    let clients = "networkPolicy.enabled=true,networkPolicy.clients[0].podSelector.a=b";
    for (url, port) in [
        ("https://h/hook", 443),
        ("http://h", 80),
        ("https://h:8443/hook?to=:1", 8443),
        ("http://[::1]/hook", 80),
    ] {
        let url = format!("settings.notices-url={url}");
        let policy = object(&render(&["--set", clients, "--set", &url]), "NetworkPolicy");
        let egress = policy["spec"]["egress"].as_array().unwrap();
        let rule = json!({ "ports": [{ "port": port, "protocol": "TCP" }] });
        assert_eq!(egress.last(), Some(&rule), "{url}");
    }
}

#[test]
fn with_a_network_policy_only_the_service_reaches_the_bundled_redis() {
    let clients = "networkPolicy.enabled=true,networkPolicy.clients[0].podSelector.a=b";
    let on = ["--set", clients, "--set", "bundledRedis.enabled=true"];
    let objects = render(&on);
    let is_of_redis = |object: &&Value| {
        object["kind"] == "NetworkPolicy"
            && object["metadata"]["name"] == "release-tollkeeper-redis"
    };
    let spec = &objects.iter().find(is_of_redis).expect("a policy for Redis")["spec"];
    let labels = |name: &str| json!({ "app.kubernetes.io/name": name, "app.kubernetes.io/instance": "release" });
    assert_eq!(spec["podSelector"]["matchLabels"], labels("tollkeeper-redis"));
    let service = json!([{ "podSelector": { "matchLabels": labels("tollkeeper") } }]);
    assert_eq!(spec["ingress"], json!([{ "ports": [{ "port": "redis" }], "from": service }]));
    assert_eq!(
        (&spec["policyTypes"], &spec["egress"]),
        (&json!(["Ingress", "Egress"]), &Value::Null)
    );
}

#[test]
fn readiness_asks_for_the_service_by_its_name_and_by_https_where_it_speaks_tls() {
    let probe = |arguments: &[&str]| {
        let pod = &object(&render(arguments), "Deployment")["spec"]["template"]["spec"];
        pod["containers"][0]["readinessProbe"].clone()
    };
    let grpc = &probe(&[])["grpc"];
    assert_eq!(grpc["service"], "envoy.service.ratelimit.v3.RateLimitService");
    assert_eq!(grpc["port"], 8081);
    let https = &probe(&["--set", "tls.secret=cert"])["httpGet"];
    assert_eq!((&https["path"], &https["scheme"]), (&"/readyz".into(), &"HTTPS".into()));
}

#[test]
fn with_tls_for_grpc_alone_everything_asks_for_http_without_tls() {
    let scrape = "monitoring.scrape.kind=ServiceMonitor";
    for (tls, scheme) in [
        ("tls.secret=", "http"),
        ("tls.secret=cert", "https"),
        ("tls.secret=cert,settings.tls-scope=all", "https"),
        ("tls.secret=cert,settings.tls-scope=grpc", "http"),
    ] {
        let objects = render(&["--set", scrape, "--set", tls]);
        let container =
            &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let probe = &container[probe];
            if probe.get("grpc").is_none() {
                assert_eq!(probe["httpGet"]["scheme"], scheme.to_uppercase(), "{tls}: {probe}");
            }
        }
        let is_grpc = container["readinessProbe"].get("grpc").is_some();
        assert_eq!(is_grpc, tls == "tls.secret=", "the kubelet's gRPC probe speaks no TLS");
        assert_eq!(object(&objects, "Service")["spec"]["ports"][1]["appProtocol"], scheme);
        let monitor = object(&objects, "ServiceMonitor");
        assert_eq!(monitor["spec"]["endpoints"][0]["scheme"], scheme, "{tls}");
    }
}

#[test]
fn the_rules_are_checked_before_an_upgrade_changes_anything() {
    let objects = render(&[]);
    let job = objects.iter().find(|object| object["kind"] == "Job").unwrap();
    let hooks = &job["metadata"]["annotations"]["helm.sh/hook"];
    assert_eq!(hooks, "pre-install,pre-upgrade,pre-rollback");
    let pod = &job["spec"]["template"]["spec"];
    let folder = TempDir::new().unwrap();
    let check = |rules: &str| {
        let sources = Files { objects: &objects, rules, certificates: None };
        run(&mut pod::command(pod, &sources, folder.path()))
    };
    let (code, _, error) = check("domain: shop\ndescriptors: [{ key: user }]\n");
    assert_eq!(code, Some(0), "{error}");
    let (code, out, error) = check("domain: shop\ndescriptor: [{ key: user }]\n");
    assert_eq!(code, Some(2), "{out}{error}");
    assert!((out + &error).contains("did you mean `descriptors`?"));
}

/// The objects of a release that is not installed yet: the copies of its ConfigMaps for hooks, and no Secrets.
struct BeforeInstall<'a>(&'a [Value]);

impl Source for BeforeInstall<'_> {
    fn files(&self, kind: &str, name: &str) -> Vec<(String, String)> {
        let is_there = |object: &&Value| {
            let hook = &object["metadata"]["annotations"]["helm.sh/hook"];
            object["kind"] == kind && object["metadata"]["name"] == name && hook.is_string()
        };
        let data = self.0.iter().find(is_there).map(|object| object["data"].as_object().unwrap());
        let data = data.into_iter().flatten();
        data.map(|(key, text)| (key.clone(), text.as_str().unwrap().into())).collect()
    }
}

#[test]
fn bad_settings_fail_the_check_and_secrets_that_do_not_exist_yet_do_not() {
    let check = |arguments: &[&str], with_secrets: bool| {
        let objects = render(arguments);
        let job = objects.iter().find(|object| object["kind"] == "Job").unwrap();
        let folder = TempDir::new().unwrap();
        let pod = &job["spec"]["template"]["spec"];
        let files = Files { objects: &objects, rules: "", certificates: None };
        let mut check = if with_secrets {
            pod::command(pod, &files, folder.path())
        } else {
            pod::command(pod, &BeforeInstall(&objects), folder.path())
        };
        let (code, out, error) = run(&mut check);
        (code, out + &error)
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
fn the_check_starts_without_the_objects_of_variables_that_do_not_exist_yet() {
    let variables = "extraEnv[0].name=A,extraEnv[0].valueFrom.secretKeyRef.name=a,extraEnv[0].valueFrom.secretKeyRef.key=k,\
                     extraEnv[1].name=B,extraEnv[1].value=b,extraEnvFrom[0].configMapRef.name=c";
    let objects = render(&["--set", variables]);
    let job = objects.iter().find(|object| object["kind"] == "Job").unwrap();
    let check = &job["spec"]["template"]["spec"]["containers"][0];
    let secret = json!({ "name": "a", "key": "k", "optional": true });
    let expected = json!([{ "name": "A", "valueFrom": { "secretKeyRef": secret } }, { "name": "B", "value": "b" }]);
    assert_eq!(check["env"], expected);
    assert_eq!(check["envFrom"], json!([{ "configMapRef": { "name": "c", "optional": true } }]));
    let service = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(service["envFrom"], json!([{ "configMapRef": { "name": "c" } }]), "pods wait");
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
        let folder = TempDir::new().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let overlay = format!("rulesOverlay={}", file("overlay", overlay));
        let mut all = vec!["--set-file", &overlay];
        let rules = format!(r"rules.a\.yaml={}", file("rules", rules));
        if arguments.is_empty() {
            all.extend(["--set-file", &rules]);
        }
        all.extend(arguments);
        let objects = render(&all);
        let job = objects.iter().find(|object| object["kind"] == "Job").unwrap();
        let sources = Files { objects: &objects, rules: "", certificates: None };
        let pod = &job["spec"]["template"]["spec"];
        let (code, out, error) = run(&mut pod::command(pod, &sources, &folder.path().join("pod")));
        assert_eq!(code, expected, "{all:?}: {out}{error}");
        assert!(code == Some(0) || (out + &error).contains("did you mean `hold`?"), "{all:?}");
    }
}

#[test]
fn rules_from_a_control_plane_need_no_config_map() {
    let objects = render(&["--values", "helm/ci/xds-values.yaml", "--set", "rulesOverlay="]);
    let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert!(!kinds.contains(&"ConfigMap"), "{kinds:?}");
    let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    let names: Vec<_> = volumes.iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["secrets"]);
    assert_eq!(pod["containers"][0]["volumeMounts"][0]["readOnly"], true);
    let port = json!({ "port": 18001, "protocol": "TCP" });
    let egress = &object(&objects, "NetworkPolicy")["spec"]["egress"];
    assert!(egress.as_array().unwrap().contains(&json!({ "ports": [port] })), "{egress}");
}

/// The data of the ConfigMaps and Secrets that a test's pods mount.
struct Files<'a> {
    objects: &'a [Value],
    /// The rules, where the chart has none of its own.
    rules: &'a str,
    certificates: Option<&'a Issued>,
}

impl Source for Files<'_> {
    fn files(&self, kind: &str, name: &str) -> Vec<(String, String)> {
        if kind == "ConfigMap" && !self.rules.is_empty() && !name.ends_with("-clients") {
            return vec![("a.yaml".to_owned(), self.rules.to_owned())];
        }
        let named = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        if let Some(object) = self.objects.iter().find(named) {
            let data = object["data"].as_object().unwrap().iter();
            return data.map(|(key, text)| (key.clone(), text.as_str().unwrap().into())).collect();
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
        let sources = Files { objects: &objects, rules, certificates: Some(&issued) };
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

/// The ports and the annotations of the Services.
fn services(values: &str) -> Vec<(Vec<String>, Value)> {
    let objects = render(&["--set", values]);
    let services = objects.iter().filter(|object| object["kind"] == "Service");
    let ports = |service: &Value| -> Vec<String> {
        let ports = service["spec"]["ports"].as_array().unwrap();
        ports.iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect()
    };
    services.map(|service| (ports(service), service["metadata"]["annotations"].clone())).collect()
}

#[test]
fn a_load_balancer_publishes_only_grpc_and_the_headless_service_has_no_annotations_of_the_other() {
    let own = json!({ "a": "b" });
    for (values, ports) in [
        ("service.type=ClusterIP", &["grpc", "http"][..]),
        ("service.type=LoadBalancer", &["grpc"]),
        ("service.type=LoadBalancer,service.http=true", &["grpc", "http"]),
        ("service.type=ClusterIP,service.http=false", &["grpc"]),
    ] {
        let services = services(&format!("{values},service.annotations.a=b"));
        let headless = (vec!["grpc".to_owned(), "http".to_owned()], Value::Null);
        let service = (ports.iter().map(|port| (*port).to_owned()).collect(), own.clone());
        assert_eq!(services, [service, headless], "{values}");
    }
}

#[test]
fn the_job_has_the_account_that_exists_before_the_release_and_the_time_that_values_give_it() {
    let job = |values: &str| {
        let objects = render(&["--set", values]);
        objects.iter().find(|object| object["kind"] == "Job").unwrap()["spec"].clone()
    };
    let created = job("priorityClassName=high");
    assert_eq!(created["activeDeadlineSeconds"], 240);
    assert_eq!(created["template"]["spec"]["serviceAccountName"], Value::Null);
    assert_eq!(created["template"]["spec"]["priorityClassName"], "high");
    let own = "serviceAccount.create=false,serviceAccount.name=mine,rulesCheck.timeoutSeconds=600";
    let spec = job(own);
    assert_eq!(spec["activeDeadlineSeconds"], 600);
    assert_eq!(spec["template"]["spec"]["serviceAccountName"], "mine");
}

#[test]
fn the_admin_api_is_reached_only_where_a_token_and_a_value_admit_it() {
    let on = "admin.tokenSecret.name=token,networkPolicy.enabled=true,networkPolicy.clients[0].podSelector.a=b";
    let ports = |objects: &[Value]| -> Vec<String> {
        let ingress = object(objects, "NetworkPolicy")["spec"]["ingress"].clone();
        let ports = ingress.as_array().unwrap().iter().map(|rule| rule["ports"].to_string());
        ports.filter(|ports| ports.contains("admin")).collect()
    };
    let names = |objects: &[Value]| -> Vec<String> {
        let services = objects.iter().filter(|object| object["kind"] == "Service");
        services.map(|service| service["metadata"]["name"].as_str().unwrap().into()).collect()
    };
    let closed = render(&["--set", on]);
    assert!(ports(&closed).is_empty());
    assert!(!names(&closed).iter().any(|name| name.ends_with("-admin")), "{:?}", names(&closed));
    let client = "networkPolicy.adminClients[0].podSelector.matchLabels.app=tools";
    // A load balancer would publish it, so it is a Service of its own.
    let open =
        ["--set", on, "--set", client, "--set", "admin.service=true,service.type=LoadBalancer"];
    let objects = render(&open);
    assert_eq!(ports(&objects), [r#"[{"port":"admin"}]"#]);
    let is_admin = |object: &&Value| object["metadata"]["name"] == "release-tollkeeper-admin";
    let admin = &objects.iter().find(is_admin).expect("a Service")["spec"];
    assert_eq!((&admin["clusterIP"], &admin["type"]), (&json!("None"), &Value::Null));
    assert_eq!(admin["ports"], json!([{ "name": "admin", "port": 6070, "targetPort": "admin" }]));
}

#[test]
fn a_disruption_budget_keeps_a_number_of_replicas_where_values_say_so() {
    let three = "replicas=3,store.url=redis://r";
    let budget = |sets: &str| {
        let spec = object(&render(&["--set", three, "--set", sets]), "PodDisruptionBudget");
        (spec["spec"]["minAvailable"].clone(), spec["spec"]["maxUnavailable"].clone())
    };
    assert_eq!(budget("minReadySeconds=0"), (Value::Null, json!(1)));
    assert_eq!(budget("podDisruptionBudget.minAvailable=2"), (json!(2), Value::Null));
    assert_eq!(budget("podDisruptionBudget.minAvailable=50%"), (json!("50%"), Value::Null));
    let all = "podDisruptionBudget.minAvailable=3";
    refused(&["--set", three, "--set", all], "must be less than the number of replicas, 3");
}
