//! TLS of the commands that are clients of a service.

use std::{path::PathBuf, time::Duration};

use super::address::UsesTls;
use crate::net::tls::client::{TlsAdvice, TlsClient, TlsFiles};

const ADVICE: TlsAdvice = TlsAdvice {
    files: "the TLS files",
    trust: "give its CA by --tls-ca",
    name: "connect to one of its names",
    plain: "leave out --tls-ca",
};

/// Upper bound on a handshake, below that on the whole exchange.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(3);

/// The flags with which a command connects by TLS.
#[derive(Debug, clap::Args)]
pub(super) struct TlsFlags {
    /// PEM file with the CAs to trust: connects by TLS
    #[arg(long, value_name = "PATH")]
    tls_ca: Option<PathBuf>,
    /// PEM file with the client certificate and its chain, for --tls-ca
    #[arg(long, value_name = "PATH", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// PEM file with the key of the client certificate
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TlsFlags {
    /// TLS for a protocol such as `h2`, if the flags ask for TLS. `name` is what the certificate must have, instead of the host.
    pub(super) fn client(
        &self,
        protocol: &'static [u8],
        name: Option<&str>,
    ) -> Result<Option<TlsClient>, String> {
        let Some(ca) = self.tls_ca.clone() else { return Ok(None) };
        let identity = self.tls_cert.clone().zip(self.tls_key.clone());
        let files = TlsFiles { ca: Some(ca), identity, ..TlsFiles::default() };
        let client = TlsClient::new(files, name.map(str::to_owned), &ADVICE)
            .with_handshake_within(HANDSHAKE_WITHIN)
            .speaking(protocol);
        client.check().map_err(|problem| {
            let flag = problem.part.among(["--tls-ca", "--tls-cert", "--tls-key", "--tls-ca"]);
            format!("{flag}: {problem}")
        })?;
        Ok(Some(client))
    }
}

/// Whether a command connects by TLS.
pub(super) const fn uses_tls<T>(client: Option<&T>) -> UsesTls {
    match client {
        Some(_) => UsesTls::Yes,
        None => UsesTls::No,
    }
}
