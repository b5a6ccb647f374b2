//! A service with TLS.

use tokio_rustls::rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};

use super::{certificates::Issued, prelude::*};

/// A service with TLS and its authority. The certificates that it uses are copies, for tests that replace them.
pub struct Secured {
    pub service: Service,
    pub authority: Authority,
    pub folder: TempDir,
}

impl Secured {
    pub fn start(flags: &[&str]) -> Self {
        let (authority, folder) = (Authority::new(), TempDir::new().unwrap());
        install(&authority.server(&["127.0.0.1"]), folder.path());
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (certificate, key) = (path("certificate"), path("key"));
        let clients = authority.certificate.display().to_string();
        let with_tls = ["--tls-cert", &certificate, "--tls-key", &key];
        let flags: Vec<_> = flags.iter().map(|flag| flag.replace("CLIENTS", &clients)).collect();
        let flags: Vec<_> = with_tls.into_iter().chain(flags.iter().map(String::as_str)).collect();
        let service = Service::shop().flags(&flags).start();
        Self { service, authority, folder }
    }

    /// The file of the authority's certificate.
    pub fn authority(&self) -> &Path {
        &self.authority.certificate
    }

    pub fn call(&self, client: Option<&Issued>) -> Command {
        let mut call = tollkeeper();
        call.args(["call", "--addr", &self.service.grpc.to_string()]);
        add_tls(&mut call, &self.authority.certificate, client);
        call.args(["--domain", "shop", "user=a"]);
        call
    }

    /// The status and body of a GET over HTTPS; `None` if the service ends the connection.
    pub fn get(
        &self,
        address: SocketAddr,
        path: &str,
        header: &str,
        client: Option<&Issued>,
    ) -> Option<(u16, String)> {
        self.ask(address, &format!("GET {path}"), header, "", client)
    }

    pub fn ask(
        &self,
        address: SocketAddr,
        request: &str,
        header: &str,
        body: &str,
        client: Option<&Issued>,
    ) -> Option<(u16, String)> {
        let (status, _, body) = self.exchange(address, request, header, body, client)?;
        Some((status, body))
    }

    /// The status, the head and the body of an answer; `None` if the service ends the connection.
    pub fn exchange(
        &self,
        address: SocketAddr,
        request: &str,
        header: &str,
        body: &str,
        client: Option<&Issued>,
    ) -> Option<(u16, String, String)> {
        let stream = TcpStream::connect(address).unwrap();
        let mut stream = StreamOwned::new(self.connection(client), stream);
        let length = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: a.example\r\n{header}connection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, head.to_lowercase(), body.to_owned()))
    }

    pub fn connection(&self, client: Option<&Issued>) -> ClientConnection {
        let chain = client.map(|client| vec![certificate(&client.certificate)]);
        connection(self.config(client.zip(chain), ALL_VERSIONS))
    }

    /// How a client connects that has a certificate and sends this chain.
    pub fn config(
        &self,
        client: Option<(&Issued, Vec<CertificateDer<'static>>)>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.authority.certificate)).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match client {
            Some((client, chain)) => {
                let key = PrivateKeyDer::from_pem_file(&client.key).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
            None => config.with_no_client_auth(),
        })
    }
}

pub fn connection(config: Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    ClientConnection::new(config, name).unwrap()
}

pub fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

/// Puts a certificate and its key where a service looks for them.
pub fn install(issued: &Issued, folder: &Path) {
    fs::copy(&issued.key, folder.join("key")).unwrap();
    fs::copy(&issued.certificate, folder.join("certificate")).unwrap();
}

pub fn add_tls(command: &mut Command, ca: &Path, client: Option<&Issued>) {
    command.arg("--tls-ca").arg(ca);
    if let Some(Issued { certificate, key, .. }) = client {
        command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
    }
}
