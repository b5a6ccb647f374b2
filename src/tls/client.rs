//! TLS to a server, whose certificate is always verified.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use tokio::{net::TcpStream, time};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore,
        pki_types::ServerName,
    },
};

use super::{crypto, last_good::LastGood, pem::Pem};

/// Upper bound on a handshake. A Redis without TLS says nothing when it is sent one.
const HANDSHAKE_WITHIN: Duration = Duration::from_millis(800);

/// Whom to trust, and how to identify ourselves.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// The certificates of the CAs to trust, instead of those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Our certificate chain and its key, for servers that demand one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The files' contents.
#[derive(Debug, PartialEq)]
struct Contents {
    ca: Option<Pem>,
    identity: Option<(Pem, Pem)>,
}

/// Makes TLS connections. The files are read at each connection; the configuration is made again only when
/// they have changed, so that sessions are resumed.
pub struct TlsClient {
    files: TlsFiles,
    /// The name that the certificate must have, instead of the host's.
    name: Option<String>,
    config: LastGood<Contents, Arc<ClientConfig>>,
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
    pub const fn new(files: TlsFiles, name: Option<String>) -> Self {
        Self { files, name, config: LastGood::new("the TLS files of Redis") }
    }

    /// Whether the files can be used now.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub fn check(&self) -> Result<(), String> {
        self.config().map(drop)
    }

    /// Makes a connection to `host` secure.
    ///
    /// # Errors
    /// Those of the files, of the verification, and of the network, in words.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.config().map_err(io::Error::other)?;
        let name = self.name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| io::Error::other(format!("`{name}` cannot be a certificate's name")))?;
        let handshake = TlsConnector::from(config).connect(name, stream);
        match time::timeout(HANDSHAKE_WITHIN, handshake).await {
            Ok(connected) => connected.map_err(in_words),
            Err(_) => {
                let message = "no TLS handshake in time: does the server speak TLS on this port?";
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
        }
    }

    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        self.config.renew(self.files.read(), Contents::config)
    }
}

impl TlsFiles {
    fn read(&self) -> Result<Contents, String> {
        let identity = match &self.identity {
            Some((chain, key)) => Some((Pem::read(chain)?, Pem::read(key)?)),
            None => None,
        };
        Ok(Contents { ca: self.ca.as_deref().map(Pem::read).transpose()?, identity })
    }
}

impl Contents {
    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let config = ClientConfig::builder_with_provider(crypto())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(self.roots()?);
        let config = match &self.identity {
            Some((chain, key)) => {
                config.with_client_auth_cert(chain.certificates()?, key.key()?).map_err(
                    |error| key.problem(&format!("does not fit the certificate: {error}")),
                )?
            }
            None => config.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            for certificate in ca.certificates()? {
                roots.add(certificate).map_err(|error| ca.problem(&error.to_string()))?;
            }
            return Ok(roots);
        }
        let (added, _) =
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            return Err("this system trusts no CA".to_owned());
        }
        Ok(roots)
    }
}

/// Whether a certificate can be for this name.
pub fn is_certificate_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

/// An error of a TLS connection in words that name what to change; other errors are returned as they are.
pub fn in_words(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause.and_then(sentence) {
        Some(sentence) => io::Error::new(error.kind(), sentence),
        None => error,
    }
}

/// A name without rustls's word for its kind: `DnsName("h")` and `IpAddress(::1)`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

fn sentence(error: &rustls::Error) -> Option<String> {
    Some(match error {
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::NotValidForNameContext { expected, presented } => {
                let names = match presented.as_slice() {
                    [] => "no name".to_owned(),
                    names => names.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
                };
                format!("the server's certificate is for {names}, not for {}", expected.to_str())
            }
            // The signature is bad if another CA has the name of one that is trusted.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the server's certificate is not signed by a trusted CA".to_owned()
            }
            error => format!("the server's certificate is not valid: {error}"),
        },
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not speak TLS on this port".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server demands a client certificate".to_owned()
        }
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        ) => format!("the server refused our client certificate ({error})"),
        _ => return None,
    })
}
