//! TLS by PEM files.

use std::path::{Path, PathBuf};
use std::{fmt::Display, io, sync::Arc};

use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::Error;

/// PEM files, which are read again for each connection, so they may be replaced.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// The authority of the service's certificate; by default the ones that the system trusts.
    pub ca: Option<PathBuf>,
    /// The certificate of this client, if the service requires one, with `key`.
    pub cert: Option<PathBuf>,
    /// The key of `cert`.
    pub key: Option<PathBuf>,
    /// The name in the service's certificate; by default the host of the target.
    pub server_name: Option<String>,
}

impl Tls {
    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let config = self.config().map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Reads the files.
    pub(crate) fn config(&self) -> Result<ClientConfig, Error> {
        let mistake = |field: &str, reason: &dyn Display| Error(format!("{field}: {reason}"));
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            for certificate in certificates(ca).map_err(|error| mistake("ca", &error))? {
                roots.add(certificate).map_err(|error| mistake("ca", &error))?;
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder =
            builder.map_err(|error| mistake("tls", &error))?.with_root_certificates(roots);
        let mut config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let certificates = certificates(cert).map_err(|error| mistake("cert", &error))?;
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| mistake("key", &format_args!("{}: {error}", key.display())))?;
                let config = builder.with_client_auth_cert(certificates, key);
                config.map_err(|error| mistake("cert, key", &error))?
            }
            _ => return Err(mistake("cert, key", &"must be given together")),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let named = |error: pem::Error| format!("{}: {error}", path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(named)?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(named)?;
    if certificates.is_empty() {
        return Err(format!("{} has no certificate in PEM form", path.display()));
    }
    Ok(certificates)
}
