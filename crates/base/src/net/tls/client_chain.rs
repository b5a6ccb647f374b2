//! The bounds on what a client shows as its certificate. Anyone who reaches the port may send a chain, and each way through it
//! costs a check of a signature, so they are checked before it is. Whether it may be trusted is rustls' affair.

use std::{collections::HashSet, sync::Arc};

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use x509_parser::parse_x509_certificate;

use super::certificate::names;

const CERTIFICATES_MAX: usize = 8;
const CHAIN_BYTES_MAX: usize = 16 << 10;
/// As many as public CAs put into one certificate.
const NAMES_MAX: usize = 100;

/// Why a chain is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChainProblem {
    #[error("has over 8 certificates in its chain")]
    Long,
    #[error("takes over 16 KiB with its chain")]
    Large,
    #[error("has over 100 DNS names and URIs")]
    Names,
    #[error("has a CA certificate in its chain that cannot be read")]
    Unreadable,
    /// With `n` of them, there are up to `n!` ways through the chain.
    #[error("has two CA certificates of the same name in its chain")]
    SameName,
}

/// Verifies the certificates of clients, within these bounds.
#[derive(Debug)]
pub(super) struct BoundedChains(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for BoundedChains {
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(problem) = problem(certificate, chain) {
            return Err(CertificateError::Other(OtherError(Arc::new(problem))).into());
        }
        self.0.verify_client_cert(certificate, chain, now)
    }

    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

fn problem(certificate: &[u8], chain: &[CertificateDer<'_>]) -> Option<ChainProblem> {
    let bytes = certificate.len() + chain.iter().map(|one| one.len()).sum::<usize>();
    if chain.len() >= CERTIFICATES_MAX {
        return Some(ChainProblem::Long);
    }
    if bytes > CHAIN_BYTES_MAX {
        return Some(ChainProblem::Large);
    }
    if names(certificate).len() > NAMES_MAX {
        return Some(ChainProblem::Names);
    }
    let mut subjects = HashSet::new();
    for one in chain {
        // What this parser does not read, rustls may.
        let Ok((_, ca)) = parse_x509_certificate(one) else {
            return Some(ChainProblem::Unreadable);
        };
        if !subjects.insert(ca.subject().as_raw().to_owned()) {
            return Some(ChainProblem::SameName);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};

    use super::*;

    fn signed(names: Vec<String>, ca: Option<&str>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(names).unwrap();
        if let Some(name) = ca {
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn leaf(names: usize) -> CertificateDer<'static> {
        signed((0..names).map(|number| format!("{number}.example")).collect(), None)
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        use ChainProblem::{Large, Long, Names, SameName, Unreadable};
        let cas: Vec<_> =
            (0..8).map(|number| signed(Vec::new(), Some(&number.to_string()))).collect();
        let [first, .., last] = &cas[..] else { panic!("there are 8") };
        let of_same_name = signed(Vec::new(), Some("7"));
        let junk = |bytes| CertificateDer::from(vec![0; bytes]);
        let rest = CHAIN_BYTES_MAX - leaf(1).len();
        for (names, chain, expected) in [
            (100, &[][..], None),
            (101, &[][..], Some(Names)),
            (1, &cas[..7], None),
            (1, &cas[..], Some(Long)),
            (1, &[first.clone(), last.clone(), of_same_name], Some(SameName)),
            (1, &[junk(rest + 16)], Some(Large)),
            (1, &[junk(rest - 16)], Some(Unreadable)),
        ] {
            assert_eq!(problem(&leaf(names), chain), expected, "{names}");
        }
    }
}
