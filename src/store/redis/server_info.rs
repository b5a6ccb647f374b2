//! What a server says of itself when we connect: whether we can work with it, and what its operator
//! should know.

use std::io;

use redis::RedisResult;

/// The oldest servers that have the commands and the scripting that we rely on.
const REDIS_MIN: (u32, u32) = (6, 2);
const VALKEY_MIN: (u32, u32) = (7, 2);

/// What a server must be.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// Whether it is part of a cluster.
    pub mode: ServerMode,
    /// The most connections that all replicas of the service open to it together.
    pub clients: u64,
}

/// Whether a server owns all keys, or some slots of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMode {
    /// It owns all keys.
    Single,
    /// It is part of a cluster.
    Cluster,
}

/// The answer to INFO.
pub(super) struct ServerInfo<'text>(pub(super) &'text str);

impl ServerInfo<'_> {
    /// Refuses a server that is too old, or not of the mode that the URL says.
    pub(super) fn check(&self, expected: Expected) -> RedisResult<()> {
        self.check_version()?;
        let message = match (expected.mode, self.field("cluster_enabled:") == Some("1")) {
            (ServerMode::Single, false) | (ServerMode::Cluster, true) => return Ok(()),
            (ServerMode::Single, true) => "the server runs in cluster mode: write redis+cluster://",
            (ServerMode::Cluster, false) => {
                "the server does not run in cluster mode: write redis:// without +cluster"
            }
        };
        Err(io::Error::other(message).into())
    }

    /// The eviction policy, if the server may evict counters: then limits begin anew without an error.
    pub(super) fn evicts(&self) -> Option<&str> {
        let policy = self.field("maxmemory_policy:").filter(|policy| *policy != "noeviction");
        policy.filter(|_| self.field("maxmemory:").is_some_and(|bytes| bytes != "0"))
    }

    /// The most clients that the server takes.
    pub(super) fn clients_max(&self) -> Option<u64> {
        self.field("maxclients:")?.parse().ok()
    }

    fn check_version(&self) -> RedisResult<()> {
        let (server, version, oldest) = match self.field("valkey_version:") {
            Some(version) => ("valkey", version, VALKEY_MIN),
            None => ("redis", self.field("redis_version:").unwrap_or_default(), REDIS_MIN),
        };
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found >= oldest {
            return Ok(());
        }
        let (major, minor) = oldest;
        let message = format!("{server} `{version}` is older than {major}.{minor}");
        Err(io::Error::other(message).into())
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.trim().strip_prefix(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mode: ServerMode, info: &str) -> Result<(), String> {
        let expected = Expected { mode, clients: 16 };
        ServerInfo(info).check(expected).map_err(|error| error.to_string())
    }

    #[test]
    fn servers_that_lack_our_commands_are_refused() {
        let check = |info| check(ServerMode::Single, info);
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
        let cluster = "redis_version:7.0.15\r\ncluster_enabled:1\r\n";
        let single = "redis_version:7.0.15\r\ncluster_enabled:0\r\n";
        assert_eq!(check(ServerMode::Single, single), Ok(()));
        assert_eq!(check(ServerMode::Cluster, cluster), Ok(()));
        let problem = check(ServerMode::Single, cluster).expect_err("a cluster");
        assert_eq!(problem, "the server runs in cluster mode: write redis+cluster://");
        let problem = check(ServerMode::Cluster, single).expect_err("no cluster");
        assert!(problem.contains("does not run in cluster mode"), "{problem}");
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
