//! The URL of the store. No message repeats any of it, since a password may be anywhere in a bad URL.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use crate::{
    net::tls::client::{TlsAdvice, TlsClient, TlsFiles},
    settings::reader::url_parts::{decoded, number, read_host},
    store::redis::wire::{
        endpoint::{Access, AclUser, Address},
        password::Password,
    },
};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

pub(super) const TLS_ADVICE: TlsAdvice = TlsAdvice {
    files: "the TLS files of Redis",
    trust: "set --store-tls-ca to its CA (with --compat, REDIS_TLS_CACERT)",
    name: "connect to one of its names, or set --store-tls-name",
    plain: "use redis in place of rediss in --store",
};

/// Where counters are kept. `Display` masks the password.
#[derive(Debug, Clone)]
pub enum StoreUrl {
    /// In this process.
    Memory,
    Redis(RedisUrl),
}

/// Which servers to use, and how they are found.
#[derive(Clone)]
pub struct RedisUrl {
    pub topology: TopologyKind,
    /// What the URL names, at least one: the server; else Sentinels; else some nodes of the cluster.
    pub addresses: Vec<Address>,
    /// How the servers with counters are entered.
    pub access: Arc<Access>,
    pub sentinel_access: Arc<Access>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopologyKind {
    /// There is one, and the URL has its address.
    Single,
    Sentinel {
        /// The name by which Sentinels know it.
        master: String,
    },
    /// Nodes of a cluster name each other.
    Cluster,
}

impl RedisUrl {
    pub fn address(&self) -> &Address {
        self.addresses.first().expect("a URL has an address")
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.access.tls.is_some() { "s" } else { "" };
        let (kind, path) = match (&self.topology, self.address()) {
            (TopologyKind::Single, Address::Unix(_)) => {
                ("+unix", format!("?db={}", self.access.database))
            }
            (TopologyKind::Single, _) => ("", format!("/{}", self.access.database)),
            (TopologyKind::Sentinel { master }, _) => {
                ("+sentinel", format!("/{master}/{}", self.access.database))
            }
            (TopologyKind::Cluster, _) => ("+cluster", String::new()),
        };
        let login = match (&self.access.user, &self.access.password) {
            (Some(AclUser::Named(user)), _) => format!("{user}:***@"),
            (Some(AclUser::BesidePassword { .. }), _) => "***:***@".to_owned(),
            (None, Some(_)) => ":***@".to_owned(),
            (None, None) => String::new(),
        };
        let hosts: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        write!(f, "redis{tls}{kind}://{login}{}{path}", hosts.join(","))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory://"),
            Self::Redis(url) => url.fmt(f),
        }
    }
}

/// As `Display`: a derived `Debug` would show the password.
impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads a URL. Errors name the part, and do not repeat it, because it may hold a password.
impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory://" {
            return Ok(Self::Memory);
        }
        if text.starts_with("memory://") {
            return Err("memory:// takes nothing behind it".to_owned());
        }
        // Before the usual port can only be a host.
        let is_host = text.ends_with(":6379") && read_host(text, REDIS_PORT).is_ok();
        let hint = if is_host { format!("; did you mean redis://{text}?") } else { String::new() };
        let schemes = || format!("{SCHEMES}{hint}");
        let (scheme, rest) = text.split_once("://").ok_or_else(schemes)?;
        let scheme = Scheme::read(scheme)?;
        // The path of a socket may have an `@`.
        let is_path = scheme.kind == Kind::Unix && rest.starts_with('/');
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) if !is_path => (Some(login), rest),
            _ => (None, rest),
        };
        if let Some(login) = login {
            scheme.check_login(login)?;
        }
        let (user, password) = login.map(read_login).transpose()?.unwrap_or_default();
        let location = scheme.read_location(rest)?;
        let tls = || Arc::new(TlsClient::new(TlsFiles::default(), None, &TLS_ADVICE));
        let tls = scheme.is_tls.then(tls);
        let sentinel_access = Access { tls: tls.clone(), ..Access::default() };
        let access = Access { user, password, database: location.database, tls, dial: None };
        Ok(Self::Redis(RedisUrl {
            topology: location.topology,
            addresses: location.addresses,
            access: Arc::new(access),
            sentinel_access: Arc::new(sentinel_access),
        }))
    }
}

const SCHEMES: &str = "the scheme must be memory, redis, rediss, redis+unix, redis+sentinel, \
    rediss+sentinel, redis+cluster or rediss+cluster, followed by ://";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Unix,
    Sentinel,
    Cluster,
}

struct Scheme {
    kind: Kind,
    is_tls: bool,
}

/// What a URL has after its user and password.
struct UrlLocation {
    topology: TopologyKind,
    addresses: Vec<Address>,
    database: u32,
}

impl Scheme {
    /// Refuses a login that looks like several: one for each host.
    fn check_login(&self, login: &str) -> Result<(), String> {
        let has_several_hosts = matches!(self.kind, Kind::Sentinel | Kind::Cluster);
        if login.contains('@') || (has_several_hosts && login.contains(',')) {
            return Err("write user and password once, before the first host, and `@` and `,` in \
                        them as %40 and %2C"
                .to_owned());
        }
        Ok(())
    }

    fn read(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("redis").or_else(|| text.strip_prefix("valkey"));
        let rest = rest.ok_or(SCHEMES)?;
        let (is_tls, rest) = rest.strip_prefix('s').map_or((false, rest), |rest| (true, rest));
        let kind = match rest {
            "" => Kind::Tcp,
            "+unix" if is_tls => {
                return Err("a Unix socket has no TLS: write redis+unix".to_owned());
            }
            "+unix" => Kind::Unix,
            "+sentinel" => Kind::Sentinel,
            "+cluster" => Kind::Cluster,
            _ => return Err(SCHEMES.to_owned()),
        };
        Ok(Self { kind, is_tls })
    }

    fn read_location(&self, text: &str) -> Result<UrlLocation, String> {
        if text.contains('#') {
            return Err("a URL has no part after `#`; write `#` in a password as %23".to_owned());
        }
        if self.kind == Kind::Unix {
            return read_socket(text);
        }
        if text.contains('?') {
            return Err(
                "only redis+unix:// takes a query; write `?` in a password as %3F".to_owned()
            );
        }
        let (hosts, path) = text.split_once('/').unwrap_or((text, ""));
        let default_port = if self.kind == Kind::Sentinel { SENTINEL_PORT } else { REDIS_PORT };
        let addresses = read_hosts(hosts, default_port)?;
        let (topology, database) = match self.kind {
            Kind::Sentinel => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                (TopologyKind::Sentinel { master: read_master(master)? }, database)
            }
            Kind::Cluster => (TopologyKind::Cluster, path),
            Kind::Tcp | Kind::Unix => (TopologyKind::Single, path),
        };
        let database = read_database(database)?;
        if self.kind == Kind::Cluster && database != 0 {
            return Err("a cluster has only db 0".to_owned());
        }
        if topology == TopologyKind::Single && addresses.len() > 1 {
            return Err("a single server has one host; several are for redis+sentinel:// and \
                redis+cluster://"
                .to_owned());
        }
        Ok(UrlLocation { topology, addresses, database })
    }
}

/// The user, if there is one, and the password.
fn read_login(text: &str) -> Result<(Option<AclUser>, Option<Password>), String> {
    if text.contains(['/', '?', '#']) {
        return Err("write `/`, `?` and `#` in a user or password as %2F, %3F and %23".to_owned());
    }
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(decoded(password, "password")?)),
        None => (text, None),
    };
    let user = Some(decoded(user, "user")?).filter(|user| !user.is_empty());
    let user = user.map(AclUser::Named);
    Ok((user, password.filter(|password| !password.is_empty()).map(Password::Text)))
}

fn read_hosts(text: &str, default_port: u16) -> Result<Vec<Address>, String> {
    let read = |(index, host)| {
        let problem = |problem| format!("host {}: {problem}", index + 1);
        read_host(host, default_port).map_err(problem)
    };
    text.split(',').enumerate().map(read).collect()
}

fn read_master(text: &str) -> Result<String, String> {
    // Sentinel accepts no other names.
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match text {
        "" => Err("the master's name is missing: redis+sentinel://host:port/name".to_owned()),
        name if name.bytes().all(is_allowed) => Ok(name.to_owned()),
        _ => Err("the master's name may have letters, digits, `.`, `-` and `_`".to_owned()),
    }
}

fn read_socket(text: &str) -> Result<UrlLocation, String> {
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    if !path.starts_with('/') || path == "/" {
        return Err("the socket must be an absolute path: redis+unix:///path".to_owned());
    }
    let database = match query.split_once('=') {
        Some(("db", database)) => database,
        None if query.is_empty() => "",
        _ => return Err("unknown parameter: redis+unix:// takes only db".to_owned()),
    };
    Ok(UrlLocation {
        topology: TopologyKind::Single,
        addresses: vec![Address::Unix(PathBuf::from(decoded(path, "path")?))],
        database: read_database(database)?,
    })
}

/// The number of a database; 0 if the URL has no path.
fn read_database(text: &str) -> Result<u32, String> {
    if text.is_empty() {
        return Ok(0);
    }
    // Redis has an `int` for it.
    let database = number(text).filter(|database| *database <= i32::MAX.unsigned_abs());
    database.ok_or_else(|| "the db must be a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a URL is read as, or what is wrong with it. Each password in it is `s3cret`, plain or encoded.
    #[track_caller]
    fn check(rows: &[(&str, Result<&str, &str>)]) {
        for (text, expected) in rows {
            let read: Result<StoreUrl, String> = text.parse();
            let read = read.map(|url| url.to_string());
            let shown = read.as_ref().map_or_else(String::as_str, String::as_str);
            assert!(!shown.contains("s3cret"), "{text}: {shown}");
            match (&read, expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected, "{text}"),
                (Err(problem), Err(expected)) => {
                    assert!(problem.contains(expected), "{text}: {problem}");
                }
                _ => panic!("{text}: {read:?}"),
            }
        }
    }

    #[test]
    fn good_urls_are_shown_with_everything_but_the_password() {
        check(&[
            ("memory://", Ok("memory://")),
            ("redis://h", Ok("redis://h:6379/0")),
            ("redis://h/", Ok("redis://h:6379/0")),
            ("redis://h:1", Ok("redis://h:1/0")),
            ("redis://h:65535/15", Ok("redis://h:65535/15")),
            ("redis://a-b.c_d.example", Ok("redis://a-b.c_d.example:6379/0")),
            ("redis://127.0.0.1:7000", Ok("redis://127.0.0.1:7000/0")),
            ("redis://[::1]", Ok("redis://[::1]:6379/0")),
            ("redis://[2001:DB8::0:1]:7000/2", Ok("redis://[2001:db8::1]:7000/2")),
            ("redis://:s3cret@h", Ok("redis://:***@h:6379/0")),
            ("redis://user:s3cret@h", Ok("redis://user:***@h:6379/0")),
            ("redis://user@h", Ok("redis://user:***@h:6379/0")),
            ("redis://us%40er:s3cret%2F%3F@h", Ok("redis://us@er:***@h:6379/0")),
            ("redis://user:s3cret:%40s3cret@h", Ok("redis://user:***@h:6379/0")),
            ("redis://@h", Ok("redis://h:6379/0")),
            ("redis://:@h", Ok("redis://h:6379/0")),
            ("rediss://h", Ok("rediss://h:6379/0")),
            ("rediss://user:s3cret@[::1]:6380/1", Ok("rediss://user:***@[::1]:6380/1")),
            ("valkey://h", Ok("redis://h:6379/0")),
            ("valkeys://h", Ok("rediss://h:6379/0")),
            ("redis+unix:///run/redis.sock", Ok("redis+unix:///run/redis.sock?db=0")),
            ("redis+unix:///run/a%20b@c?db=3", Ok("redis+unix:///run/a b@c?db=3")),
            ("redis+unix://u:s3cret@/run/r?db=", Ok("redis+unix://u:***@/run/r?db=0")),
            ("redis+sentinel://h/main", Ok("redis+sentinel://h:26379/main/0")),
            (
                "redis+sentinel://u:s3cret@a:1,b,[::1]:3/my.ma-st_er/4",
                Ok("redis+sentinel://u:***@a:1,b:26379,[::1]:3/my.ma-st_er/4"),
            ),
            ("rediss+sentinel://a,b/main", Ok("rediss+sentinel://a:26379,b:26379/main/0")),
            ("redis+cluster://a", Ok("redis+cluster://a:6379")),
            ("redis+cluster://a:1,b:2/0", Ok("redis+cluster://a:1,b:2")),
            ("rediss+cluster://u:s3cret@a,b", Ok("rediss+cluster://u:***@a:6379,b:6379")),
            ("valkeys+cluster://a", Ok("rediss+cluster://a:6379")),
        ]);
    }

    #[test]
    fn the_problem_of_a_bad_url_names_the_part_and_repeats_none() {
        check(&[
            ("", Err("the scheme must be memory, redis")),
            ("s3cret", Err("the scheme must be")),
            ("s3cret://h", Err("the scheme must be")),
            ("REDIS://h", Err("the scheme must be")),
            ("memory://h", Err("memory:// takes nothing behind it")),
            ("redis+s3cret://h", Err("the scheme must be")),
            ("rediss+unix:///run/r", Err("a Unix socket has no TLS")),
            ("redis://", Err("host 1: the host is missing")),
            ("redis://:s3cret@", Err("host 1: the host is missing")),
            ("redis://:6379", Err("host 1: the host is missing")),
            ("redis:///0", Err("host 1: the host is missing")),
            ("redis+cluster://a,,c", Err("host 2: the host is missing")),
            ("redis+cluster://a,b:0", Err("host 2: the port must be a number from 1 to 65535")),
            ("redis://h:65536", Err("host 1: the port must be")),
            ("redis://h:", Err("host 1: the port must be")),
            ("redis://h:+1", Err("host 1: the port must be")),
            ("redis://user:s3cret", Err("host 1: the port must be")),
            ("redis://::1", Err("host 1: the host is missing")),
            ("redis://fe80::1:6379", Err("host 1: write an IPv6 address in brackets")),
            ("redis://[::1:6379", Err("host 1: `]` is missing")),
            ("redis://[s3cret]", Err("host 1: not an IPv6 address in brackets")),
            ("redis://[::1]6379", Err("host 1: after `]` comes a colon")),
            ("redis://h h", Err("host 1: not a host name or IP address")),
            ("redis://a,b", Err("a single server has one host")),
            ("redis://h/x", Err("the db must be a number")),
            ("redis://h/-1", Err("the db must be")),
            ("redis://h/+1", Err("the db must be")),
            ("redis://h/2147483648", Err("the db must be")),
            ("redis://h/1/2", Err("the db must be")),
            ("redis://h/0?timeout=s3cret", Err("only redis+unix:// takes a query")),
            ("redis://h/0#insecure", Err("no part after `#`")),
            (
                "redis://u:s3cret@s3cret@h",
                Err("write user and password once, before the first host"),
            ),
            ("redis+cluster://u:s3cret@a,u:s3cret@b", Err("write user and password once")),
            ("redis+cluster://a:1,u:s3cret@b", Err("write user and password once")),
            ("redis://u:s3cret#s3cret@h", Err("write `/`, `?` and `#` in a user or password as")),
            ("redis://u:s3cret/s3cret@h", Err("in a user or password")),
            ("redis://u:s3cret%@h", Err("two hex digits must follow a `%` in the password")),
            ("redis://u:%+1s3cret@h", Err("two hex digits")),
            ("redis://u%zz:s3cret@h", Err("in the user")),
            ("redis://u:s3cret%ff@h", Err("the password must be UTF-8")),
            ("redis+sentinel://h", Err("the master's name is missing")),
            ("redis+sentinel://h/", Err("the master's name is missing")),
            ("redis+sentinel://h/ma in", Err("the master's name may have")),
            ("redis+sentinel://h/main/x", Err("the db must be")),
            ("redis+cluster://h/1", Err("a cluster has only db 0")),
            ("redis+unix://run/r", Err("the socket must be an absolute path")),
            ("redis+unix:///", Err("the socket must be an absolute path")),
            ("redis+unix:///run/r?db=x", Err("the db must be")),
            ("redis+unix:///run/r?pass=s3cret", Err("takes only db")),
            ("redis+unix:///run/r?s3cret", Err("takes only db")),
        ]);
    }

    #[test]
    fn users_and_passwords_are_decoded() {
        let login = |text: &str| {
            let Ok(StoreUrl::Redis(url)) = text.parse() else { panic!("{text}") };
            let password = url.access.password.as_ref().map(|password| password.read().unwrap());
            (url.access.user.clone(), password)
        };
        let text = |text: &str| Some(text.to_owned());
        let user = |name: &str| Some(AclUser::Named(name.to_owned()));
        assert_eq!(login("redis://h"), (None, None));
        assert_eq!(login("redis://:p+q%2b%C3%A9@h"), (None, text("p+q+\u{e9}")));
        assert_eq!(login("redis://a%3Ab:c:d%40@h"), (user("a:b"), text("c:d@")));
        assert_eq!(login("redis://a@h"), (user("a"), None));
    }
}
