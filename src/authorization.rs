//! Who may use what: the domains of each client, and the tokens of the admin address. Both files are read again while
//! the service runs.

pub(super) mod clients;
mod right;
pub(super) mod tokens;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use self::clients::ClientDomains;
pub(crate) use self::right::Right;
pub use self::tokens::AdminTokens;
use crate::net::tls::{last_good::LastGood, server::Identity};

/// A value made of one file, renewed when the file changes.
struct OfFile<T> {
    path: PathBuf,
    read: fn(&Path) -> Result<T, String>,
    last_good: LastGood<T, Arc<T>>,
    current: ArcSwap<T>,
    /// The content of the last read.
    seen: Mutex<Result<T, String>>,
}

impl<T: Clone + PartialEq> OfFile<T> {
    fn load(
        name: &'static str,
        path: PathBuf,
        read: fn(&Path) -> Result<T, String>,
    ) -> Result<Self, String> {
        let last_good = LastGood::new(name);
        let seen = Mutex::new(read(&path));
        let content = seen.lock().clone();
        let first = last_good.renew(content, |value| Ok(Arc::new(value.clone())))?;
        Ok(Self { path, read, last_good, current: ArcSwap::new(first), seen })
    }

    /// Reads the file again, and returns whether its content is in use. New content is taken once two consecutive reads
    /// have found the same: a file may be half written.
    fn renew(&self) -> bool {
        let content = (self.read)(&self.path);
        let settled = *self.seen.lock() == content;
        self.seen.lock().clone_from(&content);
        if !settled {
            return self.last_good.is_newest();
        }
        if let Ok(value) = self.last_good.renew(content, |value| Ok(Arc::new(value.clone()))) {
            self.current.store(value);
        }
        self.last_good.is_newest()
    }
}

/// The value may be secret.
impl<T> fmt::Debug for OfFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.path, f)
    }
}

#[derive(Debug)]
pub struct DomainAccess(OfFile<ClientDomains>);

/// A client named a domain that it may not use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("domain: this client may not {verb} `{domain}`")]
pub struct ForbiddenDomain {
    domain: String,
    verb: &'static str,
}

impl DomainAccess {
    pub fn load(path: PathBuf) -> Result<Self, String> {
        let read = |path: &Path| ClientDomains::read(path).map_err(|problem| problem.to_string());
        OfFile::load("the domains of clients", path, read).map(Self)
    }

    /// Reads the file again. A bad one is logged once, and the last good one stays. Returns whether the file is in use.
    pub fn renew(&self) -> bool {
        self.0.renew()
    }

    pub(crate) fn check(
        &self,
        client: Option<&Identity>,
        domain: &str,
        right: Right,
    ) -> Result<(), ForbiddenDomain> {
        let names = client.map_or(&[][..], |client| &client.0);
        if self.0.current.load().allow(names, domain, right) {
            return Ok(());
        }
        let verb = if right == Right::Change { "change" } else { "use" };
        Err(ForbiddenDomain { domain: domain.chars().take(64).collect(), verb })
    }
}
