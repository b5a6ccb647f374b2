//! A real Envoy.

use super::prelude::*;

pub struct Envoy {
    pub public: SocketAddr,
    pub process: Process,
    pub folder: TempDir,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let begin = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&begin))
    }
}

impl Envoy {
    pub fn start(rls: SocketAddr) -> Self {
        // Envoy's default is 20 ms. A starved test machine must not pass for a failing service.
        Self::start_waiting(rls, "30s")
    }

    /// An Envoy that waits this long for an answer.
    pub fn start_waiting(rls: SocketAddr, timeout: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let config = include_str!("envoy.yaml")
            .replace("@TIMEOUT@", timeout)
            .replace("@FOLDER@", folder.path().to_str().unwrap())
            .replace("@RLS_PORT@", &rls.port().to_string());
        Self::run(&config, folder)
    }

    /// An Envoy with this configuration.
    pub fn run(config: &str, folder: TempDir) -> Self {
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(tool("envoy"));
        command
            .arg("-c")
            .arg(&file)
            .args(["--concurrency", "1", "--disable-hot-restart", "-l", "error"])
            .arg("--admin-address-path")
            .arg(folder.path().join("admin"))
            .stderr(Stdio::null());
        let process = Process::spawn(&mut command);
        let public = eventually("envoy listens", || {
            // `public::127.0.0.1:12345`
            let listeners = admin_page(&folder, "/listeners")?;
            let public = listeners.lines().find_map(|line| line.strip_prefix("public::"))?;
            // It does so only when its clusters are known to be healthy or not.
            let public = public.parse().ok()?;
            TcpStream::connect::<SocketAddr>(public).is_ok().then_some(public)
        });
        Self { public, process, folder }
    }

    pub fn get(&self, user: &[u8]) -> Answer {
        self.get_at("/", user)
    }

    /// A request with a trace, and with `state` as its `tracestate`.
    pub fn get_traced(&self, user: &str, state: &[u8]) -> Answer {
        let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let head = format!("{user}\r\n{trace}\r\ntracestate: ");
        self.get(&[head.as_bytes(), state].concat())
    }

    pub fn get_at(&self, path: &str, user: &[u8]) -> Answer {
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-user: ");
        let request = [head.as_bytes(), user, b"\r\n\r\n"];
        let head = exchange(self.public, &request.concat()).expect("envoy answers");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head }
    }

    /// A counter of Envoy's own; 0 before its first event.
    pub fn count(&self, name: &str) -> u64 {
        let page = admin_page(&self.folder, "/stats").expect("envoy answers");
        let begin = format!("{name}: ");
        page.lines().find_map(|line| line.strip_prefix(&begin)).map_or(0, |n| n.parse().unwrap())
    }

    pub fn statuses<const N: usize>(&self, user: &[u8]) -> [u16; N] {
        std::array::from_fn(|_| self.get(user).status)
    }

    pub fn statuses_at<const N: usize>(&self, path: &str) -> [u16; N] {
        std::array::from_fn(|_| self.get_at(path, b"x").status)
    }
}

/// A page of the admin address, which Envoy has written into its folder.
pub fn admin_page(folder: &TempDir, path: &str) -> Option<String> {
    let admin = std::fs::read_to_string(folder.path().join("admin")).ok()?.parse().ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    exchange(admin, request.as_bytes())
}

pub fn exchange(address: SocketAddr, request: &[u8]) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(request).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

pub fn example(path: &str) -> String {
    fs::read_to_string(root().join("examples").join(path)).unwrap()
}

/// Replaces each text, which must occur this number of times.
#[track_caller]
pub fn replace(text: &str, replacements: &[(&str, usize, &str)]) -> String {
    let mut text = text.to_owned();
    for (from, times, to) in replacements {
        assert_eq!(text.matches(from).count(), *times, "{from}");
        text = text.replace(from, to);
    }
    text
}

/// An Envoy with the configuration of an example, whose addresses are private to this test.
pub fn envoy(config: &str, public: &str, rls: (&str, &str), service: &Service) -> Envoy {
    let folder = TempDir::new().unwrap();
    let upstream = format!("pipe: {{ path: \"{}/upstream\" }}", folder.path().display());
    let any = "socket_address: { address: 127.0.0.1, port_value: 0 }";
    let ours = format!("address: 127.0.0.1, port_value: {}", service.grpc.port());
    let rls_address = format!("address: {}, port_value: {}", rls.0, rls.1);
    let config = replace(
        config,
        &[
            ("socket_address: { address: 127.0.0.1, port_value: 9901 }", 1, any),
            (public, 1, any),
            ("socket_address: { address: 127.0.0.1, port_value: 10001 }", 2, &upstream),
            (&rls_address, 1, &ours),
        ],
    );
    Envoy::run(&config, folder)
}

pub const PUBLIC: &str = "socket_address: { address: 127.0.0.1, port_value: 10000 }";

pub const RLS: (&str, &str) = ("127.0.0.1", "8081");
