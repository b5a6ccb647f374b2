//! An Envoy Gateway without Kubernetes, and all that it needs: the pod of its rate-limit Deployment as a process, a Redis,
//! an Envoy with the arguments that it makes, and a backend. Its policies are files.

mod certificates;
mod changes;
mod limits;
mod pages;
mod pod;
mod samples;

use self::pod::Pod;
use crate::support::{
    application::Application, prelude::*, redis_server::free_port, service::exchange_with,
};

/// The ports of Envoy Gateway, of its Envoy's readiness, and of the pod.
const PORTS: [u16; 9] = [18000, 18001, 18002, 19000, 19001, 8081, 19003, pod::HTTP, pod::DEBUG];

/// Each has a route. `open` has no limit.
const ROUTES: [&str; 10] = [
    "backend", "open", "plain", "headers", "cidr", "shared-a", "shared-b", "shadow", "cost",
    "kinds",
];

const CONFIGURATION: &str = include_str!("gateway/envoy-gateway.yaml");
const LIMITS: &str = include_str!("gateway/resources/limits.yaml");

pub struct Gateway {
    pub redis: Redis,
    pub pod: Pod,
    control_plane: Option<Process>,
    envoy: Option<Process>,
    public: SocketAddr,
    backend: Application,
    folder: TempDir,
}

impl Gateway {
    /// Returns when the rules are in force, and Envoy answers.
    pub fn start() -> Self {
        wait_for_ports();
        let folder = TempDir::new().unwrap();
        certificates::generate(&folder.path().join("config"));
        let (redis, backend) = (Redis::start(), Application::start());
        // Not in an order that would help: as in a cluster, its control plane comes later.
        let pod = Pod::start(&folder.path().join("config/certs/envoy-rate-limit"), &redis);
        let public = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (control_plane, envoy) = (None, None);
        let mut gateway = Self { redis, pod, control_plane, envoy, public, backend, folder };
        gateway.write_resources();
        gateway.start_control_plane();
        gateway.start_envoy();
        wait_until("the rules are in force", || !gateway.pod.rules().is_empty());
        wait_until("Envoy has its routes", || gateway.try_status("GET", "/open", &[]) == 200);
        gateway
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_resources(&self) {
        fs::create_dir(self.path("resources")).unwrap();
        let ports = [
            ("@FOLDER@", self.folder.path().display().to_string()),
            ("@SERVICE_PORT@", self.pod.grpc.port().to_string()),
            ("@PUBLIC_PORT@", self.public.port().to_string()),
            ("@BACKEND_PORT@", self.backend.address.port().to_string()),
        ];
        let write = |name: &str, text: &str| {
            let mut text = text.to_owned();
            for (placeholder, value) in &ports {
                text = text.replace(placeholder, value);
            }
            fs::write(self.path(name), text).unwrap();
        };
        write("envoy-gateway.yaml", CONFIGURATION);
        write("resources/gateway.yaml", include_str!("gateway/resources/gateway.yaml"));
        write("resources/envoy.yaml", include_str!("gateway/resources/envoy.yaml"));
        let route = include_str!("gateway/resources/route.yaml");
        let routes: String = ROUTES.iter().map(|name| route.replace("@NAME@", name)).collect();
        write("resources/routes.yaml", &routes);
        self.write_secret();
        self.write_policies(LIMITS);
    }

    /// The client certificate of Envoy. Without this Secret, Envoy Gateway makes one of another authority.
    fn write_secret(&self) {
        let secret = certificates::secret(&self.path("config/certs/envoy"));
        fs::write(self.path("resources/secret.yaml"), secret).unwrap();
    }

    /// Replaces the policies of all routes.
    pub fn write_policies(&self, text: &str) {
        fs::write(self.path("limits.new"), text).unwrap();
        fs::rename(self.path("limits.new"), self.path("resources/limits.yaml")).unwrap();
    }

    pub fn start_control_plane(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(tool("envoy-gateway"));
        command
            .args(["server", "--config-path"])
            .arg(self.path("envoy-gateway.yaml"))
            .env("ENVOY_ARGUMENTS", self.path("envoy.json"))
            .env("HOME", self.folder.path())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.control_plane = Some(Process::spawn(&mut command));
    }

    /// As when its node fails: it says nothing to its clients.
    pub fn kill_control_plane(&mut self) {
        self.control_plane = None;
    }

    /// Starts an Envoy, in place of the one that runs, with the arguments that Envoy Gateway has made.
    pub fn start_envoy(&mut self) {
        self.envoy = None;
        let arguments = eventually("Envoy Gateway starts Envoy", || {
            fs::read_to_string(self.path("envoy.json")).ok()
        });
        let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
        let log = fs::File::create(self.path("envoy.log")).unwrap();
        let mut command = Command::new(tool("envoy"));
        // Envoys of other tests may run: with hot restart, they would share memory.
        command.args(arguments).args(["--disable-hot-restart", "--concurrency", "1"]);
        self.envoy = Some(Process::spawn(command.stdout(log.try_clone().unwrap()).stderr(log)));
    }

    /// The status of one request through Envoy, or 0 while it does not listen.
    fn try_status(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        if std::net::TcpStream::connect(self.public).is_err() {
            return 0;
        }
        exchange_with(self.public, method, path, headers, b"").0
    }

    /// The status and the head of the answer to one request through Envoy.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let (status, head, _) = exchange_with(self.public, method, path, headers, b"");
        (status, head)
    }

    pub fn get(&self, path: &str) -> u16 {
        self.send("GET", path, &[]).0
    }

    /// The statuses of five requests, which also go into the table that tests/envoy-gateway shows.
    pub fn five(&self, case: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
        let statuses: Vec<String> =
            (0..5).map(|_| self.send(method, path, headers).0.to_string()).collect();
        let statuses = statuses.join(" ");
        record(case, &statuses);
        statuses
    }
}

/// Writes a line of the table that tests/envoy-gateway shows.
pub fn record(case: &str, result: &str) {
    if let Some(table) = std::env::var_os("STATUS_TABLE") {
        let mut table = fs::OpenOptions::new().append(true).open(table).unwrap();
        writeln!(table, "{case}\t{result}").unwrap();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for name in ["log", "envoy.log"] {
            let log = fs::read_to_string(self.path(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(30)..];
            eprintln!("--- the end of {name}:\n{}", last.join("\n"));
        }
        eprintln!("--- the service's log:\n{}", self.pod.log());
    }
}

/// Waits until the last test's processes have closed the ports, which Envoy Gateway does not let us choose.
#[track_caller]
fn wait_for_ports() {
    for port in PORTS {
        eventually(&format!("port {port}, which this test needs, is free"), || {
            TcpListener::bind(("0.0.0.0", port)).ok()
        });
    }
}

/// A file that tests/envoy-gateway has taken from the module of Envoy Gateway.
pub fn theirs(name: &str) -> PathBuf {
    root().join("target/tools/envoy-gateway").join(name)
}

/// Its Deployment of the rate-limit service.
pub fn deployment() -> Value {
    documents(&fs::read_to_string(theirs("deployment.yaml")).unwrap()).remove(0)
}
