//! The samples of docs/envoy-gateway.md, and the manifest of docs/ai-gateway.md.

use super::{Gateway, deployment, theirs};
use crate::support::prelude::*;

/// Envoy Gateway's own opinion of a manifest.
fn check(text: &str) -> Result<(), String> {
    let file = TextFile::new("sample.yaml", text);
    let (code, _, problem) = run(Command::new(tool("envoy-gateway")).args(["check", &file]));
    if code == Some(0) { Ok(()) } else { Err(problem) }
}

#[test]
fn the_manifests_have_only_fields_that_their_types_have() {
    let text = page("envoy-gateway.md");
    let mut samples = blocks(&text, "yaml");
    assert_eq!(samples.len(), 2);
    samples.push(include_str!("../../../examples/gateways/ai-gateway.yaml"));
    for sample in samples {
        check(sample).unwrap_or_else(|problem| panic!("{problem}\n{sample}"));
    }
    let values = blocks(&text, "yaml")[0];
    let unknown = check(&values.replace("container:", "containers:")).unwrap_err();
    assert!(unknown.contains("unknown field"), "{unknown}");
    let redis = "redis.default.svc.cluster.local:6379";
    let bad = check(&values.replace(redis, "127.0.0.1:6379")).unwrap_err();
    assert!(bad.contains("127.0.0.1:6379"), "{bad}");
}

/// Its chart puts the values into the configuration that Envoy Gateway reads.
#[test]
fn the_values_replace_the_image_through_the_chart_of_envoy_gateway() {
    let folder = TempDir::new().unwrap();
    let (chart, values) = (folder.path().join("chart"), folder.path().join("values.yaml"));
    succeeds(Command::new("cp").arg("-r").arg(theirs("chart")).arg(&chart));
    // A release fills these in.
    let defaults = fs::read_to_string(chart.join("values.tmpl.yaml")).unwrap();
    let defaults = defaults
        .replace("${GatewayImage}", "docker.io/envoyproxy/gateway:v1.9.1")
        .replace("${GatewayImagePullPolicy}", "IfNotPresent");
    fs::write(chart.join("values.yaml"), defaults).unwrap();
    let text = page("envoy-gateway.md");
    fs::write(&values, blocks(&text, "yaml")[0]).unwrap();
    let mut helm = Command::new(tool("helm"));
    helm.args(["template", "eg"]).arg(&chart).arg("--values").arg(&values);
    helm.args(["--show-only", "templates/envoy-gateway-config.yaml"]);
    let configuration = succeeds(&mut helm);
    check(&configuration).unwrap();
    assert!(configuration.contains("image: registry.example/tollkeeper:0.1.0"), "{configuration}");
    assert!(!configuration.contains("envoyproxy/ratelimit"), "{configuration}");
}

#[test]
fn the_policy_of_the_page_gives_the_statuses_rules_and_answer_that_the_page_shows() {
    let gateway = Gateway::start();
    let text = page("envoy-gateway.md");
    let (policy, shown) = (blocks(&text, "yaml")[1], blocks(&text, "text"));
    gateway.write_policies(policy);
    wait_until("only the page's rule", || gateway.pod.rules().join("\n") + "\n" == shown[1]);
    // Envoy learns it at about the same time.
    wait_until("a limit for another user", || {
        let (_, head) = gateway.send("GET", "/backend", &[("x-user", "another")]);
        head.contains("x-ratelimit-limit: 3")
    });
    let statuses = gateway.five("docs/envoy-gateway.md", "GET", "/backend", &[("x-user", "alice")]);
    assert_eq!(statuses, shown[0].trim_end());
    let (status, answer) = gateway.pod.ask(blocks(&text, "json")[0]);
    assert_eq!(status, 429);
    assert_eq!(without_time(&answer), without_time(shown[2]));
}

/// The answer without the seconds until the limit's window ends.
fn without_time(answer: &str) -> &str {
    answer.split_once("\"durationUntilReset\"").expect(answer).0
}

/// The tests that run without Envoy Gateway use this list.
#[test]
fn the_list_of_its_variables_is_that_of_its_deployment() {
    let deployment = deployment();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let written = container["env"].as_array().unwrap().iter();
    let written: Vec<&str> = written.map(|each| each["name"].as_str().unwrap()).collect();
    let list = include_str!("../../it/commands/envoyproxy_ratelimit/envoy-gateway.env").lines();
    let list: Vec<&str> = list.filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert_eq!(list, written);
}
