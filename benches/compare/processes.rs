//! The processes that are measured: private to the run, and gone with it.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    Result,
    scenarios::{Backend, Scenario, rules},
};

/// Everything that the scenarios need.
pub(crate) struct Subjects {
    services: BTreeMap<Backend, Service>,
    /// Besides the one among the others.
    second_replica: Option<Service>,
    pub(crate) redis: Process,
    pub(crate) redis_port: u16,
    _folder: TempDir,
}

/// A gRPC service under test.
pub(crate) struct Service {
    pub(crate) addr: String,
    pub(crate) process: Process,
}

/// A process that ends with this.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Subjects {
    pub(crate) fn start(scenarios: &[&Scenario]) -> Result<Self> {
        let folder = TempDir::new()?;
        let (redis, redis_port) = start_redis(&folder)?;
        let mut services = BTreeMap::new();
        for backend in scenarios.iter().flat_map(|it| it.backends) {
            if !services.contains_key(backend) {
                let command = match backend {
                    Backend::Empty => empty_handler()?,
                    Backend::Memory => tollkeeper(&folder, 0, "memory://")?,
                    Backend::Redis | Backend::Replicas => {
                        tollkeeper(&folder, 0, &format!("redis://127.0.0.1:{redis_port}"))?
                    }
                    Backend::FewRules => tollkeeper(&folder, 10, "memory://")?,
                    Backend::ManyRules => tollkeeper(&folder, 10_000, "memory://")?,
                    Backend::Pairs | Backend::Script => continue,
                };
                services.insert(*backend, Service::start(command)?);
            }
        }
        let second_replica = match services.contains_key(&Backend::Replicas) {
            true => Some(Service::start(tollkeeper(
                &folder,
                0,
                &format!("redis://127.0.0.1:{redis_port}"),
            )?)?),
            false => None,
        };
        Ok(Self { services, second_replica, redis, redis_port, _folder: folder })
    }

    /// All that share Redis for the backend of that name.
    pub(crate) fn replicas(&self) -> Vec<&Service> {
        self.service(Backend::Replicas).into_iter().chain(&self.second_replica).collect()
    }

    /// The service of this backend; Redis itself is none.
    pub(crate) fn service(&self, backend: Backend) -> Option<&Service> {
        self.services.get(&backend)
    }
}

impl Service {
    /// Starts it, and waits for the line that tells where it listens.
    fn start(mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut process = Process(child.map_err(|error| format!("{command:?}: {error}"))?);
        let mut line = String::new();
        let stdout = process.0.stdout.take().ok_or("a process without stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let addr = line.split_once("ready: grpc ").and_then(|(_, rest)| rest.split_once(','));
        let (addr, _) = addr.ok_or_else(|| format!("{command:?} did not start: {line}"))?;
        Ok(Self { addr: addr.to_owned(), process })
    }
}

fn empty_handler() -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("--empty-handler");
    Ok(command)
}

#[expect(
    clippy::disallowed_methods,
    reason = "what the environment sets must not reach the service"
)]
fn tollkeeper(folder: &TempDir, paths: usize, store: &str) -> Result<Command> {
    let file = folder.path().join(format!("{paths}.yaml"));
    fs::write(&file, rules(paths))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollkeeper"));
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("TOLLKEEPER_") || name.starts_with("OTEL_") {
            command.env_remove(&*name);
        }
    }
    command.args(["serve", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"]);
    command.args(["--admin-addr", "off", "--log-level", "error", "--store", store, "--rules"]);
    command.arg(file);
    Ok(command)
}

/// Redis cannot bind port 0 and tell; if someone takes the port in between, it ends and we say so.
fn start_redis(folder: &TempDir) -> Result<(Process, u16)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir"])
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut process = Process(child.map_err(|error| format!("redis-server: {error}"))?);
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let began = Instant::now();
    loop {
        if let Some(ended) = process.0.try_wait()? {
            return Err(format!("redis-server ended with {ended}").into());
        }
        match client.get_connection() {
            Ok(_) => return Ok((process, port)),
            Err(error) if began.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}
