//! A real tollkeeper, started as its users start it.

use prost_types::{Struct, value::Kind};
use tempfile::NamedTempFile;
use tollkeeper_proto::{Entry, RateLimitOverride, rate_limit_response::DescriptorStatus};
use tonic::Status;

use super::{calls::descriptors, fake_clock, note, prelude::*};

/// A running service.
pub struct Service {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub admin: SocketAddr,
    /// Its rule file, if it was started with rules.
    pub rules: PathBuf,
    process: Process,
    /// Its standard error: what it logged before it answered a request can be read after the answer.
    log: NamedTempFile,
    folder: TempDir,
}

fn read(log: &NamedTempFile) -> String {
    String::from_utf8(std::fs::read(log).unwrap()).unwrap()
}

/// Options for starting a service.
pub struct Options<'a> {
    pub rules: &'a str,
    pub store: &'a str,
    pub flags: &'a [&'a str],
    pub environment: &'a [(&'a str, &'a str)],
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { rules: RULES, store: "memory://", flags: &[], environment: &[] }
    }
}

/// Rules that most tests share. Their windows are so long that no window ends during a test.
pub const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: user
    value: two
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: tokens
    rate_limit: { unit: year, requests_per_unit: 1000, count_denied: true }
  - key: work
    rate_limit: { unit: year, requests_per_unit: 1000 }
  - key: tenant
    rate_limit: { unit: month, requests_per_unit: 1000 }
  - key: free
    rate_limit: { unlimited: true }
  - key: user
    value: white
";

impl<'a> Options<'a> {
    pub fn on(self, store: &'a str) -> Self {
        Self { store, ..self }
    }

    pub fn flags(self, flags: &'a [&'a str]) -> Self {
        Self { flags, ..self }
    }

    pub fn environment(self, environment: &'a [(&'a str, &'a str)]) -> Self {
        Self { environment, ..self }
    }

    #[track_caller]
    pub fn start(self) -> Service {
        Service::start(self)
    }

    /// Starts it on a Redis of its own.
    #[track_caller]
    pub fn on_redis(self) -> (Redis, Service) {
        let redis = Redis::start();
        let service = self.on(&redis.url()).start();
        (redis, service)
    }

    /// Starts it, and waits until it is ready.
    #[track_caller]
    pub fn ready(self) -> Service {
        let service = self.start();
        service.wait_until_ready();
        service
    }
}

impl Service {
    /// Options for a service with these rules, whose store is memory unless they name another.
    pub fn with(rules: &str) -> Options<'_> {
        Options { rules, ..Options::default() }
    }

    /// Options for a service with [`RULES`].
    pub fn shop() -> Options<'static> {
        Options::default()
    }

    pub fn start(options: Options<'_>) -> Self {
        Self::start_with(serve(), options)
    }

    pub fn start_with(mut command: Command, options: Options<'_>) -> Self {
        let folder = TempDir::new().unwrap();
        let rules = folder.path().join("rules.yaml");
        std::fs::write(&rules, options.rules).unwrap();
        command
            // A test machine may be slow, and no test depends on speed.
            .args(["--store", options.store, "--decision-budget", "10s", "--drain", "0s"])
            .arg("--rules")
            .arg(&rules)
            .args(options.flags)
            // It would add keys to one test in a thousand.
            .env("TOLLKEEPER_AUDIT_ONE_IN", "0")
            .envs(options.environment.iter().copied());
        Self::spawn(command, folder)
    }

    pub fn spawn(mut command: Command, folder: TempDir) -> Self {
        let rules = folder.path().join("rules.yaml");
        let log = NamedTempFile::new().unwrap();
        command.stdout(Stdio::null()).stderr(log.reopen().unwrap());
        let process = Process::spawn(&mut command);
        let addresses = eventually("the service listens", || {
            let text = read(&log);
            let (_, rest) = text.split_once("listening: grpc ")?;
            let (grpc, rest) = rest.split_once(", http ")?;
            let (http, rest) = rest.split_once(", admin ")?;
            let admin: String =
                rest.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect();
            Some((grpc.parse().ok()?, http.parse().ok()?, admin.parse().ok()?))
        });
        let (grpc, http, admin) = addresses;
        Self { grpc, http, admin, rules, process, log, folder }
    }

    /// The log so far.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// Waits until the log contains this text.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        wait_until(text, || self.log().contains(text));
    }

    /// Waits until `/metrics` contains this text.
    #[track_caller]
    pub fn wait_for_metric(&self, text: &str) {
        wait_until(text, || self.get("/metrics").contains(text));
    }

    /// The warnings so far, apart from those that the machine has no processor for it.
    pub fn warnings(&self) -> Vec<String> {
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains("WARN"));
        lines.filter(|line| !line.contains("was without CPU")).map(str::to_owned).collect()
    }

    /// For a service that is never dropped: its files are removed with the end of the test binary.
    pub fn is_shared(&self) {
        note("made", self.folder.path().display());
        note("made", self.log.path().display());
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends it by SIGTERM, as its operator does.
    #[track_caller]
    pub fn end(&mut self) {
        self.process.signal("TERM");
        assert!(self.process.0.wait().unwrap().success(), "{}", self.log());
    }

    /// A connection to the gRPC address.
    pub async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        endpoint.connect().await.unwrap()
    }

    pub async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await).max_encoding_message_size(64 << 20)
    }

    pub async fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        Ok(self.client().await.should_rate_limit(request).await?.into_inner())
    }

    /// The answer to a [`shop`] call as text, or the code of its error.
    pub async fn answer(&self, call: &str) -> String {
        match self.ask(shop(call)).await {
            Ok(answer) => spell(&answer),
            Err(status) => format!("{:?}", status.code()),
        }
    }

    /// Repeats a [`shop`] call until the store is available, and returns the answer.
    pub async fn answered(&self, call: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.answer(call).await;
            if answer != "Unavailable" {
                return answer;
            }
            assert!(Instant::now() < deadline, "{call}: {}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// One plain HTTP exchange: status, head and body.
    pub fn exchange(&self, method: &str, path: &str, body: &[u8]) -> (u16, String, String) {
        self.exchange_at(self.http, method, path, body)
    }

    /// Like [`exchange`](Self::exchange), with another of the service's addresses.
    pub fn exchange_at(
        &self,
        address: SocketAddr,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> (u16, String, String) {
        exchange(address, method, path, body)
    }

    pub fn get(&self, path: &str) -> String {
        self.exchange("GET", path, b"").2
    }

    /// Posts JSON to a path of the public address, and returns the JSON that it answers with 200.
    #[track_caller]
    pub fn post(&self, path: &str, body: impl ToString) -> Value {
        let (status, head, answer) = self.exchange("POST", path, body.to_string().as_bytes());
        assert_eq!(status, 200, "{head}{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// Sends a request to the admin address, and returns the status and the JSON of the answer, or its text.
    pub fn admin(&self, method: &str, path: &str) -> (u16, Value) {
        let (status, _, body) = self.exchange_at(self.admin, method, path, b"");
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// The counter of a descriptor such as `user=a`, as the admin address shows it once its store answers.
    #[track_caller]
    pub fn counter(&self, domain: &str, descriptor: &str) -> Value {
        let descriptor = descriptor.replace('%', "%25").replace(' ', "%20").replace('=', "%3D");
        let path = format!("/counters?domain={domain}&descriptor={descriptor}");
        eventually("the counter is shown", || {
            let counter = self.admin("GET", &path).1["counters"][0].take();
            counter["used"].is_u64().then_some(counter)
        })
    }

    /// The sum of the series on `/metrics` that begin with this text.
    pub fn metric(&self, begin: &str) -> f64 {
        self.metric_with(begin, &[])
    }

    /// The same of those that contain all of these texts, too.
    pub fn metric_with(&self, begin: &str, texts: &[&str]) -> f64 {
        let metrics = self.get("/metrics");
        let is_asked_for =
            |line: &&str| line.starts_with(begin) && texts.iter().all(|text| line.contains(text));
        let values = metrics.lines().filter(is_asked_for).filter_map(|line| line.rsplit_once(' '));
        values.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
    }

    /// Checks that `/metrics` contains this text.
    #[track_caller]
    pub fn assert_metric(&self, text: &str) {
        let metrics = self.get("/metrics");
        assert!(metrics.contains(text), "{text}: {metrics}");
    }

    /// Replaces the rule file, and returns when the new rules are in force.
    #[track_caller]
    pub fn reload(&self, rules: &str) {
        self.reload_at(&self.rules, rules);
    }

    /// Like [`reload`](Self::reload), of one of several files.
    #[track_caller]
    pub fn reload_at(&self, file: &Path, rules: &str) {
        let before = self.rules_version();
        std::fs::write(file, rules).unwrap();
        wait_until("the new rules are in force", || self.rules_version() != before);
    }

    fn rules_version(&self) -> Value {
        let rules: Value = serde_json::from_str(&self.get("/rules")).unwrap();
        rules["version"].clone()
    }

    #[track_caller]
    pub fn wait_until_ready(&self) {
        wait_until("ready", || self.exchange("GET", "/readyz", b"").0 == 200);
    }
}

/// One plain HTTP exchange: status, head and body.
pub fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &[u8],
) -> (u16, String, String) {
    exchange_with(address, method, path, &[], body)
}

/// Like [`exchange`], with further headers.
pub fn exchange_with(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n"
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    // A server that refuses may close before it has read everything.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or(0), head.to_lowercase(), body.to_owned())
}

/// Number of open files of a process.
pub fn open_files(process_id: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process_id}/fd")).unwrap().count()
}

/// How long a process has waited for a CPU, by its thread that waited longest: what a busy machine adds to its times.
pub fn waited_for_cpu(process_id: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process_id}/task")).unwrap();
    let waited = threads.filter_map(|thread| {
        let times = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        times.split(' ').nth(1)?.parse().ok()
    });
    Duration::from_nanos(waited.max().unwrap_or_default())
}

/// The service, on ports of its own.
pub fn serve() -> Command {
    serve_by(tollkeeper())
}

pub fn serve_by(mut command: Command) -> Command {
    command.arg("serve");
    for flag in ["--grpc-addr", "--http-addr", "--admin-addr"] {
        command.args([flag, "127.0.0.1:0"]);
    }
    command
}

/// The binary, without settings from the environment of the tests.
pub fn tollkeeper() -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_tollkeeper")))
}

/// Another build of the binary, in the same way.
pub fn command_of(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let is_of_ci = ["GITHUB_ACTIONS", "NO_COLOR"].contains(&&*name);
        if name.starts_with("TOLLKEEPER_") || name.starts_with("OTEL_") || is_of_ci {
            command.env_remove(&*name);
        }
    }
    command
}

pub fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}

/// A call of the domain `shop`, as text ([`descriptors`]).
pub fn shop(call: &str) -> RateLimitRequest {
    request("shop", descriptors(call))
}

pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries: Vec<_> = entries.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes())).collect();
    of_bytes(&entries)
}

pub fn of_bytes(entries: &[(&[u8], &[u8])]) -> RateLimitDescriptor {
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

fn entry((key, value): &(&[u8], &[u8])) -> Entry {
    Entry { key: key.to_vec().into(), value: value.to_vec().into() }
}

pub fn hits(mut descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    descriptor.hits_addend = Some(hits);
    descriptor
}

pub fn refund(descriptor: RateLimitDescriptor, count: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..hits(descriptor, count) }
}

pub fn with_limit(
    mut descriptor: RateLimitDescriptor,
    requests_per_unit: u32,
    unit: RateLimitUnit,
) -> RateLimitDescriptor {
    let unit = unit.into();
    descriptor.limit = Some(RateLimitOverride { requests_per_unit, unit, unit_multiplier: None });
    descriptor
}

/// An answer as text: the overall code, then the code and the remaining hits of each descriptor.
///
/// `OK: OK 9/10 YEAR, OK -`: the first descriptor has 9 of 10 hits a year left, the second has no limit.
pub fn spell(response: &RateLimitResponse) -> String {
    let statuses: Vec<_> = response.statuses.iter().map(spell_status).collect();
    format!("{}: {}", response.overall_code().as_str_name(), statuses.join(", "))
}

/// Metadata as JSON.
pub fn json_of(tree: &Struct) -> Value {
    tree.fields.iter().map(|(name, value)| (name.clone(), json_of_value(value))).collect()
}

fn json_of_value(value: &prost_types::Value) -> Value {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => Value::Null,
        Kind::NumberValue(number) if number.fract() == 0.0 => json!(*number as i64),
        Kind::NumberValue(number) => json!(number),
        Kind::StringValue(text) => json!(text),
        Kind::BoolValue(boolean) => json!(boolean),
        Kind::StructValue(tree) => json_of(tree),
        Kind::ListValue(list) => list.values.iter().map(json_of_value).collect(),
    }
}

/// A text of an answer's metadata, such as the token of a hold.
pub fn metadata(answer: &RateLimitResponse, name: &str) -> Option<String> {
    match answer.dynamic_metadata.as_ref()?.fields.get(name)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

fn spell_status(status: &DescriptorStatus) -> String {
    let code = status.code().as_str_name();
    let left = status.limit_remaining;
    match &status.current_limit {
        Some(limit) => {
            let reset = status.duration_until_reset.expect("a limit has a reset");
            assert!(reset.seconds >= 1 && reset.nanos == 0, "reset {reset:?}");
            format!("{code} {left}/{} {}", limit.requests_per_unit, limit.unit().as_str_name())
        }
        None if left == u32::MAX => format!("{code} unlimited"),
        None => format!("{code} -"),
    }
}

pub fn service_off_by(seconds: &str, rules: &str, redis: &Redis) -> Service {
    service_at(seconds, rules, &redis.url(), &[])
}

pub fn service_at(clock: &str, rules: &str, store: &str, environment: &[(&str, &str)]) -> Service {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, rules).unwrap();
    let mut command = serve();
    command.args(["--store", store, "--decision-budget", "10s", "--rules"]).arg(&file);
    fake_clock(&mut command).env("FAKETIME", clock).envs(environment.iter().copied());
    Service::spawn(command, folder)
}
