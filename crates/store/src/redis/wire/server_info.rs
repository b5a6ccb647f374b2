//! A server's report of itself when we connect: whether we can work with it, and what its operator
//! should know.

use super::endpoint::{Address, Server};
use crate::report::ServerUsage;

/// The oldest servers that have the commands and the scripting that we rely on.
const REDIS_MIN: (u32, u32) = (6, 2);
const VALKEY_MIN: (u32, u32) = (7, 2);

#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub mode: ServerMode,
    /// The most connections that all replicas of the service open to it together.
    pub clients: u64,
    pub runs_scripts: bool,
}

/// Whether a server owns all keys, or some slots of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMode {
    Single,
    Cluster,
}

/// The kind of server, by its own report.
enum ServerKind {
    Single,
    Cluster,
    Sentinel,
}

#[derive(Clone, Copy)]
pub(crate) struct ServerInfo<'text>(pub(crate) &'text str);

impl ServerInfo<'_> {
    /// Refuses a server that is too old, in a sentence.
    pub(crate) fn check_version(&self) -> Result<(), String> {
        let (server, version, oldest) = match self.field("valkey_version:") {
            Some(version) => ("Valkey", version, VALKEY_MIN),
            None => ("Redis", self.field("redis_version:").unwrap_or_default(), REDIS_MIN),
        };
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found >= oldest {
            return Ok(());
        }
        let (major, minor) = oldest;
        Err(format!("{server} `{version}` is older than {major}.{minor}"))
    }

    /// Refuses a server whose mode differs from the URL's, in a sentence with the right URL for it.
    pub(crate) fn check_mode(&self, mode: ServerMode, server: &Server) -> Result<(), String> {
        let found = match (mode, self.kind()) {
            (ServerMode::Single, ServerKind::Single)
            | (ServerMode::Cluster, ServerKind::Cluster) => {
                return Ok(());
            }
            (ServerMode::Single, ServerKind::Cluster) => "it runs in cluster mode",
            (ServerMode::Cluster, ServerKind::Single) => "it does not run in cluster mode",
            (_, ServerKind::Sentinel) => "it is a Sentinel",
        };
        Err(format!("{found}: write {}", self.url_of(server)))
    }

    /// The URL of `server`, which has answered this.
    pub(crate) fn url_of(&self, server: &Server) -> String {
        let tls = if server.access.tls.is_some() { "s" } else { "" };
        let location = match &server.address {
            Address::Tcp { .. } => server.address.to_string(),
            Address::Unix(_) => "HOST:PORT".to_owned(),
        };
        match self.kind() {
            ServerKind::Single => format!("redis{tls}://{location}"),
            ServerKind::Cluster => format!("redis{tls}+cluster://{location}"),
            ServerKind::Sentinel => format!("redis{tls}+sentinel://{location}/NAME"),
        }
    }

    fn kind(&self) -> ServerKind {
        // Valkey has a name of its own for the field.
        let mode = self.field("redis_mode:").or_else(|| self.field("server_mode:"));
        match mode {
            Some("sentinel") => ServerKind::Sentinel,
            _ if self.field("cluster_enabled:") == Some("1") => ServerKind::Cluster,
            _ => ServerKind::Single,
        }
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.field("role:") == Some("slave")
    }

    /// The eviction policy, if the server may evict counters: then limits start again from zero without an error.
    pub(crate) fn evicts(&self) -> Option<&str> {
        let policy = self.field("maxmemory_policy:").filter(|policy| *policy != "noeviction");
        policy.filter(|_| self.field("maxmemory:").is_some_and(|bytes| bytes != "0"))
    }

    /// What names the run of the server, which has another after each start.
    pub(crate) fn run(&self) -> Option<&str> {
        self.field("run_id:")
    }

    pub(crate) fn clients_max(&self) -> Option<u64> {
        self.number("maxclients:")
    }

    /// How much memory and how many clients the server has.
    pub(crate) fn usage(&self) -> ServerUsage {
        ServerUsage {
            memory: self.number("used_memory:"),
            memory_max: self.number("maxmemory:").filter(|bytes| *bytes > 0),
            clients: self.number("connected_clients:"),
            clients_max: self.clients_max(),
            evicted: self.number("evicted_keys:"),
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.trim().strip_prefix(name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn servers_that_lack_our_commands_are_refused() {
        let check = |info| ServerInfo(info).check_version();
        check("# Server\r\nredis_version:7.0.15\r\n").expect("new enough");
        check("redis_version:6.2.0").expect("just new enough");
        // Valkey also reports the version of Redis that it is compatible with.
        check("redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n").expect("new enough");
        check("redis_version:6.0.16").expect_err("too old");
        check("redis_version:7.2.4\r\nvalkey_version:7.1.0").expect_err("too old");
        check("").expect_err("no version at all");
    }

    #[test]
    fn a_server_must_be_of_the_mode_that_the_url_says() {
        let address = Address::Tcp { host: "h".to_owned(), port: 7000 };
        let server = Server::new(address, Arc::default());
        let check = |mode, info| ServerInfo(info).check_mode(mode, &server);
        let cluster = "redis_version:7.0.15\r\ncluster_enabled:1\r\n";
        let single = "redis_version:7.0.15\r\ncluster_enabled:0\r\n";
        assert_eq!(check(ServerMode::Single, single), Ok(()));
        assert_eq!(check(ServerMode::Cluster, cluster), Ok(()));
        let problem = check(ServerMode::Single, cluster).expect_err("a cluster");
        assert_eq!(problem, "it runs in cluster mode: write redis+cluster://h:7000");
        let problem = check(ServerMode::Cluster, single).expect_err("no cluster");
        assert_eq!(problem, "it does not run in cluster mode: write redis://h:7000");
        for sentinel in ["redis_mode:sentinel\r\n", "server_mode:sentinel\r\n"] {
            for mode in [ServerMode::Single, ServerMode::Cluster] {
                let problem = check(mode, sentinel).expect_err("a Sentinel");
                assert_eq!(problem, "it is a Sentinel: write redis+sentinel://h:7000/NAME");
            }
        }
    }

    #[test]
    fn the_use_of_a_server_is_what_it_says() {
        let info = "used_memory:900\r\nmaxmemory:1000\r\nconnected_clients:7\r\nmaxclients:10\r\n\
                    evicted_keys:3\r\n";
        let expected = ServerUsage {
            memory: Some(900),
            memory_max: Some(1000),
            clients: Some(7),
            clients_max: Some(10),
            evicted: Some(3),
        };
        assert_eq!(ServerInfo(info).usage(), expected);
        let unbounded = ServerInfo("used_memory:900\r\nmaxmemory:0\r\n").usage();
        assert_eq!(unbounded, ServerUsage { memory: Some(900), ..ServerUsage::default() });
    }

    #[test]
    fn a_server_evicts_if_it_has_a_policy_and_a_bound() {
        let evicts = |info| ServerInfo(info).evicts().map(str::to_owned);
        let lru = "maxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(evicts(lru).as_deref(), Some("allkeys-lru"));
        assert_eq!(evicts("maxmemory:1000\r\nmaxmemory_policy:noeviction\r\n"), None);
        assert_eq!(evicts("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"), None);
    }
}
