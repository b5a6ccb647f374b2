//! The pages about Istio, Contour, kgateway and Emissary: values of the chart, manifests, requests and tables of descriptors.
//! `commands` runs the commands of these and of the other pages about gateways.
//!
//! A real Envoy has the filter and the actions that the gateway would give it. How each gateway makes them of its manifest is
//! written down in `translation`; tests/deploy/kubernetes.rs runs Contour itself.

mod commands;
mod translation;

use self::translation::Gateway;
use crate::support::{chart::invalid, envoy::*, pages::*, prelude::*};

const GATEWAYS: [Gateway; 4] =
    [Gateway::Istio, Gateway::Contour, Gateway::Kgateway, Gateway::Emissary];

fn text_of(gateway: Gateway) -> String {
    page(&format!("{}.md", gateway.name()))
}

fn example(gateway: Gateway) -> String {
    let file = format!("examples/gateways/{}.yaml", gateway.name());
    fs::read_to_string(root().join(file)).unwrap()
}

fn manifests(gateway: Gateway) -> Value {
    let mut manifests = documents(&example(gateway));
    if let Gateway::Contour = gateway {
        let configuration = root().join("examples/gateways/contour-configuration.yaml");
        manifests.extend(documents(&fs::read_to_string(configuration).unwrap()));
    }
    Value::Array(manifests)
}

/// An Envoy that asks the service as the manifest says, and on other routes as each row of the page's table says.
fn envoy(gateway: Gateway, rows: &[DescriptorRow], service: &Service) -> Envoy {
    let manifests = manifests(gateway);
    let mut filter = gateway.filter(&manifests);
    assert_eq!(filter["typed_config"]["timeout"], "0.020s", "{gateway:?}");
    // A starved test machine must not pass for a failing service.
    filter["typed_config"]["timeout"] = "30s".into();
    filter["typed_config"]["rate_limit_service"] = json!({
        "transport_api_version": "V3",
        "grpc_service": { "envoy_grpc": { "cluster_name": "tollkeeper" } },
    });
    let rows: Vec<Value> =
        rows.iter().map(|row| gateway.rate_limit(std::slice::from_ref(&row.written))).collect();
    let manifest_limit = gateway.rate_limit(&gateway.entries(&manifests));

    let folder = TempDir::new().unwrap();
    let text = fs::read_to_string(root().join("examples/envoy/envoy.yaml")).unwrap();
    let mut config = documents(&text).remove(0);
    let mut set =
        |pointer: &str, value: Value| *config.pointer_mut(pointer).expect(pointer) = value;
    let any = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0 } });
    let upstream = json!({ "pipe": { "path": folder.path().join("upstream") } });
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let endpoint = "load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
    set("/admin/address", any.clone());
    set("/static_resources/listeners/0/address", any);
    set("/static_resources/listeners/1/address", upstream.clone());
    set(&format!("/static_resources/clusters/1/{endpoint}"), upstream);
    let port = json!(service.grpc.port());
    set(&format!("/static_resources/clusters/0/{endpoint}/socket_address/port_value"), port);
    set(&format!("{manager}/http_filters/0"), filter);
    let host = gateway.virtual_host(&manifest_limit, &rows);
    set(&format!("{manager}/route_config/virtual_hosts/0"), host);
    Envoy::run(&config.to_string(), folder)
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_requests_and_the_descriptors_of_each_page_are_limited_as_it_says() {
    for gateway in GATEWAYS {
        let page = text_of(gateway);
        let rows = descriptors(&page);
        let service = Service::with(&rules_with(&rows)).start();
        let envoy = envoy(gateway, &rows, &service);
        let (shown, expected) = requests(&page, &format!("http://{}", envoy.public));
        assert_eq!(shown, expected, "{gateway:?}");
        for (index, row) in rows.iter().enumerate() {
            let request = request_of_row("shop.example", index);
            let statuses = [(); 2].map(|()| {
                status(&exchange(envoy.public, request.as_bytes()).expect("envoy answers"))
            });
            assert_eq!(statuses, [200, 429], "{gateway:?}: {}={}", row.key, row.value);
        }
    }
}

/// Runs the installation of a page as `helm template`; returns the objects, and the namespace of the release.
fn rendered(install: &str) -> (Vec<Value>, String) {
    let mut shell = Command::new("bash");
    let install = install.replace("helm upgrade --install ", "helm install ");
    let script = format!("set -e\nhelm() {{ \"$HELM\" template \"${{@:2}}\"; }}\n{install}");
    shell.args(["-c", &script]).env("HELM", tool("helm")).current_dir(root());
    let yaml = succeeds(&mut shell);
    assert_eq!(invalid(&yaml), Vec::<String>::new(), "{install}");
    let (_, namespace) = install.split_once("--namespace ").unwrap();
    (documents(&yaml), namespace.split_whitespace().next().unwrap().to_owned())
}

fn installations(page: &str) -> Vec<&str> {
    blocks(page, "sh").into_iter().filter(|block| block.starts_with("helm ")).collect()
}

#[test]
fn the_chart_of_each_page_has_the_service_that_the_manifest_names() {
    for gateway in GATEWAYS {
        let page = text_of(gateway);
        assert!(!installations(&page).is_empty());
        for install in installations(&page) {
            let (objects, installed_in) = rendered(install);
            let (name, namespace, port) = gateway.address(&manifests(gateway));
            assert_eq!(namespace, installed_in, "{gateway:?}");
            let is_named =
                |object: &&Value| object["kind"] == "Service" && object["metadata"]["name"] == name;
            let service = objects.iter().find(is_named).unwrap_or_else(|| panic!("no {name}"));
            let ports = service["spec"]["ports"].as_array().unwrap();
            let grpc = ports.iter().find(|it| it["port"] == port).expect("the port");
            assert_eq!(grpc["name"], "grpc", "{gateway:?}");
            assert_eq!(grpc["appProtocol"], gateway.app_protocol(), "{gateway:?}");
        }
    }
}

/// A sidecar that never ends would keep a Job and the test's pod from ending.
#[test]
fn a_mesh_gives_a_sidecar_to_the_service_and_not_to_the_pods_of_hooks() {
    let page = text_of(Gateway::Istio);
    let install = installations(&page)[1];
    let (objects, _) = rendered(install);
    let pod = |kind: &str, pod: &str| {
        let object = objects.iter().find(|object| object["kind"] == kind).expect(kind);
        object.pointer(pod).unwrap().clone()
    };
    for (kind, path, label) in [
        ("Deployment", "/spec/template/metadata", "true"),
        ("Job", "/spec/template/metadata", "false"),
        ("Pod", "/metadata", "false"),
    ] {
        let metadata = pod(kind, path);
        assert_eq!(metadata["labels"]["sidecar.istio.io/inject"], label, "{kind}");
        let linkerd = &metadata["annotations"]["linkerd.io/inject"];
        assert_eq!(linkerd == "disabled", label == "false", "{kind}: {linkerd}");
    }
}

#[test]
fn the_pages_show_parts_of_the_manifests_and_name_files_that_exist() {
    let unindented = |text: &str| text.lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
    for gateway in GATEWAYS {
        let page = text_of(gateway);
        let manifest = unindented(&example(gateway));
        let shown = blocks(&page, "yaml");
        assert!(!shown.is_empty(), "{gateway:?}");
        for block in shown {
            assert!(manifest.contains(&unindented(block)), "{gateway:?}: {block}");
        }
        let files = page.split(" -f ").skip(1).map(|rest| rest.split_whitespace().next().unwrap());
        for file in files.filter(|file| *file != "-") {
            assert!(root().join(file).exists(), "{gateway:?}: {file}");
        }
    }
}

#[test]
fn every_gateway_asks_for_a_domain_and_a_key_of_the_shipped_rules() {
    for gateway in GATEWAYS {
        let manifests = manifests(gateway);
        let domain = gateway.filter(&manifests)["typed_config"]["domain"].clone();
        let limit = gateway.rate_limit(&gateway.entries(&manifests));
        let key = limit["actions"][0]["request_headers"]["descriptor_key"].as_str().unwrap();
        let mut explain = tollkeeper();
        explain.current_dir(root()).args(["explain", "--rules", "examples/rules.yaml", "--domain"]);
        let (_, output, _) = run(explain.arg(domain.as_str().unwrap()).arg(format!("{key}=alice")));
        assert!(output.contains("matches rule user,"), "{gateway:?}: {output}");
    }
}
