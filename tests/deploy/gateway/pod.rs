//! The pod of the Deployment `envoy-ratelimit` as a process: the command and the variables that Envoy Gateway writes into it.

use super::deployment;
use crate::support::{prelude::*, service::exchange};

/// The port of the Deployment's probes.
pub const HTTP: u16 = 8080;
/// The port of `/rlconfig`, which `egctl config envoy-ratelimit` reads.
pub const DEBUG: u16 = 6070;

/// What differs outside of a cluster, where no name is known and one host has all ports. The service may be slow here.
const OVERRIDES: [(&str, &str); 6] = [
    ("CONFIG_GRPC_XDS_SERVER_URL", "127.0.0.1:18001"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
    // Envoy Gateway itself has 8081 and 19001.
    ("GRPC_PORT", "0"),
    ("PROMETHEUS_ADDR", ":0"),
    ("TOLLKEEPER_DECISION_BUDGET", "10s"),
    ("TOLLKEEPER_DRAIN", "0s"),
];

pub struct Pod {
    pub grpc: SocketAddr,
    pub metrics: SocketAddr,
    /// The container of the Deployment.
    pub container: Value,
    /// What the pod has as `/certs`.
    certificates: PathBuf,
    _process: Process,
    folder: TempDir,
}

impl Pod {
    pub fn start(certificates: &Path, redis: &Redis) -> Self {
        let folder = TempDir::new().unwrap();
        let deployment = deployment();
        let container = deployment["spec"]["template"]["spec"]["containers"][0].clone();
        assert_eq!(container["command"], serde_json::json!(["/bin/ratelimit"]));
        assert_eq!(container["args"], Value::Null);
        fs::create_dir(folder.path().join("bin")).unwrap();
        let program = folder.path().join("bin/ratelimit");
        symlink(env!("CARGO_BIN_EXE_tollkeeper"), &program).unwrap();
        let mut command = Command::new(program);
        command.env_clear();
        for variable in container["env"].as_array().unwrap() {
            let value = variable["value"].as_str().unwrap();
            let value = value.replace("/certs/", &format!("{}/", certificates.display()));
            command.env(variable["name"].as_str().unwrap(), value);
        }
        command.env("REDIS_URL", format!("127.0.0.1:{}", redis.port)).envs(OVERRIDES);
        let log = folder.path().join("log");
        command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let process = Process::spawn(&mut command);
        let line = eventually("the service listens", || {
            let text = fs::read_to_string(&log).unwrap();
            let (_, rest) = text.split_once("listening:")?;
            rest.split_once('\n').map(|(line, _)| line.to_owned())
        });
        Self {
            grpc: address(&line, "grpc"),
            metrics: address(&line, "metrics"),
            container,
            certificates: certificates.to_owned(),
            _process: process,
            folder,
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// The rules in force, as `egctl config envoy-ratelimit` shows them, in order.
    pub fn rules(&self) -> Vec<String> {
        let (status, text) = self.get(DEBUG, "/rlconfig");
        assert_eq!(status, 200, "{text}");
        let mut rules: Vec<String> = text.lines().map(str::to_owned).collect();
        rules.sort();
        rules
    }

    /// The state of the connection to Envoy Gateway.
    pub fn control_plane(&self) -> Value {
        let rules: Value = serde_json::from_str(&self.get(HTTP, "/rules").1).unwrap();
        rules["control_plane"].clone()
    }

    /// Status and body of a page on one of its ports.
    pub fn get(&self, port: u16, path: &str) -> (u16, String) {
        let (status, _, body) =
            exchange(SocketAddr::from(([127, 0, 0, 1], port)), "GET", path, b"");
        (status, body)
    }

    /// Status and body of a call by `/json`.
    pub fn ask(&self, call: &str) -> (u16, String) {
        let address = SocketAddr::from(([127, 0, 0, 1], HTTP));
        let (status, _, body) = exchange(address, "POST", "/json", call.as_bytes());
        (status, body)
    }

    /// Whether the authority of the files that are there now has issued the certificate that Envoy is shown. Like Envoy, it
    /// does not check the name.
    pub fn shows_a_certificate_of_its_authority(&self) -> bool {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-verify_return_error", "-connect", &self.grpc.to_string()]);
        client.arg("-CAfile").arg(self.certificates.join("ca.crt")).stdin(Stdio::null());
        client.output().unwrap().status.success()
    }
}

/// An address in the line of the log. The address that stands for all has loopback too.
fn address(line: &str, name: &str) -> SocketAddr {
    let (_, rest) = line.split_once(&format!(" {name} ")).expect(line);
    let address: SocketAddr = rest.split(',').next().unwrap().trim().parse().unwrap();
    SocketAddr::from(([127, 0, 0, 1], address.port()))
}
