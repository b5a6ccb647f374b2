//! The Redis servers that are measured: a single one, and Clusters.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::{
    process::{Process, Result},
    scenarios::Backend,
};

/// Where the single server listens.
pub(crate) struct SingleServer {
    pub(crate) port: u16,
    tls_port: u16,
    socket: PathBuf,
    /// Its certificate, which is its own authority.
    certificate: PathBuf,
}

impl SingleServer {
    /// The flags by which a service finds the store of a backend here.
    pub(crate) fn store(&self, backend: Backend) -> Vec<String> {
        let Self { port, tls_port, socket, certificate } = self;
        match backend {
            Backend::Redis
            | Backend::TonicRedis
            | Backend::RecordingOnRedis
            | Backend::NoSelfAudit
            | Backend::Replicas => store(format!("redis://127.0.0.1:{port}")),
            Backend::UnixSocket => store(format!("redis+unix://{}", socket.display())),
            Backend::Tls => {
                let mut flags = store(format!("rediss://127.0.0.1:{tls_port}"));
                flags.extend(["--store-tls-ca".to_owned(), certificate.display().to_string()]);
                flags
            }
            _ => store("memory://".to_owned()),
        }
    }
}

fn store(url: String) -> Vec<String> {
    vec!["--store".to_owned(), url]
}

/// A server that listens on TCP, with and without TLS, and on a Unix socket.
pub(crate) fn single(folder: &Path) -> Result<(Process, SingleServer)> {
    let names = vec!["127.0.0.1".to_owned()];
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names)?;
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    fs::write(&certificate, cert.pem())?;
    fs::write(&key, signing_key.serialize_pem())?;
    let (tls_port, socket) = (free_port()?, folder.join("redis.sock"));
    let (process, port) = start(folder, |server| {
        server.arg("--unixsocket").arg(&socket);
        server.args(["--tls-port", &tls_port.to_string(), "--tls-auth-clients", "no"]);
        server.arg("--tls-ca-cert-file").arg(&certificate);
        server.arg("--tls-cert-file").arg(&certificate).arg("--tls-key-file").arg(&key);
    })?;
    Ok((process, SingleServer { port, tls_port, socket, certificate }))
}

/// A Cluster of this number of masters, and the flags by which a service finds it.
pub(crate) fn cluster(nodes: usize, folder: &Path) -> Result<(Vec<Process>, Vec<String>)> {
    let (mut processes, mut hosts) = (Vec::new(), Vec::new());
    for node in 0..nodes {
        let folder = folder.join(format!("cluster-{nodes}-{node}"));
        fs::create_dir(&folder)?;
        let bus_port = free_port()?.to_string();
        let (process, port) = start(&folder, |server| {
            server.args(["--cluster-enabled", "yes", "--cluster-port", &bus_port]);
        })?;
        processes.push(process);
        hosts.push(format!("127.0.0.1:{port}"));
    }
    let client = |host: &String| redis::Client::open(format!("redis://{host}"))?.get_connection();
    for (node, host) in hosts.iter().enumerate() {
        let (first, last) = (node * 16_384 / nodes, (node + 1) * 16_384 / nodes - 1);
        let mut add = redis::cmd("CLUSTER");
        add.arg("ADDSLOTSRANGE").arg(first).arg(last).exec(&mut client(host)?)?;
    }
    meet(&hosts)?;
    Ok((processes, store(format!("redis+cluster://{}", hosts.join(",")))))
}

/// Makes the nodes know each other, and waits until all consider the Cluster well.
fn meet(hosts: &[String]) -> Result<()> {
    let began = Instant::now();
    for host in hosts {
        let mut connection = redis::Client::open(format!("redis://{host}"))?.get_connection()?;
        for other in hosts {
            let bus: String = redis::cmd("CONFIG")
                .arg("GET")
                .arg("cluster-port")
                .query::<Vec<String>>(
                    &mut redis::Client::open(format!("redis://{other}"))?.get_connection()?,
                )?
                .pop()
                .ok_or("no cluster-port")?;
            let (ip, port) = other.split_once(':').ok_or("a host without a port")?;
            let mut meet = redis::cmd("CLUSTER");
            meet.arg("MEET").arg(ip).arg(port).arg(bus).exec(&mut connection)?;
        }
        loop {
            let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection)?;
            if info.contains("cluster_state:ok") {
                break;
            }
            if began.elapsed() > Duration::from_secs(20) {
                return Err("the Cluster did not form".into());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts a server, and returns its port. Redis cannot choose a free one. If the port is taken before Redis binds
/// it, Redis ends, which is an error.
fn start(folder: &Path, configure: impl FnOnce(&mut Command)) -> Result<(Process, u16)> {
    let port = free_port()?;
    let mut server = Command::new("redis-server");
    server
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    configure(&mut server);
    let child = server.spawn().map_err(|error| format!("redis-server: {error}"))?;
    let mut process = Process(child);
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let reached = process.wait_until(|| client.get_connection());
    reached.map_err(|error| format!("redis-server: {error}"))?;
    Ok((process, port))
}
