//! The configurations in examples/: a real Envoy runs them, and other programs check what it cannot read.

use crate::support::{envoy::*, prelude::*};

/// Rules whose window does not end during the test.
fn for_a_year(rules: &str) -> String {
    rules.replace("unit: minute", "unit: year")
}

/// Asserts that at least ten requests of a user pass, and that a later one is denied.
#[track_caller]
fn denies_after_ten(envoy: &Envoy) -> Answer {
    // Envoy allows a request whose call takes over 20 ms, but the call has been counted.
    let mut requests = 0;
    let denied = crate::support::eventually("a 429", || {
        requests += 1;
        Some(envoy.get(b"alice")).filter(|answer| answer.status == 429)
    });
    assert!(requests > 10, "denied after {requests} of 10 requests");
    assert_eq!(envoy.get(b"bob").status, 200);
    denied
}

#[test]
fn the_example_configuration_is_valid_as_it_is_and_leads_to_a_429() {
    let file = root().join("examples/envoy/envoy.yaml");
    let mut validate = Command::new(tool("envoy"));
    succeeds(validate.args(["--mode", "validate", "-c"]).arg(&file));

    let service = Service::with(&for_a_year(&example("rules.yaml"))).start();
    let envoy = envoy(&example("envoy/envoy.yaml"), PUBLIC, RLS, &service);
    let denied = denies_after_ten(&envoy);
    assert_eq!(denied.header("x-ratelimit-limit"), Some("10, 10;w=31536000"));

    // What docs/troubleshooting.md says about Envoy's counters.
    let counts = || {
        ["ok", "over_limit", "error", "failure_mode_allowed"]
            .map(|name| envoy.count(&format!("cluster.upstream.ratelimit.{name}")))
    };
    let [ok, over_limit, error, allowed] = counts();
    assert!(ok > 0 && over_limit > 0 && error == allowed, "{:?}", counts());
    drop(service);
    assert_eq!(envoy.get(b"alice").status, 200);
    assert_eq!(counts(), [ok, over_limit, error + 1, allowed + 1]);
    assert_eq!(
        exchange(envoy.public, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .unwrap()
            .split(' ')
            .nth(1),
        Some("200")
    );
    assert_eq!(
        counts(),
        [ok, over_limit, error + 1, allowed + 1],
        "without the header it does not ask"
    );
}

#[test]
fn the_page_about_envoy_shows_parts_of_the_example() {
    let page = fs::read_to_string(root().join("docs/envoy.md")).unwrap();
    let parts = blocks(&page, "yaml");
    let unindented = |text: &str| text.lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
    let config = unindented(&example("envoy/envoy.yaml"));
    for block in &parts[..3] {
        assert!(config.contains(&unindented(block)), "{block}");
    }
}

/// The arguments of a container in the compose file.
fn arguments(compose: &Value, service: &str) -> Vec<String> {
    serde_json::from_value(compose["services"][service]["command"].clone()).unwrap()
}

/// No container is started: the same programs run with the same arguments, at other addresses.
#[test]
fn the_commands_of_the_compose_file_lead_to_a_429() {
    let compose = &documents(&example("compose/compose.yaml"))[0];
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();

    let redis = arguments(compose, "redis");
    let mut command = Command::new(&redis[0]);
    command.args(&redis[1..]).args(["--port", "0", "--unixsocket", &path("redis")]);
    let _redis = Process::spawn(command.current_dir(folder.path()).stdout(Stdio::null()));

    let rules = path("rules");
    fs::create_dir(&rules).unwrap();
    let rule_file = Path::new(&rules).join("example.yaml");
    fs::write(rule_file, for_a_year(&example("compose/rules/example.yaml"))).unwrap();
    let store = format!("redis+unix://{}", path("redis"));
    let ours = replace(
        &arguments(compose, "tollkeeper").join(" "),
        &[
            ("0.0.0.0:8081", 1, "127.0.0.1:0"),
            ("0.0.0.0:8080", 1, "127.0.0.1:0"),
            ("redis://redis:6379", 1, &store),
            ("--rules=/rules", 1, &format!("--rules={rules}")),
        ],
    );
    let mut command = tollkeeper();
    command.args(ours.split(' ')).args(["--admin-addr=127.0.0.1:0", "--decision-budget=10s"]);
    let service = Service::spawn(command, folder);
    service.wait_until_ready();

    let public = "socket_address: { address: 0.0.0.0, port_value: 10000 }";
    // Strict DNS also takes an IP address.
    let envoy = envoy(&example("compose/envoy.yaml"), public, ("tollkeeper", "8081"), &service);
    denies_after_ten(&envoy);
    assert!(service.get("/metrics").contains("ratelimit_store_connections{"), "it counts in Redis");
}

#[test]
fn the_monitoring_of_the_compose_file_has_the_alerts_and_the_dashboard_of_the_chart() {
    let compose = &documents(&example("compose/compose.yaml"))[0];
    let here = root().join("examples/compose");
    // The files of all containers, each under its path there.
    let containers = TempDir::new().unwrap();
    for (name, service) in compose["services"].as_object().unwrap() {
        let (_, version) = service["image"].as_str().unwrap().split_once(':').unwrap();
        assert!(version.contains('.'), "{name} has no pinned version: {version}");
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let [source, target, "ro"] =
                volume.as_str().unwrap().split(':').collect::<Vec<_>>()[..]
            else {
                panic!("{volume}");
            };
            let source = here.join(source);
            assert!(source.exists(), "{name} mounts {}, which does not exist", source.display());
            if source.is_file() {
                let target = containers.path().join(target.trim_start_matches('/'));
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                fs::copy(source, target).unwrap();
            }
        }
    }
    let etc = containers.path().join("etc");
    let read = |path: &str| fs::read_to_string(etc.join(path)).unwrap();

    let config = etc.join("prometheus/prometheus.yml");
    let mut promtool = Command::new(tool("promtool"));
    let stdout = succeeds(promtool.args(["check", "config"]).arg(config));
    assert!(stdout.contains("rules found"), "{stdout}");
    assert_eq!(
        read("prometheus/alerts.yaml"),
        crate::support::chart::text("helm/files/alerts.yaml")
    );
    let scraped = &documents(&read("prometheus/prometheus.yml"))[0]["scrape_configs"][0];
    assert_eq!(scraped["static_configs"][0]["targets"], json!(["tollkeeper:8080"]));
    assert!(arguments(compose, "tollkeeper").contains(&"--http-addr=0.0.0.0:8080".to_owned()));

    let source = &documents(&read("grafana/provisioning/datasources/tollkeeper.yaml"))[0];
    let expected = json!({
        "name": "Prometheus", "type": "prometheus", "access": "proxy",
        "url": "http://prometheus:9090", "isDefault": true,
    });
    assert_eq!((&source["apiVersion"], &source["datasources"]), (&json!(1), &json!([expected])));
    let provider = &documents(&read("grafana/provisioning/dashboards/tollkeeper.yaml"))[0];
    let expected = json!({
        "name": "tollkeeper", "type": "file", "options": { "path": "/etc/grafana/dashboards" },
    });
    assert_eq!((&provider["apiVersion"], &provider["providers"]), (&json!(1), &json!([expected])));
    let dashboard: Value =
        serde_json::from_str(&read("grafana/dashboards/tollkeeper.json")).unwrap();
    assert_eq!(dashboard["uid"], "tollkeeper");
}

#[test]
fn the_envoy_of_the_compose_file_differs_from_the_example_only_in_its_addresses() {
    let expected = replace(
        &example("envoy/envoy.yaml"),
        &[
            ("127.0.0.1, port_value: 10000", 1, "0.0.0.0, port_value: 10000"),
            ("127.0.0.1, port_value: 8081", 1, "tollkeeper, port_value: 8081"),
        ],
    );
    let mut expected = documents(&expected).remove(0);
    expected["static_resources"]["clusters"][0]["type"] = json!("STRICT_DNS");
    assert_eq!(documents(&example("compose/envoy.yaml"))[0], expected);
}

#[test]
fn manifests_have_the_fields_of_their_types_and_misspelled_ones_are_noticed() {
    let check = |file: &Path| run(Command::new(tool("manifest-check")).arg(file));
    let folder = TempDir::new().unwrap();
    for (path, field) in [
        ("gateways/istio.yaml", "configPatches"),
        ("gateways/istio-gateway-api.yaml", "targetRefs"),
        ("gateways/istio-route.yaml", "destination"),
        ("gateways/contour.yaml", "timeoutPolicy"),
        ("gateways/contour-configuration.yaml", "failOpen"),
        ("compose/compose.yaml", "volumes"),
    ] {
        let (code, _, errors) = check(&root().join("examples").join(path));
        assert_eq!(code, Some(0), "{errors}");
        let misspelled = folder.path().join(Path::new(path).file_name().unwrap());
        fs::write(&misspelled, example(path).replace(field, "misspelled")).unwrap();
        let (code, _, errors) = check(&misspelled);
        assert!(code == Some(1) && errors.contains("misspelled"), "{path}: {errors}");
    }
}

/// The commands of the job in CI, run as its shell would.
#[test]
fn the_job_in_ci_accepts_good_rules_and_refuses_bad_ones() {
    let job = documents(&example("ci/rules.yaml")).remove(0);
    let steps = job["jobs"]["rules"]["steps"].as_array().unwrap();
    let commands: Vec<_> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    assert_eq!(commands.len(), 2);
    let folder = TempDir::new().unwrap();
    let exits = || {
        let mut codes = Vec::new();
        for command in &commands {
            let mut shell = Command::new("bash");
            shell.args(["-e", "-c", command]).env("RULES", folder.path());
            codes.push(run(shell.env("TOLLKEEPER", env!("CARGO_BIN_EXE_tollkeeper"))).0);
        }
        codes
    };
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    write("rules.yaml", example("rules.yaml"));
    write("rules.test.yaml", example("rules.test.yaml"));
    assert_eq!(exits(), [Some(0), Some(0)]);
    write(
        "rules.yaml",
        example("rules.yaml").replace("requests_per_unit: 10\n", "requests_per_unit: 9\n"),
    );
    assert_eq!(exits(), [Some(0), Some(1)], "its test fails");
    write("rules.yaml", example("rules.yaml").replace("unit: minute", "unit: moment"));
    assert_eq!(exits()[0], Some(1));
}
