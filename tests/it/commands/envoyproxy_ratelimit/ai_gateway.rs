//! The service in the place of the one that users of Envoy AI Gateway deploy for its QuotaPolicies.

use super::{EnvoyproxyRatelimit, Variables, get};
use crate::support::{control_plane::ControlPlane, prelude::*};

const NODE: &str = "envoy-ai-gateway-ratelimit";

/// What its sample sets. The addresses are replaced. It has a flag for another program too, which is ignored.
const VARIABLES: Variables<'_> = &[
    ("LOG_LEVEL", "debug"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis:6379"),
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("USE_STATSD", "false"),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_NODE_ID", NODE),
    ("CONFIG_GRPC_XDS_SERVER_URL", "ai-gateway-controller:18002"),
    ("GRPC_PORT", "8081"),
];

/// A quota of ten tokens a year for a model of a backend, in the shape that AI Gateway sends.
fn quota() -> serde_json::Value {
    let limit = json!({ "unit": "YEAR", "requestsPerUnit": 10 });
    let model = json!({ "key": "model_name_override", "value": "gpt", "rateLimit": limit, "quotaMode": true });
    let backend =
        json!({ "key": "backend_name", "value": "default/openai", "descriptors": [model] });
    json!({ "name": "ai-gateway-quota", "domain": "ai-gateway-quota", "descriptors": [backend] })
}

/// Calls of the quota's model with this number of hits.
async fn ask(service: &EnvoyproxyRatelimit, count: u64) -> String {
    let path = [("backend_name", "default/openai"), ("model_name_override", "gpt")];
    service.ask(request("ai-gateway-quota", vec![hits(descriptor(&path), count)])).await
}

/// Starts a service on a control plane that has no quota yet, and calls pass. Then it has one.
async fn start(variables: &[(&str, &str)]) -> (ControlPlane, EnvoyproxyRatelimit) {
    let mut control_plane = ControlPlane::start_for(NODE);
    control_plane.set("1", &[]);
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| match *name {
            "CONFIG_GRPC_XDS_SERVER_URL" => (*name, &*control_plane.address),
            "REDIS_URL" => (*name, "redis:6379"),
            _ => (*name, *value),
        })
        .collect();
    let service = EnvoyproxyRatelimit::start(&variables, &[]);
    assert_eq!(ask(&service, 1).await, "OK: OK -");
    control_plane.set("2", &[quota()]);
    wait_until("the quota is in force", || {
        get(service.debug, "/rlconfig").1.contains("quota_mode: true")
    });
    (control_plane, service)
}

/// As its own test expects: a request counts as one, the tokens of its answer follow, and denied requests count too.
#[tokio::test]
async fn the_environment_of_ai_gateway_starts_a_service_that_charges_tokens_beyond_the_quota() {
    let (_control_plane, service) = start(VARIABLES).await;
    assert_eq!(ask(&service, 1).await, "OK: OK 9/10 YEAR");
    ask(&service, 20).await;
    let key = service.redis.key("openai");
    assert_eq!(service.redis.query::<u64>(&["GET", &key]), 21);
    assert_eq!(ask(&service, 1).await, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR");
    assert_eq!(service.redis.query::<u64>(&["GET", &key]), 22);
}

/// The output without the seconds until the reset, which differ.
fn without_time(output: &str) -> &str {
    output.split_once(", resets in ").expect(output).0
}

#[tokio::test]
async fn the_deployment_of_the_page_starts_a_service_that_answers_as_the_page_shows() {
    let page = page("ai-gateway.md");
    let manifests = documents(include_str!("../../../../examples/gateways/ai-gateway.yaml"));
    let container = &manifests[0]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["command"], json!(["/bin/ratelimit"]));
    let variables = container["env"].as_array().unwrap().iter();
    let variables: Vec<(&str, &str)> = variables
        .map(|each| (each["name"].as_str().unwrap(), each["value"].as_str().unwrap()))
        .collect();
    let (_control_plane, service) = start(&variables).await;
    let probe = container["readinessProbe"]["httpGet"]["path"].as_str().unwrap();
    assert_eq!(get(service.http, probe), (200, "OK".to_owned()));

    let shown = blocks(&page, "text");
    let command = shown.iter().find(|block| block.starts_with("tollkeeper ")).unwrap();
    let command = command.replace(['\\', '\''], "");
    let answers = shown.iter().filter(|block| block.contains("resets in"));
    let answers: Vec<&&str> = answers.collect();
    assert_eq!(answers.len(), 2);
    for expected in answers {
        let mut call = tollkeeper();
        call.args(command.split_whitespace().skip(1)).args(["--addr", &service.grpc.to_string()]);
        let (_, output, problem) = run(&mut call);
        let output = output.replace("per year", "per hour");
        assert_eq!(without_time(&output), without_time(expected), "{problem}");
        ask(&service, 1).await;
        ask(&service, 20).await;
    }
}
