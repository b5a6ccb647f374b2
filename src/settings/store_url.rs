//! The URL of the store.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

/// Where counters are kept. `Display` masks the password.
#[derive(Clone)]
pub enum StoreUrl {
    /// In this process.
    Memory,
    /// In one Redis server.
    Redis(ConnectionInfo),
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Redis(server) = self else { return f.write_str("memory://") };
        let settings = server.redis_settings();
        let login = match (settings.username(), settings.password()) {
            (Some(user), _) => format!("{user}:***@"),
            (None, Some(_)) => ":***@".to_owned(),
            (None, None) => String::new(),
        };
        let address = match server.addr() {
            ConnectionAddr::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            other => other.to_string(),
        };
        write!(f, "redis://{login}{address}/{}", settings.db())
    }
}

/// As `Display`: a derived `Debug` would show the password.
impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StoreUrl {
    pub(super) fn with_password(self, password: Option<String>) -> Self {
        match (self, password) {
            (Self::Redis(server), Some(password)) => {
                let settings = server.redis_settings().clone().set_password(password);
                Self::Redis(server.set_redis_settings(settings))
            }
            (store, _) => store,
        }
    }
}

/// Reads a URL. Errors do not repeat it, because it may hold a password.
pub(super) fn store_url(text: &str) -> Result<StoreUrl, String> {
    const FORM: &str = "must be memory:// or redis://[user:password@]host:port[/db]";
    if text == "memory://" {
        return Ok(StoreUrl::Memory);
    }
    let rest = text.strip_prefix("redis://").ok_or(FORM)?;
    if rest.contains(['#', '?']) {
        return Err(format!("write `#` and `?` in a password as %23 and %3F; {FORM}"));
    }
    let host = rest.rsplit('@').next().unwrap_or_default();
    if host.is_empty() || host.starts_with(['/', ':']) {
        return Err(format!("the host is missing; {FORM}"));
    }
    let db = host.split_once('/').map_or("", |(_, db)| db);
    if !db.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("the db must be a number; {FORM}"));
    }
    let server = text.into_connection_info().map_err(|_| FORM)?;
    match server.addr() {
        ConnectionAddr::Tcp(..) => Ok(StoreUrl::Redis(server)),
        _ => Err(FORM.to_owned()),
    }
}
