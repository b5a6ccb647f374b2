//! A real Redis, or Valkey.

use std::sync::{LazyLock, atomic::AtomicU16};

use super::{certificates::Issued, note, prelude::*};

/// Which server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// 6.2.14.
    Redis6,
    /// Debian's, 7.0.15.
    #[default]
    Redis7,
    /// 8.2.3.
    Redis8,
    /// 9.1.2.
    Valkey9,
}

impl Version {
    pub const ALL: [Self; 4] = [Self::Redis6, Self::Redis7, Self::Redis8, Self::Valkey9];

    fn program(self) -> PathBuf {
        match self {
            Self::Redis6 => tool("redis-server-6"),
            Self::Redis7 => PathBuf::from("redis-server"),
            Self::Redis8 => tool("redis-server-8"),
            Self::Valkey9 => tool("valkey-server-9"),
        }
    }
}

/// How to start a server.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub version: Version,
    pub arguments: Vec<String>,
    /// The lines of its configuration file. There is no file if this is empty.
    pub configuration: String,
    /// The default user's password, or empty. Replicas use it towards their master.
    pub password: String,
    /// The server's certificate, if it has a TLS port. Only Debian's Redis knows TLS. It asks for a certificate
    /// of the client's, unless `arguments` change that.
    pub tls: Option<Issued>,
}

impl Setup {
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|word| (*word).to_owned()));
        self
    }
}

/// The name of the connections that tests open themselves.
const OURS: &str = "test";

/// An empty Redis.
pub struct Redis {
    pub port: u16,
    /// The port for TLS, which [`Setup::tls`] opens.
    pub tls_port: u16,
    setup: Setup,
    folder: TempDir,
    process: Option<Process>,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with further arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_as(Setup::default().with(arguments))
    }

    pub fn start_version(version: Version) -> Self {
        Self::start_as(Setup { version, ..Setup::default() })
    }

    pub fn start_as(setup: Setup) -> Self {
        // Redis cannot bind port 0 and report the port. Another program may take a free port before it does.
        for _ in 0..10 {
            let mut redis = Self { setup: setup.clone(), ..Self::absent() };
            if !setup.configuration.is_empty() {
                fs::write(redis.configuration(), &setup.configuration).unwrap();
            }
            if redis.try_start() {
                return redis;
            }
        }
        panic!("ten ports in a row were taken");
    }

    /// A port on which a Redis may be started later.
    pub fn absent() -> Self {
        Self {
            port: free_port(),
            tls_port: free_port(),
            setup: Setup::default(),
            folder: folder_in_memory(),
            process: None,
        }
    }

    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(self.try_start(), "port {} was taken", self.port);
    }

    /// Like [`start_again`](Self::start_again), as a replica of the Redis at this port.
    #[track_caller]
    pub fn start_again_as_replica_of(&mut self, port: u16) {
        let setup = self.setup.clone();
        self.setup = setup.clone().with(&["--replicaof", "127.0.0.1", &port.to_string()]);
        self.start_again();
        self.setup = setup;
    }

    fn try_start(&mut self) -> bool {
        let Setup { version, arguments, configuration, password, tls } = &self.setup;
        let mut command = Command::new(version.program());
        if !configuration.is_empty() {
            command.arg(self.configuration());
        }
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.folder.path())
            .arg("--unixsocket")
            .arg(self.unix_socket());
        if *version != Version::Redis6 {
            command.args(["--enable-debug-command", "yes", "--enable-protected-configs", "yes"]);
        }
        if !password.is_empty() {
            command.args(["--requirepass", password, "--masterauth", password]);
        }
        if let Some(Issued { authority, certificate, key }) = tls {
            command.args(["--tls-port", &self.tls_port.to_string()]);
            command.arg("--tls-ca-cert-file").arg(authority);
            command.arg("--tls-cert-file").arg(certificate).arg("--tls-key-file").arg(key);
        }
        command.args(arguments).stdout(std::process::Stdio::null());
        let process = self.process.insert(Process::spawn(&mut command));
        let ours = format!("process_id:{}", process.0.id());
        eventually("redis answers, or has ended", || {
            if self.process.as_mut()?.0.try_wait().unwrap().is_some() {
                return Some(false);
            }
            // If the port was taken, another Redis may answer on it.
            let info = redis::cmd("INFO").arg("server").query::<String>(&mut self.try_connect()?);
            info.ok()?.contains(&ours).then_some(true)
        })
    }

    fn configuration(&self) -> PathBuf {
        self.folder.path().join("redis.conf")
    }

    pub fn password(&self) -> &str {
        &self.setup.password
    }

    pub fn unix_socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Stops it; [`start_again`](Self::start_again) may follow.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Refuses writes with this error code, until [`accept_writes`](Self::accept_writes).
    pub fn refuse_writes(&self, code: &str) {
        match code {
            "OOM" => self.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]),
            "NOREPLICAS" => self.query(&["CONFIG", "SET", "min-replicas-to-write", "1"]),
            "READONLY" => self.query(&["REPLICAOF", "127.0.0.1", "1"]),
            "MISCONF" => {
                std::fs::remove_dir_all(self.folder.path()).unwrap();
                self.query::<()>(&["CONFIG", "SET", "save", "3600 1"]);
                self.query::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
                self.query::<()>(&["BGSAVE"]);
                wait_until("the save fails", || {
                    let info: String = self.query(&["INFO", "persistence"]);
                    info.contains("rdb_last_bgsave_status:err")
                });
            }
            _ => panic!("{code}"),
        }
    }

    /// Ends [`refuse_writes`](Self::refuse_writes).
    pub fn accept_writes(&self) {
        // It may have been removed to refuse writes.
        std::fs::create_dir_all(self.folder.path()).unwrap();
        self.query::<()>(&["CONFIG", "SET", "dir", self.folder.path().to_str().unwrap()]);
        self.query::<()>(&["CONFIG", "SET", "save", ""]);
        self.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        self.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        self.query::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
        if !self.setup.arguments.iter().any(|word| word == "--cluster-enabled") {
            self.query::<()>(&["REPLICAOF", "NO", "ONE"]);
        }
    }

    pub fn signal(&self, name: &str) {
        self.process.as_ref().expect("a running redis").signal(name);
    }

    pub fn process_id(&self) -> u32 {
        self.process.as_ref().expect("a running redis").0.id()
    }

    /// For a server that is never dropped: its files are removed with the end of the test binary.
    pub fn is_shared(&self) {
        note("made", self.folder.path().display());
    }

    pub fn url(&self) -> String {
        match self.setup.password.as_str() {
            "" => format!("redis://127.0.0.1:{}", self.port),
            password => format!("redis://:{password}@127.0.0.1:{}", self.port),
        }
    }

    /// The URL with the user of docs/redis.md, who has no more rights than are needed.
    pub fn url_with_minimal_rights(&self) -> String {
        self.allow("For a single server:");
        self.url_of_tollkeeper()
    }

    /// The URL with a user who has the rights that `--redis-scripts off` needs, and none to run scripts.
    pub fn url_without_scripts(&self) -> String {
        self.allow("For `--redis-scripts off`:");
        self.url_of_tollkeeper()
    }

    fn url_of_tollkeeper(&self) -> String {
        format!("redis://tollkeeper:secret@127.0.0.1:{}", self.port)
    }

    /// Runs the commands that docs/redis.md has below this line.
    pub fn allow(&self, title: &str) {
        let page = fs::read_to_string(root().join("docs/redis.md")).unwrap();
        let (_, block) = page.split_once(&format!("{title}\n\n```text\n")).expect(title);
        let (commands, _) = block.split_once("\n```").unwrap();
        for command in commands.lines() {
            self.query::<()>(&command.split(' ').collect::<Vec<_>>());
        }
    }

    /// A new connection.
    pub fn connect(&self) -> redis::Connection {
        self.try_connect().expect("redis answers")
    }

    fn try_connect(&self) -> Option<redis::Connection> {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().ok()?;
        let name = redis::cmd("CLIENT").arg(&["SETNAME", OURS]).exec(&mut connection);
        name.ok().map(|()| connection)
    }

    /// The addresses of the connections that the test itself has not opened. One of the test's is listed even after it is
    /// closed, as long as a program that another test has just forked holds a copy of it.
    pub fn clients(&self) -> BTreeSet<String> {
        let list: String = self.query(&["CLIENT", "LIST", "TYPE", "normal"]);
        let others = list.lines().filter(|line| !line.contains(&format!(" name={OURS} ")));
        others.filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
    }

    pub fn query<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_query(words).unwrap()
    }

    /// A master that becomes a replica closes all connections.
    pub fn try_query<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let (name, arguments) = words.split_first().unwrap();
        let mut connection = self.connect();
        redis::cmd(name).arg(arguments).query(&mut connection)
    }

    /// How often a command was run.
    pub fn runs_of(&self, command: &str) -> u64 {
        self.try_runs_of(command).unwrap()
    }

    /// Like [`try_query`](Self::try_query).
    pub fn try_runs_of(&self, command: &str) -> redis::RedisResult<u64> {
        let stats: String = self.try_query(&["INFO", "commandstats"])?;
        let begin = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&begin));
        Ok(line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap()))
    }

    /// Every key, in order.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query(&["KEYS", "*"]);
        keys.sort();
        keys
    }

    /// The only key whose name contains `part`.
    #[track_caller]
    pub fn key(&self, part: &str) -> String {
        let mut found: Vec<_> = self.keys().into_iter().filter(|key| key.contains(part)).collect();
        assert_eq!(found.len(), 1, "keys with `{part}` among {:?}", self.keys());
        found.remove(0)
    }

    /// The hits in the only counter of a fixed window whose key contains `part`; 0 without one.
    #[track_caller]
    pub fn count(&self, part: &str) -> u64 {
        let is_counter = |key: &String| key.starts_with("tk1:fw:") && key.contains(part);
        let found: Vec<_> = self.keys().into_iter().filter(is_counter).collect();
        assert!(found.len() <= 1, "counters with `{part}`: {found:?}");
        found.first().map_or(0, |key| self.query(&["GET", key]))
    }

    /// Closes all connections of others, so that they must open new ones.
    pub fn close_connections(&self) {
        self.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }

    /// Promise "a time to live": fails if a key has no TTL.
    #[track_caller]
    pub fn assert_no_key_leaks(&self) {
        let leaks = self.keys_without_ttl();
        assert!(leaks.is_empty(), "keys without a TTL: {leaks:?}");
    }

    /// Compares the keys inside Redis, by a script, since they may hold any bytes.
    pub fn keys_without_ttl(&self) -> Vec<Vec<u8>> {
        const SCAN: &str = "local leaks = {} \
            for _, key in ipairs(redis.call('KEYS', '*')) do \
              if redis.call('PTTL', key) < 0 then leaks[#leaks + 1] = key end \
            end \
            return leaks";
        self.query(&["EVAL", SCAN, "0"])
    }
}

/// A folder in memory, where Linux has a place for one: Sentinels and the nodes of a Cluster do nothing else while a busy disk
/// takes what they know, and count that time against each other.
fn folder_in_memory() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

/// An address at which nothing listens. A port of those that Linux gives out would soon be another server's.
pub fn nobody() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// A port that is free, and 10,000 above it another one, for a Cluster's bus. Neither is of those that Linux gives
/// to clients, so a server that was killed can be started again on its port.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    static TRIED: LazyLock<AtomicU16> =
        LazyLock::new(|| AtomicU16::new((std::process::id() % 1_000) as u16 * 12));
    loop {
        let port = FIRST + TRIED.fetch_add(1, Ordering::Relaxed) % 12_000;
        if [port, port + 10_000].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        {
            return port;
        }
    }
}

/// A Redis with a TLS port, and its URL.
pub fn tls_redis(authority: &Authority, server: &Issued, clients: &str) -> (Redis, String) {
    let tls = Issued { authority: authority.certificate.clone(), ..server.clone() };
    let setup = Setup { tls: Some(tls), ..Setup::default() };
    let redis = Redis::start_as(setup.with(&["--tls-auth-clients", clients]));
    let url = format!("rediss://127.0.0.1:{}", redis.tls_port);
    (redis, url)
}
