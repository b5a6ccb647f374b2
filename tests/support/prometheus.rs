//! A real Prometheus, which scrapes real services and evaluates alerts.

use super::prelude::*;

/// A running Prometheus.
pub struct Prometheus {
    address: String,
    _process: Process,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it with these jobs of `scrape_configs`, as YAML list items, and this file of rules. It scrapes and
    /// evaluates every second.
    pub fn start(jobs: &str, rules: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("rules.yaml"), rules).unwrap();
        let every = "{ scrape_interval: 1s, evaluation_interval: 1s }";
        let settings =
            format!("global: {every}\nrule_files: [rules.yaml]\nscrape_configs:\n{jobs}");
        fs::write(path("prometheus.yaml"), settings).unwrap();
        let log = fs::File::create(path("log")).unwrap();
        let mut command = Command::new(tool("prometheus"));
        command.arg("--config.file").arg(path("prometheus.yaml"));
        command.arg("--storage.tsdb.path").arg(path("data"));
        command.arg("--web.listen-address=127.0.0.1:0");
        let process = Process::spawn(command.stdout(Stdio::null()).stderr(log));
        let address = eventually("Prometheus is ready", || {
            let log = fs::read_to_string(path("log")).unwrap();
            let (_, rest) = log.split_once("msg=\"Listening on\" address=")?;
            let ready = log.contains("Server is ready to receive web requests");
            ready.then(|| rest.lines().next().unwrap().to_owned())
        });
        Self { address, _process: process, _folder: folder }
    }

    /// The result of a query now: a list of series with their values.
    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("query", expression);
        let data = self.get(&format!("query?{}", query.finish()));
        data["result"].as_array().unwrap_or_else(|| panic!("{expression}: {data}")).clone()
    }

    /// The first alert of this name that fires.
    pub fn firing(&self, name: &str) -> Option<Value> {
        let alerts = self.get("alerts")["alerts"].as_array().unwrap().clone();
        alerts
            .into_iter()
            .find(|alert| alert["labels"]["alertname"] == name && alert["state"] == "firing")
    }

    /// The rules of all groups, with the outcome of their last evaluation.
    pub fn rules(&self) -> Vec<Value> {
        let groups = self.get("rules")["groups"].as_array().unwrap().clone();
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }

    /// The data of an answer of the HTTP API.
    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        // An answer by HTTP/1.0 is not in chunks.
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let mut answer: Value =
            serde_json::from_str(body).unwrap_or_else(|_| panic!("{path}: {answer}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].take()
    }
}
