//! The chart on a real API server: installed, upgraded, rolled back and uninstalled by Helm 4 and Helm 3. And the page about
//! Contour, with a real Contour on that server. A test binary of its own, since both take minutes to build:
//! `tests/kubernetes` builds the server and runs the first part, `tests/contour` the second.
//!
//! No kubelet runs here. The test takes its place: it runs the pods of hooks and of the Deployment as local processes,
//! with the arguments, variables and mounts that the API server returns.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    dead_code,
    unreachable_pub,
    reason = "a test that panics has failed; the other test binary uses the rest of `support`"
)]

mod api_server;
#[path = "../support/mod.rs"]
mod support;

use self::{
    api_server::{
        ApiServer,
        contour::{Contour, address_of_machine},
        release::Release,
    },
    support::envoy::exchange,
    support::pages::{DescriptorRow, descriptors, request_of_row, requests, rules_with},
};

use crate::support::prelude::*;

fn rules(limit: u32) -> String {
    format!(
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: year, requests_per_unit: {limit} }}\n"
    )
}

/// A misspelled key.
const BAD_RULES: &str = "domain: shop\ndescriptor: []\n";

#[test]
fn helm_4_installs_upgrades_rolls_back_and_uninstalls_the_chart() {
    life_of_a_release("helm");
}

#[test]
fn helm_3_installs_upgrades_rolls_back_and_uninstalls_the_chart() {
    life_of_a_release("helm-3");
}

/// The pods of a rendered chart, as the controllers would create them.
fn pods() -> Vec<Value> {
    let mut helm = Command::new(tool("helm"));
    helm.args(["template", "release"]).arg(root().join("helm"));
    helm.args(["--set", "bundledRedis.enabled=true,serviceAccount.create=false"]);
    let yaml = succeeds(&mut helm);
    let mut pods = Vec::new();
    for object in documents(&yaml) {
        let spec = match object["kind"].as_str() {
            Some("Deployment" | "Job") => &object["spec"]["template"]["spec"],
            Some("Pod") => &object["spec"],
            _ => continue,
        };
        let metadata = json!({ "name": object["metadata"]["name"] });
        pods.push(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }));
    }
    pods
}

#[test]
fn a_namespace_of_the_standard_restricted_admits_every_pod_of_the_chart() {
    let server = ApiServer::start();
    let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    let namespace = json!({ "metadata": { "labels": labels } });
    server.ask("PATCH", "/api/v1/namespaces/default", Some(&namespace)).unwrap();
    let path = "/api/v1/namespaces/default/pods?dryRun=All";
    let pods = pods();
    assert_eq!(pods.len(), 4, "the service, Redis, and the pods of the check and the test");
    for mut pod in pods {
        server.ask("POST", path, Some(&pod)).unwrap();
        pod["spec"]["securityContext"] = json!({});
        let refusal = server.answer("POST", path, Some(&pod)).unwrap_err();
        assert!(refusal.contains("violates PodSecurity"), "{refusal}");
    }
}

fn life_of_a_release(helm: &str) {
    let (server, redis) = (ApiServer::start(), Redis::start());
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "admin" },
        "stringData": { "token": "a-token-of-the-test" },
    });
    server.ask("POST", "/api/v1/namespaces/default/secrets", Some(&secret)).unwrap();
    let store = redis.url();
    let release = Release::new(&server, helm, &store);
    let config_map = "/api/v1/namespaces/default/configmaps/tollkeeper-rules";
    let installed = || server.ask("GET", config_map, None).map(|map| map["data"]["r.yaml"].clone());

    let refusal = release.apply("install", BAD_RULES).unwrap_err();
    assert!(refusal.contains("tollkeeper-check"), "{refusal}");
    assert_eq!(installed(), None, "bad rules were installed");
    release.helm(&["uninstall", "tollkeeper"], None).unwrap();

    release.apply("install", &rules(5)).unwrap();
    let service = release.start_service();
    assert_eq!(service.left(), "5 left of 5 per year");

    // A pod that starts would exit with these rules, and one that runs would reject them.
    release.apply("upgrade", BAD_RULES).unwrap_err();
    assert_eq!(installed(), Some(rules(5).into()));

    release.apply("upgrade", &rules(7)).unwrap();
    release.update_volumes(&service);
    wait_until("the upgrade's rules", || service.left() == "7 left of 7 per year");

    release.helm(&["rollback", "tollkeeper", "1"], None).unwrap();
    assert_eq!(installed(), Some(rules(5).into()));
    release.update_volumes(&service);
    wait_until("the first rules", || service.left() == "5 left of 5 per year");

    release.helm(&["test", "tollkeeper"], Some(&service)).unwrap();

    release.helm(&["uninstall", "tollkeeper"], None).unwrap();
    for kind in [
        "api/v1/namespaces/default/configmaps",
        "api/v1/namespaces/default/services",
        "api/v1/namespaces/default/serviceaccounts",
        "apis/apps/v1/namespaces/default/deployments",
        "apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
        "apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    ] {
        let list = format!("/{kind}?labelSelector=app.kubernetes.io/instance%3Dtollkeeper");
        let left: Value = server.ask("GET", &list, None).unwrap();
        assert_eq!(left["items"], json!([]), "{kind}");
    }
}

#[test]
fn a_config_map_of_rules_that_does_not_exist_is_refused_before_anything_is_installed() {
    let server = ApiServer::start();
    let maps = "/api/v1/namespaces/default/configmaps";
    let named = |name: &str| json!({ "metadata": { "name": name } });
    // A controller would create it.
    server.ask("POST", maps, Some(&named("kube-root-ca.crt")));
    let install = || {
        let mut helm = Command::new(tool("helm"));
        helm.env("KUBECONFIG", server.kubeconfig()).args(["install", "tollkeeper"]);
        helm.arg(root().join("helm")).args(["--dry-run=server", "--set"]);
        run(helm.arg("existingRulesConfigMap=mine"))
    };
    let (code, _, error) = install();
    assert_eq!(code, Some(1));
    let reason = "existingRulesConfigMap is \"mine\", and there is no such ConfigMap in the namespace default";
    assert!(error.contains(reason), "{error}");
    server.ask("POST", maps, Some(&named("mine")));
    let (code, out, error) = install();
    assert_eq!(code, Some(0), "{out}{error}");
}

/// An HTTPProxy with a route for each row of the page's table, which the header x-row selects.
fn proxy_of_rows(rows: &[DescriptorRow]) -> Value {
    let mut routes = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let header = json!({ "name": "x-row", "exact": index.to_string() });
        let global = json!({ "descriptors": [{ "entries": [row.written] }] });
        routes.push(json!({
            "conditions": [{ "header": header }],
            "services": [{ "name": "shop", "port": 80 }],
            "rateLimitPolicy": { "global": global },
        }));
    }
    json!({
        "apiVersion": "projectcontour.io/v1", "kind": "HTTPProxy",
        "metadata": { "name": "rows", "namespace": "default" },
        "spec": { "virtualhost": { "fqdn": "rows.example" }, "routes": routes },
    })
}

/// The manifest is applied as it is, apart from addresses and the time that Envoy waits.
#[test]
#[ignore = "needs a real Contour, which tests/contour builds"]
fn contour_limits_requests_and_sends_descriptors_as_its_page_says() {
    let text = page("contour.md");
    let rows = descriptors(&text);
    let server = ApiServer::start();
    // Contour's Envoy does not reach loopback.
    let address = format!("{}:0", address_of_machine());
    let service = Service::with(&rules_with(&rows)).flags(&["--grpc-addr", &address]).start();
    let example = |name| fs::read_to_string(root().join("examples/gateways").join(name)).unwrap();
    let mut manifests = documents(&example("contour.yaml"));
    manifests.extend(documents(&example("contour-configuration.yaml")));
    assert_eq!(manifests[0]["spec"]["timeoutPolicy"]["response"], "20ms");
    manifests[0]["spec"]["timeoutPolicy"]["response"] = "30s".into();
    manifests.push(proxy_of_rows(&rows));
    let contour = Contour::start(&server, &manifests, service.grpc.port());

    let (shown, expected) = requests(&text, &contour.url);
    assert_eq!(shown, expected);
    let address = contour.url.strip_prefix("http://").unwrap().parse().unwrap();
    for (index, row) in rows.iter().enumerate() {
        let request = request_of_row("rows.example", index);
        let answers = [(); 2].map(|()| exchange(address, request.as_bytes()).unwrap());
        let statuses = answers.each_ref().map(|answer| answer.split(' ').nth(1));
        assert_eq!(statuses, [Some("200"), Some("429")], "{}={}", row.key, row.value);
    }
}

#[test]
#[ignore = "needs a real Contour, which tests/contour builds"]
fn the_page_of_contour_has_the_environment_of_its_sample_whose_rules_are_accepted() {
    let sample = fs::read_to_string(root().join("target/tools/contour-sample.yaml")).unwrap();
    let sample = documents(&sample);
    let of = |kind: &str| sample.iter().find(|object| object["kind"] == kind).expect(kind);
    let pod = &of("Deployment")["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().unwrap();
    let container = containers.iter().find(|container| container["name"] == "ratelimit").unwrap();
    assert_eq!(container["command"], json!(["/bin/ratelimit"]));
    let mut environment = String::new();
    for variable in container["env"].as_array().unwrap() {
        let [name, value] = ["name", "value"].map(|key| variable[key].as_str().unwrap());
        environment += &format!("{name}={value}\n");
    }
    assert_eq!(environment, blocks(&page("contour.md"), "dotenv")[0]);

    let rules = of("ConfigMap")["data"]["ratelimit-config.yaml"].as_str().unwrap();
    let file = TextFile::new("ratelimit-config.yaml", rules);
    let out = succeeds(tollkeeper().args(["check", &file]));
    assert_eq!(out, "ok: 2 rules in 1 domain\n");
}
