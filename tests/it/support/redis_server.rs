//! A real Redis.

use std::{net::TcpListener, process::Command};

use tempfile::TempDir;

use super::{Process, eventually};

/// An empty Redis.
pub struct Redis {
    pub port: u16,
    folder: TempDir,
    arguments: Vec<String>,
    process: Option<Process>,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with further arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        // Redis cannot bind port 0 and report the port. Another program may take a free port before it does.
        for _ in 0..10 {
            let mut redis = Self::absent();
            redis.arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
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
            folder: TempDir::new().unwrap(),
            arguments: Vec::new(),
            process: None,
        }
    }

    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(self.try_start(), "port {} was taken", self.port);
    }

    fn try_start(&mut self) -> bool {
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(["--enable-debug-command", "yes"])
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.arguments)
            .stdout(std::process::Stdio::null());
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
                eventually("the save fails", || {
                    let info: String = self.query(&["INFO", "persistence"]);
                    info.contains("rdb_last_bgsave_status:err").then_some(())
                });
            }
            _ => panic!("{code}"),
        }
    }

    /// Ends [`refuse_writes`](Self::refuse_writes).
    pub fn accept_writes(&self) {
        self.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        self.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        self.query::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
        self.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    }

    pub fn signal(&self, name: &str) {
        self.process.as_ref().expect("a running redis").signal(name);
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The URL with a user who has the rights that `--redis-scripts off` needs, and none to run scripts.
    pub fn url_without_scripts(&self) -> String {
        let rights =
            ["+watch", "+multi", "+exec", "+get", "+set", "+incrby", "+del", "+time", "+info"];
        self.query::<()>(
            &[&["ACL", "SETUSER", "plain", "on", ">plain", "~tk1:*"], &rights[..]].concat(),
        );
        format!("redis://plain:plain@127.0.0.1:{}", self.port)
    }

    /// A new connection.
    pub fn connect(&self) -> redis::Connection {
        self.try_connect().expect("redis answers")
    }

    fn try_connect(&self) -> Option<redis::Connection> {
        redis::Client::open(self.url()).unwrap().get_connection().ok()
    }

    pub fn query<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let (name, arguments) = words.split_first().unwrap();
        let mut connection = self.connect();
        redis::cmd(name).arg(arguments).query(&mut connection).unwrap()
    }

    /// How often a command was run.
    pub fn runs_of(&self, command: &str) -> u64 {
        let stats: String = self.query(&["INFO", "commandstats"]);
        let begin = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&begin));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
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

    /// P7: fails if a key has no TTL. A script compares the keys inside Redis, since they may hold any bytes.
    #[track_caller]
    pub fn assert_no_key_leaks(&self) {
        const SCAN: &str = "local leaks = {} \
            for _, key in ipairs(redis.call('KEYS', '*')) do \
              if redis.call('PTTL', key) < 0 then leaks[#leaks + 1] = key end \
            end \
            return leaks";
        let leaks: Vec<Vec<u8>> = self.query(&["EVAL", SCAN, "0"]);
        assert!(leaks.is_empty(), "keys without a TTL: {leaks:?}");
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
