//! Who may use what: the domains of each client, and the tokens of the admin address. Both files are read again while
//! the service runs.

pub(super) mod clients;
mod right;
pub(super) mod tokens;

use std::path::{Path, PathBuf};

use self::clients::ClientDomains;
pub(crate) use self::right::Right;
pub use self::tokens::AdminTokens;
use crate::net::tls::{last_good::OfFile, server::Identity};

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

    /// The name of the client that gives it the right.
    pub(crate) fn check<'client>(
        &self,
        client: Option<&'client Identity>,
        domain: &str,
        right: Right,
    ) -> Result<&'client str, ForbiddenDomain> {
        let names = client.map_or(&[][..], |client| &client.0);
        let known = self.0.value();
        if let Some(name) = known.as_ref().and_then(|known| known.name_with(names, domain, right)) {
            return Ok(name);
        }
        let verb = if right == Right::Change { "change" } else { "use" };
        Err(ForbiddenDomain { domain: domain.chars().take(64).collect(), verb })
    }
}
