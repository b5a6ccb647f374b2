//! The chart on a real API server: installed, upgraded, rolled back and uninstalled by Helm 4 and Helm 3. A test binary of its
//! own, since the API server takes minutes to build: `tests/kubernetes` builds and runs it.
//!
//! There is no kubelet. The test does its work: it runs the pods of hooks and of the Deployment as local processes, with
//! the arguments, variables and mounts that the API server returns.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "a test that panics has failed; the other test binary uses the rest of `support`"
)]

mod api_server;
mod model;
mod support;

use std::process::Command;

use serde_json::{Value, json};

use self::{
    api_server::{ApiServer, release::Release},
    support::{eventually, redis_server::Redis, root, run, tool},
};

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
    const SCRIPT: &str = r#"
import json, sys, yaml
pods = []
for each in yaml.safe_load_all(sys.stdin):
    if each and each["kind"] in ("Deployment", "Job", "Pod"):
        spec = each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"]
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": each["metadata"]["name"]}, "spec": spec})
json.dump(pods, sys.stdout)
"#;
    let render = r#""$0" template release "$1" --set bundledRedis.enabled=true,serviceAccount.create=false \
        | "$2" -c "$3""#;
    let mut command = Command::new("sh");
    command.args(["-c", render]).arg(tool("helm")).arg(root().join("helm")).arg(tool("python"));
    let (_, pods, error) = run(command.arg(SCRIPT));
    serde_json::from_str(&pods).expect(&error)
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
    eventually("the upgrade's rules", || (service.left() == "7 left of 7 per year").then_some(()));

    release.helm(&["rollback", "tollkeeper", "1"], None).unwrap();
    assert_eq!(installed(), Some(rules(5).into()));
    release.update_volumes(&service);
    eventually("the first rules", || (service.left() == "5 left of 5 per year").then_some(()));

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
