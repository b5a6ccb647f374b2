//! TLS to a server, whose certificate is always verified.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpStream, time};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, pki_types::ServerName},
};

use super::{
    certificate::validity,
    crypto,
    last_good::LastGood,
    pem::{BROKEN, Pem},
    words::{self, is_end, of_handshake},
};
use crate::process::clock::unix_seconds;

pub use super::words::TlsAdvice;

/// Usual upper bound on a handshake. A Redis without TLS sends nothing in reply to one.
const HANDSHAKE_WITHIN: Duration = Duration::from_millis(800);

/// Whom to trust, and how to identify ourselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the CAs to trust, instead of those that the system trusts.
    pub ca: Option<PathBuf>,
    pub trusts_system: bool,
    /// Our certificate chain and its key, for servers that demand one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A problem with one of the [files](TlsFiles), or with the CAs of the system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct TlsFileProblem {
    pub part: TlsPart,
    pub problem: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPart {
    Ca,
    Certificate,
    Key,
    /// No file: what the system has.
    System,
}

impl TlsPart {
    /// The name of this part: of the CAs, our certificates, the key or the system.
    pub const fn among(self, [ca, certificate, key, system]: [&'static str; 4]) -> &'static str {
        match self {
            Self::Ca => ca,
            Self::Certificate => certificate,
            Self::Key => key,
            Self::System => system,
        }
    }

    const fn problem(self, problem: String) -> TlsFileProblem {
        TlsFileProblem { part: self, problem }
    }
}

#[derive(Debug, PartialEq)]
struct Contents {
    ca: Option<Pem>,
    trusts_system: bool,
    identity: Option<(Pem, Pem)>,
}

/// Makes TLS connections. The files are read at each connection; the configuration is made again only when
/// they have changed, so that sessions are resumed.
pub struct TlsClient {
    files: TlsFiles,
    /// The name that the certificate must have, instead of the host's.
    name: Option<String>,
    protocol: Option<&'static [u8]>,
    handshake_within: Duration,
    config: LastGood<Contents, Identified>,
    advice: &'static TlsAdvice,
}

#[derive(Debug)]
struct Identified {
    config: Arc<ClientConfig>,
    /// When our certificate ends, in seconds since 1970, if we have one.
    not_after: Option<i64>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient")
            .field("files", &self.files)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl TlsClient {
    /// TLS with these files. `name` is the name that all certificates must have, instead of the host's.
    pub const fn new(files: TlsFiles, name: Option<String>, advice: &'static TlsAdvice) -> Self {
        let config = LastGood::new(advice.files);
        Self { files, name, protocol: None, handshake_within: HANDSHAKE_WITHIN, config, advice }
    }

    /// Offers a protocol by ALPN, such as `h2`.
    #[must_use]
    pub const fn speaking(mut self, protocol: &'static [u8]) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// The same with another upper bound on a handshake.
    #[must_use]
    pub const fn with_handshake_within(mut self, time: Duration) -> Self {
        self.handshake_within = time;
        self
    }

    /// Whether another client makes the same connections from the same files.
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.files, &self.name, self.protocol) == (&other.files, &other.name, other.protocol)
    }

    pub fn check(&self) -> Result<(), TlsFileProblem> {
        self.config().map(drop)
    }

    /// Reads the files again, and returns whether their newest content is in use. If it is bad, that is logged once,
    /// and the last good one stays.
    pub fn renew(&self) -> bool {
        drop(self.config());
        self.config.is_newest()
    }

    /// Seconds until our certificate ends, negative after it; `None` without one.
    pub fn expires_in(&self) -> Option<i64> {
        let not_after = self.config.value().as_ref()?.not_after?;
        Some(not_after.saturating_sub(unix_seconds()))
    }

    /// Makes a connection to `host` secure.
    ///
    /// # Errors
    /// Errors of the files, the verification and the network, with what to try. It is
    /// [`Unsupported`](io::ErrorKind::Unsupported) if the server speaks another protocol within TLS.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        // Renewed each second beside the connections: a volume that hangs must not stop the thread that connects.
        let known = self.config.value().as_ref().map(|known| Arc::clone(&known.config));
        let config = known.map_or_else(|| self.config(), Ok).map_err(io::Error::other)?;
        let name = self.name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| io::Error::other(format!("`{name}` cannot be a certificate's name")))?;
        let handshake = TlsConnector::from(config).connect(name, stream);
        match time::timeout(self.handshake_within, handshake).await {
            Ok(Err(error)) if is_end(&error) => {
                let plain = self.advice.plain;
                let message = format!(
                    "the server ended the TLS handshake: does it speak TLS on this port? If not, {plain}"
                );
                Err(io::Error::new(error.kind(), message))
            }
            Ok(connected) => connected.map_err(|error| of_handshake(error, self.advice)),
            Err(_) => {
                let (within, plain) = (self.handshake_within, self.advice.plain);
                let message = format!(
                    "no TLS handshake within {within:?}: does the server speak TLS on this port? If not, {plain}"
                );
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
        }
    }

    fn config(&self) -> Result<Arc<ClientConfig>, TlsFileProblem> {
        let made = self.config.renew(self.files.read(), |contents| contents.make(self.protocol));
        Ok(Arc::clone(&made?.config))
    }
}

impl TlsFiles {
    fn read(&self) -> Result<Contents, TlsFileProblem> {
        let read = |part: TlsPart, path: &Path| Pem::read(path).map_err(|p| part.problem(p));
        let identity = match &self.identity {
            Some((chain, key)) => {
                Some((read(TlsPart::Certificate, chain)?, read(TlsPart::Key, key)?))
            }
            None => None,
        };
        let ca = self.ca.as_deref().map(|ca| read(TlsPart::Ca, ca)).transpose()?;
        Ok(Contents { ca, trusts_system: self.trusts_system || self.ca.is_none(), identity })
    }
}

impl Contents {
    fn make(&self, protocol: Option<&[u8]>) -> Result<Identified, TlsFileProblem> {
        let config = ClientConfig::builder_with_provider(crypto())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsPart::System.problem(error.to_string()))?
            .with_root_certificates(self.roots()?);
        let mut not_after = None;
        let mut config = match &self.identity {
            Some((chain, key)) => {
                let of_chain = |problem| TlsPart::Certificate.problem(problem);
                let of_key = |problem| TlsPart::Key.problem(problem);
                let (chain, pair) =
                    (chain.certificates().map_err(of_chain)?, key.key().map_err(of_key)?);
                not_after = chain.first().and_then(|ours| validity(ours)).map(|valid| valid.end);
                config
                    .with_client_auth_cert(chain, pair)
                    .map_err(|error| of_key(key.problem(&words::of_key(&error))))?
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = protocol.map(<[u8]>::to_vec).into_iter().collect();
        Ok(Identified { config: Arc::new(config), not_after })
    }

    fn roots(&self) -> Result<RootCertStore, TlsFileProblem> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            let of_ca = |problem| TlsPart::Ca.problem(problem);
            for certificate in ca.certificates().map_err(of_ca)? {
                roots.add(certificate).map_err(|_| of_ca(ca.problem(BROKEN)))?;
            }
        }
        if self.trusts_system {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if roots.is_empty() {
            return Err(TlsPart::System.problem("this system trusts no CA".to_owned()));
        }
        Ok(roots)
    }
}

pub fn host_of(addr: &str) -> &str {
    addr.rsplit_once(':').map_or(addr, |(host, _)| host).trim_matches(['[', ']'])
}

pub fn is_certificate_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}
