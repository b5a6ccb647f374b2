//! envoyproxy/ratelimit, on the Redis of the others and with their rules.

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    process::{Process, Result, Service},
    scenarios::{Backend, rules},
    servers::free_port,
};

/// Starts a program of it in this folder, and waits until it accepts connections.
pub(crate) fn start(
    program: &Path,
    backend: Backend,
    folder: &Path,
    redis_port: u16,
) -> Result<Service> {
    let configuration = folder.join("ratelimit/config");
    fs::create_dir_all(&configuration)?;
    fs::write(configuration.join("rules.yaml"), rules(0))?;
    let addr = format!("127.0.0.1:{}", free_port()?);
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("GRPC_HOST", "127.0.0.1").env("GRPC_PORT", &addr["127.0.0.1:".len()..]);
    for listener in ["", "DEBUG_"] {
        command.env(format!("{listener}HOST"), "127.0.0.1");
        command.env(format!("{listener}PORT"), free_port()?.to_string());
    }
    command.env("RUNTIME_ROOT", folder).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    command.env("RUNTIME_WATCH_ROOT", "false");
    // Its metrics and log lines would only cost it time; tollkeeper counts as usual.
    command.env("DISABLE_STATS", "true").env("LOG_LEVEL", "error");
    command.env("REDIS_SOCKET_TYPE", "tcp").env("REDIS_URL", format!("127.0.0.1:{redis_port}"));
    if backend == Backend::TunedRatelimit {
        command.env("REDIS_PIPELINE_WINDOW", "150us").env("LOCAL_CACHE_SIZE_IN_BYTES", "10485760");
    }
    let child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    let mut process = Process(child);
    let reached = process.wait_until(|| TcpStream::connect(&addr));
    reached.map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(Service { addr, process })
}
