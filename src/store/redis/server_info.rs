//! What a server says of itself when we connect: whether we can work with it, and what its operator
//! should know.

use redis::{ErrorKind, RedisResult};

/// The oldest servers that have the commands and the scripting that we rely on.
const REDIS_MIN: (u32, u32) = (6, 2);
const VALKEY_MIN: (u32, u32) = (7, 2);

/// The answer to INFO.
pub(super) struct ServerInfo<'text>(pub(super) &'text str);

impl ServerInfo<'_> {
    /// Refuses a server that is too old, or part of a cluster.
    pub(super) fn check(&self) -> RedisResult<()> {
        self.check_version()?;
        if self.field("redis_mode:") == Some("cluster") {
            let message = "the server runs in cluster mode, and redis:// needs a single server";
            return Err((ErrorKind::InvalidClientConfig, message).into());
        }
        Ok(())
    }

    /// The eviction policy, if the server may evict counters: then limits begin anew without an error.
    pub(super) fn evicts(&self) -> Option<&str> {
        let policy = self.field("maxmemory_policy:").filter(|policy| *policy != "noeviction");
        policy.filter(|_| self.field("maxmemory:").is_some_and(|bytes| bytes != "0"))
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
        Err((ErrorKind::InvalidClientConfig, "unsupported server", message).into())
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.trim().strip_prefix(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_lack_our_commands_are_refused() {
        let check = |info| ServerInfo(info).check();
        check("# Server\r\nredis_version:7.0.15\r\n").expect("new enough");
        check("redis_version:6.2.0").expect("just new enough");
        // Valkey also reports the version of Redis that it is compatible with.
        check("redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n").expect("new enough");
        check("redis_version:6.0.16").expect_err("too old");
        check("redis_version:7.2.4\r\nvalkey_version:7.1.0").expect_err("too old");
        check("").expect_err("no version at all");
    }

    #[test]
    fn a_server_in_cluster_mode_is_refused() {
        let info = "redis_version:7.0.15\r\nredis_mode:cluster\r\n";
        let error = ServerInfo(info).check().expect_err("a cluster").to_string();
        assert!(error.contains("cluster mode"), "{error}");
        ServerInfo("redis_version:7.0.15\r\nredis_mode:standalone\r\n")
            .check()
            .expect("no cluster");
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
