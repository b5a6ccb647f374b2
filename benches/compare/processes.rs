//! The processes that are measured. They belong to one run, and end with it.

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

/// The processes of all backends of a run.
pub(crate) struct Backends {
    services: BTreeMap<Backend, Service>,
    /// Of [`Backend::Replicas`]; the first one is in `services`.
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

/// A process that is killed when this is dropped.
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

impl Backends {
    pub(crate) fn start(scenarios: &[&Scenario]) -> Result<Self> {
        let folder = TempDir::new()?;
        let (redis, redis_port) = start_redis(&folder)?;
        let mut services = BTreeMap::new();
        for backend in scenarios.iter().flat_map(|scenario| scenario.backends) {
            if !services.contains_key(backend)
                && let Some(command) = command(*backend, &folder, redis_port)?
            {
                services.insert(*backend, Service::start(command)?);
            }
        }
        let second_replica = if services.contains_key(&Backend::Replicas) {
            command(Backend::Replicas, &folder, redis_port)?.map(Service::start).transpose()?
        } else {
            None
        };
        Ok(Self { services, second_replica, redis, redis_port, _folder: folder })
    }

    /// Both services of [`Backend::Replicas`].
    pub(crate) fn replicas(&self) -> Vec<&Service> {
        self.service(Backend::Replicas).into_iter().chain(&self.second_replica).collect()
    }

    /// The service of this backend, unless it is Redis itself.
    pub(crate) fn service(&self, backend: Backend) -> Option<&Service> {
        self.services.get(&backend)
    }
}

impl Service {
    /// Starts it, and waits for the line with its address.
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

/// How the service of a backend is started; `None` for Redis itself.
fn command(backend: Backend, folder: &TempDir, redis_port: u16) -> Result<Option<Command>> {
    let redis = format!("redis://127.0.0.1:{redis_port}");
    let command = match backend {
        Backend::Empty => itself(&["--serve", "empty"])?,
        Backend::EmptyOnWorkers => itself(&["--serve", "empty-on-workers"])?,
        Backend::TonicMemory => with_store(itself(&["--serve", "tonic"])?, folder, 0, "memory://")?,
        Backend::TonicRedis => with_store(itself(&["--serve", "tonic"])?, folder, 0, &redis)?,
        Backend::Memory => with_store(tollkeeper(), folder, 0, "memory://")?,
        Backend::Redis | Backend::Replicas => with_store(tollkeeper(), folder, 0, &redis)?,
        Backend::FewRules => with_store(tollkeeper(), folder, 10, "memory://")?,
        Backend::ManyRules => with_store(tollkeeper(), folder, 10_000, "memory://")?,
        Backend::Pairs | Backend::Script => return Ok(None),
    };
    Ok(Some(without_settings(command)))
}

fn itself(flags: &[&str]) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(flags);
    Ok(command)
}

fn tollkeeper() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollkeeper"));
    command.args(["serve", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"]);
    command.args(["--admin-addr", "off", "--log-level", "error"]);
    command
}

/// Gives a service its store, and rules with `paths` values of one key.
fn with_store(
    mut command: Command,
    folder: &TempDir,
    paths: usize,
    store: &str,
) -> Result<Command> {
    let file = folder.path().join(format!("{paths}.yaml"));
    fs::write(&file, rules(paths))?;
    command.args(["--store", store, "--rules"]).arg(file);
    Ok(command)
}

#[expect(
    clippy::disallowed_methods,
    reason = "settings in the environment must not reach the service"
)]
fn without_settings(mut command: Command) -> Command {
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("TOLLKEEPER_") || name.starts_with("OTEL_") {
            command.env_remove(&*name);
        }
    }
    command
}

/// Redis cannot choose a free port. If the port is taken before Redis binds it, Redis ends, which is an
/// error.
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
