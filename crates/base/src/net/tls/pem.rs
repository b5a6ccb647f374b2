//! Certificates and keys in PEM files.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject as _},
};

use crate::text::printable::printable_start;

/// A PEM file as it was read. Two are equal if they hold the same bytes of the same file.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// The bytes may hold a private key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pem").field(&self.path).finish()
    }
}

/// The message about a certificate file whose content cannot be read.
pub(super) const BROKEN: &str = "a certificate in it cannot be read";

impl Pem {
    pub fn read(path: &Path) -> Result<Self, String> {
        match fs::read(path) {
            Ok(bytes) => Ok(Self { path: path.to_owned(), bytes }),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let certificates =
            CertificateDer::pem_slice_iter(&self.bytes).collect::<Result<Vec<_>, _>>();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) => Err(self.problem("no certificate in PEM format")),
            Err(error) => Err(self.problem(&format!("not a PEM file: {}", in_words(&error)))),
        }
    }

    pub fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(&self.bytes)
            .map_err(|_| self.problem("no private key in PEM format without a passphrase"))
    }

    pub fn problem(&self, what: &str) -> String {
        format!("{}: {what}", self.path.display())
    }
}

fn in_words(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("it ends before the line `-----END {}-----`", printable_start(end_marker, 64))
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("the line `{}` must end with -----", printable_start(line, 64))
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_said_in_words() {
        let problem = |text: &str| {
            Pem { path: "ca.pem".into(), bytes: text.into() }.certificates().unwrap_err()
        };
        for (text, expected) in [
            ("", "no certificate in PEM format"),
            (
                "-----BEGIN CERTIFICATE-----\nMIIB\n",
                "not a PEM file: it ends before the line `-----END CERTIFICATE-----`",
            ),
            (
                "-----BEGIN CERTIFICATE--\nMIIB\n",
                "not a PEM file: the line `-----BEGIN CERTIFICATE--` must end with -----",
            ),
        ] {
            assert_eq!(problem(text), format!("ca.pem: {expected}"), "{text}");
        }
    }
}
