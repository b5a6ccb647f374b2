//! A real Contour on the API server, and an Envoy that it configures.
//!
//! Without controllers, the test itself writes the EndpointSlices of the Services. Their addresses may not be loopback.

use std::net::IpAddr;

use super::ApiServer;
use crate::support::{application::Application, prelude::*, redis_server::free_port};

/// Contour, its Envoy, and the application behind it.
pub struct Contour {
    /// The URL of the gateway.
    pub url: String,
    _processes: [Process; 2],
    _folder: TempDir,
}

/// An address of this machine that a pod could have.
pub fn address_of_machine() -> IpAddr {
    let (_, addresses, _) = run(Command::new("hostname").arg("-I"));
    addresses.split_whitespace().next().expect("an address besides loopback").parse().unwrap()
}

impl Contour {
    /// Applies the manifests, with the ports of this machine in Contour's configuration, and starts Contour and Envoy.
    pub fn start(server: &ApiServer, manifests: &[Value], rls_port: u16) -> Self {
        let folder = TempDir::new().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        install_types(server);
        let namespace = json!({ "metadata": { "name": "projectcontour" } });
        server.ask("POST", "/api/v1/namespaces", Some(&namespace));
        let (xds, public) = (free_port(), free_port());
        for manifest in manifests {
            let mut manifest = manifest.clone();
            if manifest["kind"] == "ContourConfiguration" {
                set_ports(&mut manifest["spec"], xds, public);
            }
            apply(server, &manifest);
        }
        publish(server, "tollkeeper", 8081, rls_port);
        let shop = Application::start_at((address_of_machine(), 0));
        publish(server, "shop", 80, shop.address.port());

        let mut contour = Command::new(tool("contour"));
        contour.args(["serve", "--contour-config-name=contour", "--disable-leader-election"]);
        contour.args(["--kubeconfig", &server.kubeconfig()]);
        let log = |name: &str| fs::File::create(file(name)).unwrap();
        let contour = Process::spawn(contour.stderr(log("contour.log")));

        let (config, resources) = (file("envoy.json"), file("resources"));
        let mut bootstrap = Command::new(tool("contour"));
        bootstrap.args(["bootstrap", &config, "--xds-address", "127.0.0.1"]);
        bootstrap.args(["--xds-port", &xds.to_string(), "--resources-dir", &resources]);
        let (code, _, error) = run(bootstrap.args(["--admin-address", &file("admin")]));
        assert_eq!(code, Some(0), "{error}");
        let mut envoy = Command::new(tool("envoy"));
        envoy.args(["-c", &config, "--service-cluster", "contour", "--service-node", "envoy"]);
        envoy.args(["--concurrency", "1", "--disable-hot-restart", "-l", "error"]);
        let envoy = Process::spawn(envoy.stdout(Stdio::null()).stderr(log("envoy.log")));

        let url = format!("http://127.0.0.1:{public}");
        wait_until("Contour's Envoy forwards requests", || {
            // Without the header, it asks about nothing.
            let mut curl = Command::new("curl");
            curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: shop.example"]);
            let (_, status, _) = run(curl.env("no_proxy", "*").arg(&url));
            status == "200"
        });
        Self { url, _processes: [contour, envoy], _folder: folder }
    }
}

/// The types of Contour's objects.
fn install_types(server: &ApiServer) {
    let types = fs::read_to_string(root().join("target/tools/contour-crds.yaml")).unwrap();
    for definition in documents(&types).iter().filter(|document| !document.is_null()) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        server.ask("POST", path, Some(definition));
        let group = definition["spec"]["group"].as_str().unwrap();
        let version = definition["spec"]["versions"][0]["name"].as_str().unwrap();
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
        eventually(&format!("the type {plural}"), || {
            server.ask("GET", &format!("/apis/{group}/{version}/{plural}"), None)
        });
    }
}

/// Creates an object of Contour's. An unknown field is an error.
fn apply(server: &ApiServer, manifest: &Value) {
    let plural = match manifest["kind"].as_str().unwrap() {
        "ContourConfiguration" => "contourconfigurations",
        "ExtensionService" => "extensionservices",
        "HTTPProxy" => "httpproxies",
        other => panic!("{other}"),
    };
    let api = manifest["apiVersion"].as_str().unwrap();
    let namespace = manifest["metadata"]["namespace"].as_str().unwrap();
    let path = format!("/apis/{api}/namespaces/{namespace}/{plural}?fieldValidation=Strict");
    server.ask("POST", &path, Some(manifest));
}

/// Everything listens on loopback. Envoy takes the client's address from x-forwarded-for, as behind a load balancer.
fn set_ports(spec: &mut Value, xds: u16, public: u16) {
    let listener = |port: u16| json!({ "address": "127.0.0.1", "port": port });
    spec["xdsServer"] = json!({ "address": "127.0.0.1", "port": xds, "tls": { "insecure": true } });
    for name in ["debug", "health", "metrics"] {
        spec[name] = listener(free_port());
    }
    let statistics = listener(free_port());
    spec["envoy"] = json!({
        "http": listener(public), "https": listener(free_port()),
        "health": statistics, "metrics": statistics, "network": { "numTrustedHops": 1 },
    });
}

/// A Service with one endpoint: a port of this machine.
fn publish(server: &ApiServer, name: &str, port: u16, target: u16) {
    let service = json!({
        "metadata": { "name": name },
        "spec": { "ports": [{ "name": "main", "port": port, "targetPort": target }] },
    });
    server.ask("POST", "/api/v1/namespaces/default/services", Some(&service));
    let endpoints = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": [address_of_machine()], "conditions": { "ready": true } }],
        "ports": [{ "name": "main", "port": target, "protocol": "TCP" }],
    });
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    server.ask("POST", path, Some(&endpoints));
}
