//! Where a Redis server is, and how it is entered.

use std::{fmt, io, path::PathBuf, sync::Arc};

use futures_util::future::BoxFuture;
use tollkeeper_base::net::tls::{ByteStream, client::TlsClient};
use tollkeeper_engine::text::printable::printable;

use super::password::Password;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host name or IP address, without brackets.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// `host:port`, `[v6]:port`, or a path.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// An ACL user. It is shown without a name that may be a part of a password.
#[derive(Clone, PartialEq, Eq)]
pub enum AclUser {
    /// The user that a URL or a setting names.
    Named(String),
    /// What is before the first colon of a variable with `user:password` or a password, which may have a colon too.
    BesidePassword { name: String, variable: &'static str },
}

impl AclUser {
    /// The name, which must not be shown.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Named(name) | Self::BesidePassword { name, .. } => name,
        }
    }
}

/// For log lines.
impl fmt::Display for AclUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, "the user `{}`", printable(name.as_bytes())),
            Self::BesidePassword { variable, .. } => write!(f, "the user in {variable}"),
        }
    }
}

impl fmt::Debug for AclUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Opens connections in place of the system, on a network that is simulated.
#[derive(Clone)]
pub struct Dial(Arc<dyn Fn(&Address) -> Dialled + Send + Sync>);

type Dialled = BoxFuture<'static, io::Result<Box<dyn ByteStream>>>;

impl Dial {
    pub fn new(open: impl Fn(&Address) -> Dialled + Send + Sync + 'static) -> Self {
        Self(Arc::new(open))
    }

    pub(crate) fn open(&self, address: &Address) -> Dialled {
        (self.0)(address)
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

/// What is the same for all servers of a topology.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The ACL user; without one, and with a password, the default user.
    pub user: Option<AclUser>,
    pub password: Option<Password>,
    pub database: u32,
    pub tls: Option<Arc<TlsClient>>,
    /// How connections are opened; `None` for TCP and Unix sockets.
    pub dial: Option<Dial>,
}

impl Access {
    /// The user, for log lines.
    pub(crate) fn user_in_words(&self) -> String {
        self.user.as_ref().map_or_else(|| "the default user".to_owned(), ToString::to_string)
    }
}

#[derive(Debug, Clone)]
pub struct Server {
    pub address: Address,
    pub access: Arc<Access>,
    /// The name that its certificate must have if that is not the address's host, such as the host name that
    /// a cluster announces beside an IP address. [`TlsClient`]'s own name has precedence.
    pub certificate_name: Option<String>,
}

impl Server {
    pub const fn new(address: Address, access: Arc<Access>) -> Self {
        Self { address, access, certificate_name: None }
    }

    /// Another server that is entered in the same way.
    #[must_use]
    pub fn at(&self, address: Address) -> Self {
        Self::new(address, Arc::clone(&self.access))
    }

    /// Whether `newer`, at the same address, is not known to have another certificate.
    pub(crate) fn is_entered_like(&self, newer: &Self) -> bool {
        newer.certificate_name.is_none() || newer.certificate_name == self.certificate_name
    }

    /// The same server, whose certificate must have this name.
    #[must_use]
    pub fn named(self, certificate_name: Option<String>) -> Self {
        Self { certificate_name, ..self }
    }
}
