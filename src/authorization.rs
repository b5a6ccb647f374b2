//! Who may use what: the domains of each client, and the token of the admin address. Both files are read again while
//! the service runs.

pub(super) mod clients;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use sha2::{Digest as _, Sha256};

use self::clients::ClientDomains;
use crate::net::tls::{last_good::LastGood, server::Identity};

/// A value made of one file, renewed when the file changes.
struct OfFile<T> {
    path: PathBuf,
    read: fn(&Path) -> Result<T, String>,
    last_good: LastGood<T, Arc<T>>,
    current: ArcSwap<T>,
}

impl<T: Clone + PartialEq> OfFile<T> {
    fn load(
        name: &'static str,
        path: PathBuf,
        read: fn(&Path) -> Result<T, String>,
    ) -> Result<Self, String> {
        let last_good = LastGood::new(name);
        let first = last_good.renew(read(&path), |value| Ok(Arc::new(value.clone())))?;
        Ok(Self { path, read, last_good, current: ArcSwap::new(first) })
    }

    /// Reads the file again, and returns whether its content is in use.
    fn renew(&self) -> bool {
        let content = (self.read)(&self.path);
        if let Ok(value) = self.last_good.renew(content, |value| Ok(Arc::new(value.clone()))) {
            self.current.store(value);
        }
        self.last_good.is_newest()
    }
}

/// The domains that each client may use.
pub struct DomainAccess(OfFile<ClientDomains>);

/// A client named a domain that it may not use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("domain: this client may not ask about `{0}`")]
pub struct ForbiddenDomain(pub String);

impl fmt::Debug for DomainAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DomainAccess").field(&self.0.path).finish()
    }
}

impl DomainAccess {
    /// The domains of the clients in this file.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub fn load(path: PathBuf) -> Result<Self, String> {
        let read = |path: &Path| ClientDomains::read(path).map_err(|problem| problem.to_string());
        OfFile::load("the domains of clients", path, read).map(Self)
    }

    /// Reads the file again. A bad one is logged once, and the last good one stays. Returns whether the file is in use.
    pub fn renew(&self) -> bool {
        self.0.renew()
    }

    /// Whether this client may use a domain.
    ///
    /// # Errors
    /// If it may not.
    pub(crate) fn check(
        &self,
        client: Option<&Identity>,
        domain: &str,
    ) -> Result<(), ForbiddenDomain> {
        let names = client.map_or(&[][..], |client| &client.0);
        if self.0.current.load().allow(names, domain) {
            return Ok(());
        }
        Err(ForbiddenDomain(domain.chars().take(64).collect()))
    }
}

/// The token that clients of the admin address show. Only its digest is kept.
pub struct AdminToken(OfFile<TokenDigest>);

type TokenDigest = [u8; 32];

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AdminToken").field(&self.0.path).finish()
    }
}

/// The shortest token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;

impl AdminToken {
    /// The token in this file, without the spaces around it.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub fn load(path: PathBuf) -> Result<Self, String> {
        OfFile::load("the token of the admin address", path, read_token).map(Self)
    }

    /// Reads the file again. A bad one is logged once, and the last good one stays. Returns whether the file is in use.
    pub fn renew(&self) -> bool {
        self.0.renew()
    }

    /// Whether a client has shown this token. Digests are compared, in a time that does not depend on them.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        let (ours, shown) = (self.0.current.load(), digest(shown));
        ours.iter().zip(shown).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
    }
}

fn read_token(path: &Path) -> Result<TokenDigest, String> {
    let problem = |what: &str| format!("{}: {what}", path.display());
    let text = fs::read_to_string(path).map_err(|error| problem(&error.to_string()))?;
    let token = text.trim();
    if token.len() < TOKEN_BYTES_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(problem("the token must be at least 16 visible ASCII characters"));
    }
    Ok(digest(token.as_bytes()))
}

fn digest(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}
