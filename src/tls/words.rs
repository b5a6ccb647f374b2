//! Errors of connections in words that say what to change.

use std::{error::Error, io};

use tokio_rustls::rustls::{self, AlertDescription, CertificateError, InvalidMessage};

use crate::printable::printable;

/// An error of a TLS connection in words that name what to change; other errors are returned as they are.
pub(crate) fn in_words(error: io::Error) -> io::Error {
    match sentence_of(&error) {
        Some(sentence) => io::Error::new(error.kind(), sentence),
        None => error,
    }
}

/// The root cause of an error in words: the message of an outer one is often only "transport error".
pub(crate) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let sentence = error.downcast_ref::<io::Error>().and_then(sentence_of);
    match (sentence, error.source()) {
        (Some(sentence), _) => sentence,
        (None, Some(source)) => root_cause(source),
        (None, None) => printable(error.to_string().as_bytes()),
    }
}

fn sentence_of(error: &io::Error) -> Option<String> {
    error.get_ref()?.downcast_ref::<rustls::Error>().and_then(sentence)
}

/// Whether an error says that the other side has ended the connection. Which one it is depends on what it had not read.
pub(crate) fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
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
            CertificateError::Other(error) => match error.0.to_string().as_str() {
                "CaUsedAsEndEntity" => {
                    "the server's certificate is a CA certificate, not a server certificate"
                        .to_owned()
                }
                name => format!("the server's certificate is not valid ({name})"),
            },
            error => format!("the server's certificate is not valid: {error}"),
        },
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not speak TLS on this port".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the server speaks another protocol on this port (ALPN)".to_owned()
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
