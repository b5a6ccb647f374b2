//! TLS of our listeners. The files are read again while the service runs; connections keep what they began with.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{io, net::TcpStream, time};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        server::{NoServerSessionStorage, WebPkiClientVerifier},
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    ByteStream,
    certificate::{names, validity},
    client_chain::BoundedChains,
    crypto,
    last_good::LastGood,
    pem::{BROKEN, Pem},
    words,
};
use crate::process::clock::unix_seconds;

/// What a client can make us hold by an unfinished handshake, in bytes: rustls refuses longer messages.
const HANDSHAKE_BYTES: usize = 64 << 10;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const AFTER_STOP: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct ServerFiles {
    /// Our certificate, and the chain to its CA.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The CAs of clients. With it, clients need a certificate.
    pub client_ca: Option<PathBuf>,
}

/// What a listener's clients speak, and whether each needs a certificate if there is a CA of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsUse {
    /// HTTP/2; a certificate is needed.
    Grpc,
    /// HTTP/1; a certificate is optional, since probes have none.
    Http,
    /// HTTP/1; a certificate is needed.
    Admin,
}

#[derive(Clone, PartialEq)]
struct ServerContents {
    certificate: Pem,
    key: Pem,
    client_ca: Option<Pem>,
}

struct ServerConfigs {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    admin: Arc<ServerConfig>,
    /// When our certificate ends, in seconds since 1970.
    not_after: i64,
}

pub struct TlsServer {
    files: ServerFiles,
    configs: LastGood<ServerContents, ServerConfigs>,
}

impl std::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsServer").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Who a client is, by its certificate: DNS names and URIs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity(pub Arc<[String]>);

impl TlsServer {
    pub fn load(files: ServerFiles) -> Result<Self, String> {
        let configs = LastGood::new("the TLS files of the listeners");
        configs.renew(files.read(), ServerContents::configs)?;
        Ok(Self { files, configs })
    }

    pub const fn identifies_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Reads the files again. A change applies once two reads in a row find the same content. Bad files are logged once, and
    /// the last good ones stay in use. Returns whether the files are in use.
    pub fn renew(&self) -> bool {
        self.configs.renew_settled(self.files.read(), ServerContents::configs)
    }

    /// Seconds until our certificate ends, negative after it.
    pub fn expires_in(&self) -> i64 {
        self.current().not_after.saturating_sub(unix_seconds())
    }

    fn current(&self) -> Arc<ServerConfigs> {
        self.configs.value().clone().expect("they are made when it is loaded")
    }

    /// Makes a connection secure, and identifies its client.
    ///
    /// # Errors
    /// Errors of the network, of TLS, and of the client's certificate; also if it takes over 10 s.
    async fn accept(&self, stream: TcpStream, listener: TlsUse) -> io::Result<SecuredStream> {
        let configs = self.current();
        let config = match listener {
            TlsUse::Grpc => &configs.grpc,
            TlsUse::Http => &configs.http,
            TlsUse::Admin => &configs.admin,
        };
        let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream);
        let stream = time::timeout(HANDSHAKE_WITHIN, handshake).await??;
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let identity = certificate.map(|certificate| Identity(names(certificate).into()));
        Ok(SecuredStream { stream: Box::new(stream), identity })
    }
}

pub struct SecuredStream {
    pub stream: Box<dyn ByteStream>,
    /// Who the client is, if it has shown a certificate.
    pub identity: Option<Identity>,
}

/// How a listener makes its connections secure, if it does.
#[derive(Debug, Clone)]
pub struct ListenerTls(Option<(Arc<TlsServer>, TlsUse)>);

impl ListenerTls {
    pub const fn none() -> Self {
        Self(None)
    }

    /// TLS for one listener; `None` is plain TCP.
    pub fn new(server: Option<Arc<TlsServer>>, listener: TlsUse) -> Self {
        Self(server.map(|server| (server, listener)))
    }

    /// What one handshake may take, in bytes.
    pub const fn handshake_bytes(&self) -> usize {
        if self.0.is_some() { HANDSHAKE_BYTES } else { 0 }
    }

    /// The connection as it is to be served.
    ///
    /// # Errors
    /// Errors of the handshake; also if it has not ended 2 s after `stop` is cancelled.
    pub async fn secure(
        &self,
        stream: TcpStream,
        stop: &CancellationToken,
    ) -> io::Result<SecuredStream> {
        match &self.0 {
            Some((server, listener)) => tokio::select! {
                accepted = server.accept(stream, *listener) => accepted,
                // Connections are still accepted for a moment after the stop.
                () = async { stop.cancelled().await; time::sleep(AFTER_STOP).await } => {
                    Err(io::ErrorKind::Interrupted.into())
                }
            },
            None => Ok(SecuredStream { stream: Box::new(stream), identity: None }),
        }
    }
}

impl ServerFiles {
    fn read(&self) -> Result<ServerContents, String> {
        Ok(ServerContents {
            certificate: Pem::read(&self.certificate)?,
            key: Pem::read(&self.key)?,
            client_ca: self.client_ca.as_deref().map(Pem::read).transpose()?,
        })
    }
}

impl ServerContents {
    fn configs(&self) -> Result<ServerConfigs, String> {
        let chain = self.certificate.certificates()?;
        let valid = chain.first().and_then(|certificate| validity(certificate));
        let valid = valid.ok_or_else(|| {
            self.certificate.problem("not a certificate, or its validity cannot be read")
        })?;
        let now = unix_seconds();
        if now >= valid.end {
            return Err(self.certificate.problem("the certificate has expired"));
        }
        if now < valid.start {
            return Err(self.certificate.problem("the certificate is not valid yet"));
        }
        Ok(ServerConfigs {
            grpc: self.config(true, b"h2")?,
            http: self.config(false, b"http/1.1")?,
            admin: self.config(true, b"http/1.1")?,
            not_after: valid.end,
        })
    }

    fn config(
        &self,
        needs_certificate: bool,
        protocol: &[u8],
    ) -> Result<Arc<ServerConfig>, String> {
        let config = ServerConfig::builder_with_provider(crypto())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                for certificate in ca.certificates()? {
                    roots.add(certificate).map_err(|_| ca.problem(BROKEN))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), crypto());
                let verifier = if needs_certificate {
                    verifier.build()
                } else {
                    verifier.allow_unauthenticated().build()
                };
                let verifier = verifier.map_err(|error| ca.problem(&error.to_string()))?;
                config.with_client_cert_verifier(Arc::new(BoundedChains(verifier)))
            }
        };
        let mut config = config
            .with_single_cert(self.certificate.certificates()?, self.key.key()?)
            .map_err(|error| self.key.problem(&words::of_key(&error)))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        // A session that is resumed would outlive its client's certificate, and the CA.
        if self.client_ca.is_some() {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }
}
