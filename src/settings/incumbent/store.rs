//! Redis. No message repeats any of its URL, which may hold a password.

use super::{Translator, percent_encoded};

const SOCKET: &str = "/var/run/nutcracker/ratelimit.sock";

/// The scheme that its driver accepts before a single server.
const SCHEME: &str = "redis://";

impl Translator<'_> {
    pub(super) fn store(&mut self) {
        if self.text("BACKEND_TYPE").is_some_and(|kind| kind.eq_ignore_ascii_case("memcache")) {
            let problem = "memcache is not supported, since it has no atomic scripts; \
                           set it to redis, and REDIS_URL";
            return self.problem("BACKEND_TYPE", problem);
        }
        match self.store_url() {
            Ok(url) => self.set("store", "REDIS_URL", url),
            Err(problem) => self.problem("REDIS_URL", problem),
        }
        for (flag, name) in [
            ("store-tls-cert", "REDIS_TLS_CLIENT_CERT"),
            ("store-tls-key", "REDIS_TLS_CLIENT_KEY"),
            ("store-tls-ca", "REDIS_TLS_CACERT"),
        ] {
            if self.is_on("REDIS_TLS") {
                self.copy(flag, name);
            } else {
                self.warn(name, "REDIS_TLS is not true");
            }
        }
        self.copy("store-pool-size", "REDIS_POOL_SIZE");
        self.copy("key-prefix", "CACHE_KEY_PREFIX");
        self.copy_switch("ready-needs-store", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION");
        if let Some(auth) = self.text("REDIS_SENTINEL_AUTH") {
            if self.is_type("SENTINEL") {
                self.out.sentinel_login = Some(match auth.split_once(':') {
                    Some((user, password)) => (Some(user.to_owned()), password.to_owned()),
                    None => (None, auth.to_owned()),
                });
            } else {
                self.warn("REDIS_SENTINEL_AUTH", "REDIS_TYPE is not SENTINEL");
            }
        }
        if self.is_type("SENTINEL") || self.is_type("CLUSTER") {
            self.warn("REDIS_SOCKET_TYPE", "REDIS_TYPE is not SINGLE");
        }
    }

    fn is_type(&self, kind: &str) -> bool {
        self.text("REDIS_TYPE").unwrap_or("SINGLE").eq_ignore_ascii_case(kind)
    }

    /// The URL for `--store`.
    fn store_url(&self) -> Result<String, &'static str> {
        let url = self.text("REDIS_URL");
        let scheme = if self.is_on("REDIS_TLS") { "rediss" } else { "redis" };
        let login = self.login();
        if self.is_type("SENTINEL") {
            let parts = url.and_then(|url| url.split_once(','));
            let (master, sentinels) = parts.ok_or(
                "must be the master's name and at least one Sentinel, such as \
                 mymaster,sentinel:26379",
            )?;
            return Ok(format!("{scheme}+sentinel://{login}{sentinels}/{master}"));
        }
        if self.is_type("CLUSTER") {
            let nodes = url.ok_or("must be set: nodes of the cluster, such as a:6379,b:6379")?;
            return Ok(format!("{scheme}+cluster://{login}{nodes}"));
        }
        if self.text("REDIS_SOCKET_TYPE").is_some_and(|kind| kind.eq_ignore_ascii_case("tcp")) {
            let server = url.ok_or("must be set: host and port of Redis, such as redis:6379")?;
            let server = server.strip_prefix(SCHEME).unwrap_or(server);
            if server.contains('@') && !login.is_empty() {
                return Err("has a password, and so has REDIS_AUTH: remove one");
            }
            return Ok(format!("{scheme}://{login}{server}"));
        }
        let socket = url.unwrap_or(SOCKET);
        if !socket.starts_with('/') {
            return Err("must be the absolute path of a socket, since REDIS_SOCKET_TYPE is unix; \
                        for a host and port set that to tcp");
        }
        if self.is_on("REDIS_TLS") {
            return Err("a Unix socket has no TLS: REDIS_TLS must be false");
        }
        let path: Vec<String> = socket.split('/').map(percent_encoded).collect();
        Ok(format!("redis+unix://{login}{}", path.join("/")))
    }

    /// The user and password of `REDIS_AUTH`, as a URL has them.
    fn login(&self) -> String {
        match self.text("REDIS_AUTH").map(|auth| auth.split_once(':').unwrap_or(("", auth))) {
            Some((user, password)) => {
                format!("{}:{}@", percent_encoded(user), percent_encoded(password))
            }
            None => String::new(),
        }
    }
}
