//! Certificates as an operator has them, in PEM files. A second [`Authority`] is one that nobody trusts.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType, date_time_ymd,
};

use super::prelude::*;

/// A certificate authority. Its folder holds what it issues, and ends with it.
pub struct Authority {
    /// Its own certificate.
    pub certificate: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
    issued: AtomicUsize,
}

/// A certificate, its private key, and the certificate of the authority that issued it.
#[derive(Clone, Debug)]
pub struct Issued {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Issued {
    /// The flags of a service that shows this certificate to its Redis.
    pub fn store_flags(&self) -> [&str; 6] {
        let [ca, certificate, key] =
            [&self.authority, &self.certificate, &self.key].map(|path| path.to_str().unwrap());
        ["--store-tls-ca", ca, "--store-tls-cert", certificate, "--store-tls-key", key]
    }

    /// Copies the files to a folder, under the names that Envoy Gateway gives them.
    pub fn install(&self, folder: &Path) {
        fs::copy(&self.key, folder.join("tls.key")).unwrap();
        fs::copy(&self.certificate, folder.join("tls.crt")).unwrap();
        fs::copy(&self.authority, folder.join("ca.crt")).unwrap();
    }
}

impl Authority {
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let mut params = named("the test's authority", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let certificate = folder.path().join("ca.pem");
        fs::write(&certificate, issuer.pem()).unwrap();
        Self { certificate, issuer, folder, issued: AtomicUsize::new(0) }
    }

    /// A server's certificate for these host names and IP addresses. Redis uses it as a client's too, towards
    /// other servers.
    pub fn server(&self, names: &[&str]) -> Issued {
        self.issue(server(names))
    }

    /// A server's certificate that was valid until 2020.
    pub fn expired_server(&self, names: &[&str]) -> Issued {
        let mut params = server(names);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.issue(params)
    }

    /// The certificate of another authority, for a host.
    pub fn authority_named(&self, name: &str) -> Issued {
        let mut params = server(&[name]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.issue(params)
    }

    /// A client's certificate.
    pub fn client(&self) -> Issued {
        self.issue(client())
    }

    /// A client's certificate that is valid until the beginning of this year.
    pub fn client_until(&self, year: i32) -> Issued {
        let mut params = client();
        params.not_after = date_time_ymd(year, 1, 1);
        self.issue(params)
    }

    /// An intermediate CA of this name, which has signed nothing.
    pub fn intermediate(&self, name: &str) -> Issued {
        let mut params = named(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.issue(params)
    }

    /// A client's certificate with these DNS names and URIs.
    pub fn client_named(&self, names: &[&str]) -> Issued {
        let mut params = client();
        params.subject_alt_names = names.iter().map(|name| subject_alt_name(name)).collect();
        self.issue(params)
    }

    fn issue(&self, params: CertificateParams) -> Issued {
        let pair = KeyPair::generate().unwrap();
        let number = self.issued.fetch_add(1, Ordering::Relaxed);
        let file = |name| self.folder.path().join(format!("{number}.{name}.pem"));
        let issued = Issued {
            authority: self.certificate.clone(),
            certificate: file("certificate"),
            key: file("key"),
        };
        let certificate = params.signed_by(&pair, &self.issuer).unwrap();
        fs::write(&issued.certificate, certificate.pem()).unwrap();
        fs::write(&issued.key, pair.serialize_pem()).unwrap();
        issued
    }
}

fn subject_alt_name(name: &str) -> SanType {
    let text = name.try_into().unwrap();
    if name.contains("://") { SanType::URI(text) } else { SanType::DnsName(text) }
}

fn server(names: &[&str]) -> CertificateParams {
    let mut params = named("server", names);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn client() -> CertificateParams {
    let mut params = named("client", &[]);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn named(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
