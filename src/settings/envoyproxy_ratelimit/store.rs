//! Redis. No message repeats any of its URL, which may hold a password.

use super::{Translator, go};
use crate::{
    settings::reader::{translated::Login, url_parts::percent_encoded},
    store::redis::wire::endpoint::AclUser,
};

const SOCKET: &str = "/var/run/nutcracker/ratelimit.sock";

/// The scheme that its driver accepts before a server.
const SCHEME: &str = "redis://";

const STORE: &str = "store";

/// The variables of the URL; the first one is for messages.
const OF_STORE: [&str; 5] =
    ["REDIS_URL", "REDIS_SOCKET_TYPE", "REDIS_TYPE", "REDIS_TLS", "BACKEND_TYPE"];

/// The TLS of Redis, with our settings.
const TLS: [(&str, &str); 3] = [
    ("store-tls-cert", "REDIS_TLS_CLIENT_CERT"),
    ("store-tls-key", "REDIS_TLS_CLIENT_KEY"),
    ("store-tls-ca", "REDIS_TLS_CACERT"),
];

impl Translator<'_> {
    pub(super) fn store(&mut self) {
        let url = if self.is_given(STORE) { Ok(String::new()) } else { self.backend() };
        match url {
            Ok(url) => self.set(STORE, &OF_STORE, url),
            // A bad variable counts as unset. Its own problem is reported already; an error caused by it is not.
            Err(_) if OF_STORE.iter().any(|name| self.bad.contains(name)) => {}
            Err((name, problem)) => self.problem(name, problem),
        }
        self.out.login = self.login("REDIS_AUTH", "store-password-file");
        if self.is_type("SENTINEL") {
            self.out.sentinel_login =
                self.login("REDIS_SENTINEL_AUTH", "store-sentinel-password-file");
        } else {
            self.warn("REDIS_SENTINEL_AUTH", "REDIS_TYPE is not SENTINEL");
        }
        if self.is_type("SENTINEL") || self.is_type("CLUSTER") {
            self.warn("REDIS_SOCKET_TYPE", "REDIS_TYPE is not SINGLE");
        }
        self.copy_if_on("REDIS_TLS", &TLS);
        if let Some(size) = self.text("REDIS_POOL_SIZE").and_then(go::number) {
            let names = ("store-pool-size", "REDIS_POOL_SIZE");
            let size = self.clamp(names, size, (1, 1000), |size| size.to_string());
            self.set(names.0, &[names.1], size);
        }
        if self.text("REDIS_AUTH").is_some() {
            self.warn("REDIS_AUTH_FILE", "REDIS_AUTH is set");
        } else {
            self.copy("store-password-file", "REDIS_AUTH_FILE");
        }
        self.copy("key-prefix", "CACHE_KEY_PREFIX");
        self.copy_switch("ready-needs-store", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION");
    }

    /// The URL for `--store`, or the variable to change, and what is wrong with it.
    fn backend(&self) -> Result<String, (&'static str, &'static str)> {
        let is_memcache = |kind: &str| kind.eq_ignore_ascii_case("memcache");
        if self.text("BACKEND_TYPE").is_some_and(is_memcache) {
            let problem = "memcache is not supported, since it has no atomic scripts; \
                           set it to redis, and REDIS_URL";
            return Err(("BACKEND_TYPE", problem));
        }
        self.store_url().map_err(|problem| (OF_STORE[0], problem))
    }

    fn is_type(&self, kind: &str) -> bool {
        self.text("REDIS_TYPE").unwrap_or("SINGLE").eq_ignore_ascii_case(kind)
    }

    fn store_url(&self) -> Result<String, &'static str> {
        let url = self.text("REDIS_URL");
        let scheme = if self.is_on("REDIS_TLS") { "rediss" } else { "redis" };
        if self.is_type("SENTINEL") {
            const FORM: &str = "must be the master's name and at least one Sentinel, such as \
                                mymaster,sentinel:26379";
            let (master, sentinels) = url.and_then(|url| url.split_once(',')).ok_or(FORM)?;
            if master.is_empty() || master.contains('/') {
                return Err(FORM);
            }
            return Ok(format!("{scheme}+sentinel://{}/{master}", hosts(sentinels).ok_or(FORM)?));
        }
        if self.is_type("CLUSTER") {
            const FORM: &str = "must be nodes of the cluster as host:port, such as a:6379,b:6379, \
                                since REDIS_TYPE is CLUSTER";
            let nodes = url.and_then(hosts).ok_or(FORM)?;
            return Ok(format!("{scheme}+cluster://{nodes}"));
        }
        if self.text("REDIS_SOCKET_TYPE").is_some_and(|kind| kind.eq_ignore_ascii_case("tcp")) {
            let server = server(url)?;
            if server.contains('@') && self.text("REDIS_AUTH").is_some() {
                return Err("has a password, and so has REDIS_AUTH: remove one");
            }
            return Ok(format!("{scheme}://{server}"));
        }
        let socket = url.unwrap_or(SOCKET);
        if !socket.starts_with('/') || socket == "/" {
            return Err("must be the absolute path of a socket, since REDIS_SOCKET_TYPE is unix; \
                        for a host and port set that to tcp");
        }
        if self.is_on("REDIS_TLS") {
            return Err("a Unix socket has no TLS: REDIS_TLS must be false");
        }
        let path: Vec<String> = socket.split('/').map(percent_encoded).collect();
        Ok(format!("redis+unix://{}", path.join("/")))
    }

    /// The login in a variable with `password` or `user:password`, unless one of our own settings gives it.
    fn login(&mut self, variable: &'static str, password_file: &str) -> Option<Login> {
        let text = self.text(variable)?;
        if let Some(ours) = (self.given)(STORE).or_else(|| (self.given)(password_file)) {
            self.warn(variable, &format!("{ours} is set"));
            return None;
        }
        Some(match text.split_once(':') {
            // The old driver logs in without a user if that is empty.
            Some(("", password)) => Login { user: None, password: password.to_owned() },
            Some((user, password)) => Login {
                user: Some(AclUser::BesidePassword { name: user.to_owned(), variable }),
                password: password.to_owned(),
            },
            None => Login { user: None, password: text.to_owned() },
        })
    }
}

fn server(url: Option<&str>) -> Result<&str, &'static str> {
    let url = url.ok_or("must be set: host and port of Redis, such as redis:6379")?;
    let server = url.strip_prefix(SCHEME).unwrap_or(url);
    if server.starts_with("rediss://") {
        return Err("rediss:// is not supported here: write host:port, and set REDIS_TLS to true");
    }
    if server.contains("://") {
        return Err("must be host:port, such as redis:6379, or redis://user:password@host:port/db");
    }
    if server.starts_with('/') {
        return Err(
            "must be host:port, such as redis:6379, since REDIS_SOCKET_TYPE is tcp; for a \
                    socket set that to unix",
        );
    }
    if server.contains('?') {
        return Err("takes no query; write `?` in a password as %3F");
    }
    let hosts = server.rsplit_once('@').map_or(server, |(_, hosts)| hosts);
    if hosts.contains(',') {
        return Err("has several hosts: for these set REDIS_TYPE to CLUSTER or SENTINEL");
    }
    Ok(server)
}

/// Several servers, as our URL has them; `None` if there is more than hosts and ports.
fn hosts(text: &str) -> Option<String> {
    let hosts: Vec<&str> =
        text.split(',').map(|host| host.strip_prefix(SCHEME).unwrap_or(host)).collect();
    let hosts = hosts.join(",");
    (!hosts.contains(['/', '@', '?', '#'])).then_some(hosts)
}
