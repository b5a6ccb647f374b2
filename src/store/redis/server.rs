//! Where a Redis server is, and how it is entered.

use std::{fmt, path::PathBuf, sync::Arc};

use super::password::Password;
use crate::{printable::printable, tls::client::TlsClient};

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host name or IP address, without brackets.
    Tcp {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
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

/// What is the same for all servers of a topology.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The ACL user; without one, and with a password, the default user.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Password>,
    /// The number of the database.
    pub database: u32,
    /// TLS, if it is used.
    pub tls: Option<Arc<TlsClient>>,
}

impl Access {
    /// The user, for log lines.
    pub(super) fn user_in_words(&self) -> String {
        match &self.user {
            Some(user) => format!("the user `{}`", printable(user.as_bytes())),
            None => "the default user".to_owned(),
        }
    }
}

/// One server.
#[derive(Debug, Clone)]
pub struct Server {
    /// Where it listens.
    pub address: Address,
    /// How it is entered.
    pub access: Arc<Access>,
    /// The name that its certificate must have if that is not the address's host, such as the host name that
    /// a cluster announces beside an IP address. [`TlsClient`]'s own name has precedence.
    pub certificate_name: Option<String>,
}

impl Server {
    /// The server at `address`.
    pub const fn new(address: Address, access: Arc<Access>) -> Self {
        Self { address, access, certificate_name: None }
    }

    /// Another server that is entered in the same way.
    #[must_use]
    pub fn at(&self, address: Address) -> Self {
        Self::new(address, Arc::clone(&self.access))
    }

    /// The same server, whose certificate must have this name.
    #[must_use]
    pub fn named(self, certificate_name: Option<String>) -> Self {
        Self { certificate_name, ..self }
    }
}
