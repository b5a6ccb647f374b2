//! A real OpenTelemetry Collector, which writes what it has decoded into a file.

use std::fs::File;

use super::prelude::*;

/// A Collector that receives OTLP over gRPC and HTTP.
pub struct OtelCollector {
    /// The addresses for gRPC and for HTTP.
    addresses: [String; 2],
    folder: TempDir,
    _process: Process,
}

impl OtelCollector {
    pub fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let file = path("received").display().to_string();
        let settings = format!(
            "
receivers:
  otlp: {{ protocols: {{ grpc: {{ endpoint: '127.0.0.1:0' }}, http: {{ endpoint: '127.0.0.1:0' }} }} }}
exporters:
  file: {{ path: '{file}' }}
service:
  telemetry: {{ metrics: {{ level: none }} }}
  pipelines:
    traces: {{ receivers: [otlp], exporters: [file] }}
    metrics: {{ receivers: [otlp], exporters: [file] }}
    logs: {{ receivers: [otlp], exporters: [file] }}
"
        );
        fs::write(path("settings.yaml"), settings).unwrap();
        let log = File::create(path("log")).unwrap();
        let mut command = Command::new(tool("otel-collector"));
        command.arg("--config").arg(path("settings.yaml")).stdout(Stdio::null()).stderr(log);
        let process = Process::spawn(&mut command);
        let addresses = eventually("the collector is ready", || {
            let log = fs::read_to_string(path("log")).unwrap();
            let address = |server: &str| {
                let (_, rest) = log.split_once(server)?.1.split_once("\"endpoint\": \"")?;
                Some(rest.split('"').next().unwrap().to_owned())
            };
            log.contains("Everything is ready").then_some(())?;
            Some([address("Starting GRPC server")?, address("Starting HTTP server")?])
        });
        Self { addresses, folder, _process: process }
    }

    /// The endpoint for a value of `OTEL_EXPORTER_OTLP_PROTOCOL`.
    pub fn endpoint(&self, protocol: &str) -> String {
        let [grpc, http] = &self.addresses;
        format!("http://{}", if protocol == "grpc" { grpc } else { http })
    }

    /// Every span, metric or log record so far, by the names of its lists, with the attributes of its resource as `resource`.
    pub fn items(&self, [resources, scopes, items]: [&str; 3]) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("received")).unwrap();
        let mut found = Vec::new();
        // The last line may be incomplete.
        let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        for line in complete.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            for resource in list(&line, resources) {
                for scope in list(resource, scopes) {
                    for item in list(scope, items) {
                        let mut item = item.clone();
                        item["resource"] = resource["resource"]["attributes"].clone();
                        found.push(item);
                    }
                }
            }
        }
        found
    }
}

/// The items of a list, which JSON leaves out if it is empty.
fn list<'json>(object: &'json Value, name: &str) -> impl Iterator<Item = &'json Value> {
    object[name].as_array().into_iter().flatten()
}

/// The value of a text attribute.
pub fn text_attribute<'json>(attributes: &'json Value, name: &str) -> &'json str {
    let found = attributes.as_array().unwrap().iter().find(|attribute| attribute["key"] == name);
    let value = found.and_then(|attribute| attribute["value"]["stringValue"].as_str());
    value.unwrap_or_else(|| panic!("no text {name} in {attributes}"))
}
