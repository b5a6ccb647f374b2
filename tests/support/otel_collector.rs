//! A real OpenTelemetry Collector, which writes what it has decoded into a file.

use std::fs::File;

use super::prelude::*;

/// A Collector that receives OTLP over gRPC and HTTP.
pub struct OtelCollector {
    /// The addresses for gRPC and for HTTP.
    addresses: [String; 2],
    folder: TempDir,
    process: Option<Process>,
}

impl OtelCollector {
    pub fn start() -> Self {
        let addresses = ["127.0.0.1:0", "127.0.0.1:0"].map(str::to_owned);
        let mut collector = Self { addresses, folder: TempDir::new().unwrap(), process: None };
        collector.start_again();
        collector
    }

    /// The endpoint for a value of `OTEL_EXPORTER_OTLP_PROTOCOL`.
    pub fn endpoint(&self, protocol: &str) -> String {
        let [grpc, http] = &self.addresses;
        format!("http://{}", if protocol == "grpc" { grpc } else { http })
    }

    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Starts it on the addresses that it had.
    pub fn start_again(&mut self) {
        let path = |name: &str| self.folder.path().join(name);
        let ([grpc, http], file) = (&self.addresses, path("received").display().to_string());
        let settings = format!(
            "
receivers:
  otlp: {{ protocols: {{ grpc: {{ endpoint: '{grpc}' }}, http: {{ endpoint: '{http}' }} }} }}
exporters:
  file: {{ path: '{file}', append: true }}
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
        self.process = Some(Process::spawn(&mut command));
        self.addresses = eventually("the collector is ready", || {
            let log = fs::read_to_string(path("log")).unwrap();
            let address = |server: &str| {
                let (_, rest) = log.split_once(server)?.1.split_once("\"endpoint\": \"")?;
                Some(rest.split('"').next().unwrap().to_owned())
            };
            log.contains("Everything is ready").then_some(())?;
            Some([address("Starting GRPC server")?, address("Starting HTTP server")?])
        });
    }

    /// Every span so far, with the attributes of its resource as `resource`.
    pub fn spans(&self) -> Vec<Value> {
        self.items(["resourceSpans", "scopeSpans", "spans"])
    }

    /// Every metric so far, with the attributes of its resource as `resource`.
    pub fn metrics(&self) -> Vec<Value> {
        self.items(["resourceMetrics", "scopeMetrics", "metrics"])
    }

    /// Every log record so far, with the attributes of its resource as `resource`.
    pub fn records(&self) -> Vec<Value> {
        self.items(["resourceLogs", "scopeLogs", "logRecords"])
    }

    fn items(&self, [resources, scopes, items]: [&str; 3]) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("received")).unwrap();
        // The last line may be incomplete.
        let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let mut found = Vec::new();
        // A collector that is stopped may leave an object without the end of its line, and the next one appends to it.
        let objects = complete.lines().flat_map(|line| {
            serde_json::Deserializer::from_str(line).into_iter::<Value>().map_while(Result::ok)
        });
        for line in objects {
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
