//! The processes that are measured. They belong to one run, and end with it.

use std::{collections::BTreeMap, env, fs, path::Path, process::Command};

use tempfile::TempDir;

use crate::{
    process::{Process, Result, Service},
    ratelimit,
    scenarios::{Backend, Scenario, rules},
    servers,
};

/// The processes of all backends of a run.
pub(crate) struct Backends {
    services: BTreeMap<Backend, Service>,
    /// Of [`Backend::Replicas`]; the first one is in `services`.
    second_replica: Option<Service>,
    pub(crate) redis: Process,
    pub(crate) redis_port: u16,
    clusters: BTreeMap<Backend, Vec<Process>>,
    _folder: TempDir,
}

impl Backends {
    /// Starts all of these scenarios; `ratelimit` is the program of envoyproxy/ratelimit.
    pub(crate) fn start(scenarios: &[&Scenario], ratelimit: Option<&Path>) -> Result<Self> {
        let folder = TempDir::new()?;
        let (redis, server) = servers::single(folder.path())?;
        let (mut services, mut clusters) = (BTreeMap::new(), BTreeMap::new());
        for backend in scenarios.iter().flat_map(|scenario| scenario.backends) {
            if services.contains_key(backend) {
                continue;
            }
            let store = match cluster_size(*backend) {
                Some(nodes) => {
                    let (nodes, store) = servers::cluster(nodes, folder.path())?;
                    clusters.insert(*backend, nodes);
                    store
                }
                None => server.store(*backend),
            };
            if let (Backend::Ratelimit | Backend::TunedRatelimit, Some(program)) =
                (*backend, ratelimit)
            {
                let service = ratelimit::start(program, *backend, folder.path(), server.port)?;
                services.insert(*backend, service);
                continue;
            }
            if let Some(command) = command(*backend, &folder, &store)? {
                services.insert(*backend, Service::start(command)?);
            }
        }
        let second_replica = if services.contains_key(&Backend::Replicas) {
            let store = server.store(Backend::Replicas);
            command(Backend::Replicas, &folder, &store)?.map(Service::start).transpose()?
        } else {
            None
        };
        let redis_port = server.port;
        Ok(Self { services, second_replica, redis, redis_port, clusters, _folder: folder })
    }

    /// The Redis servers that a backend's service asks.
    pub(crate) fn redis_of(&self, backend: Backend) -> Vec<&Process> {
        match backend {
            Backend::Redis
            | Backend::UnixSocket
            | Backend::Tls
            | Backend::TonicRedis
            | Backend::RecordingOnRedis
            | Backend::NoSelfAudit
            | Backend::Ratelimit
            | Backend::TunedRatelimit => vec![&self.redis],
            _ => self.clusters.get(&backend).into_iter().flatten().collect(),
        }
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

/// Number of nodes of the backend's Cluster.
const fn cluster_size(backend: Backend) -> Option<usize> {
    match backend {
        Backend::ClusterOfOne => Some(1),
        Backend::ClusterOfThree => Some(3),
        Backend::ClusterOfSix => Some(6),
        _ => None,
    }
}

/// How the service of a backend is started on its store; `None` for Redis itself.
fn command(backend: Backend, folder: &TempDir, store: &[String]) -> Result<Option<Command>> {
    let command = match backend {
        Backend::Empty => itself(&["--serve", "empty"])?,
        Backend::EmptyOnWorkers => itself(&["--serve", "empty-on-workers"])?,
        Backend::TonicMemory | Backend::TonicRedis => {
            with_store(itself(&["--serve", "tonic"])?, folder, 0, store)?
        }
        Backend::Memory
        | Backend::Unsampled
        | Backend::OneInHundred
        | Backend::NoTopKeys
        | Backend::Recording
        | Backend::RecordingOnRedis
        | Backend::WithCandidate
        | Backend::NoSelfAudit
        | Backend::Redis
        | Backend::UnixSocket
        | Backend::Tls
        | Backend::ClusterOfOne
        | Backend::ClusterOfThree
        | Backend::ClusterOfSix
        | Backend::Replicas => with_store(tollkeeper(), folder, 0, store)?,
        Backend::FewRules => with_store(tollkeeper(), folder, 10, store)?,
        Backend::ManyRules => with_store(tollkeeper(), folder, 10_000, store)?,
        Backend::Pairs | Backend::Script | Backend::Ratelimit | Backend::TunedRatelimit => {
            return Ok(None);
        }
    };
    let mut command = without_settings(command);
    match backend {
        Backend::Unsampled => export_traces(&mut command, "0"),
        Backend::OneInHundred => export_traces(&mut command, "0.01"),
        Backend::NoTopKeys => drop(command.args(["--top-keys", "off"])),
        Backend::Recording | Backend::RecordingOnRedis => {
            command.arg("--record").arg(folder.path().join("calls"));
        }
        Backend::WithCandidate => {
            // Of another path, the same rules are another version.
            let candidate = folder.path().join("candidate.yaml");
            fs::write(&candidate, rules(0))?;
            command.arg("--candidate").arg(candidate);
        }
        Backend::NoSelfAudit => drop(command.args(["--audit-one-in", "0"])),
        _ => {}
    }
    Ok(Some(command))
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
    store: &[String],
) -> Result<Command> {
    let file = folder.path().join(format!("{paths}.yaml"));
    fs::write(&file, rules(paths))?;
    command.args(store).arg("--rules").arg(file);
    Ok(command)
}

/// Lets a service export the traces of this part of its calls, to a collector that is down.
fn export_traces(command: &mut Command, ratio: &str) {
    command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9");
    command.env("OTEL_TRACES_SAMPLER", "traceidratio").env("OTEL_TRACES_SAMPLER_ARG", ratio);
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
