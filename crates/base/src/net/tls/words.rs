//! Errors of connections, as sentences that say what to change.

use std::{error::Error, io};

use jiff::Timestamp;
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, pki_types::UnixTime};

use super::client_chain::ChainProblem;
use crate::text::printable::printable;

/// What to try with a certificate whose names, some with wildcards, do not fit.
const TOO_WIDE: &str = "use a certificate with the server's own name: a wildcard counts only as a whole label before at least \
                        two others, as in *.example.com";

/// What to try with a CA certificate in the place of a server's.
const NOT_OF_CA: &str =
    "use one that a CA has signed, or a self-signed one with basicConstraints=CA:FALSE";

/// What a user can change about the TLS of a connection, in the terms of its settings.
#[derive(Debug)]
pub struct TlsAdvice {
    /// The files, at the beginning of log lines: `the TLS files of Redis`.
    pub files: &'static str,
    pub trust: &'static str,
    /// How to expect another name in the certificate.
    pub name: &'static str,
    pub plain: &'static str,
}

/// An error of a TLS connection as a sentence; other errors are returned as they are.
pub fn in_words(error: io::Error) -> io::Error {
    match of_rustls(&error) {
        Some(cause) => io::Error::new(error.kind(), sentence(cause)),
        None => error,
    }
}

/// The error of a handshake as a sentence, with what to try. It is [`Unsupported`](io::ErrorKind::Unsupported) if the server
/// speaks another protocol within TLS.
pub(super) fn of_handshake(error: io::Error, advice: &TlsAdvice) -> io::Error {
    let Some(cause) = of_rustls(&error) else { return error };
    let kind = match cause {
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            io::ErrorKind::Unsupported
        }
        _ => error.kind(),
    };
    let sentence = sentence(cause);
    match advice.on(cause) {
        Some(advice) => io::Error::new(kind, format!("{sentence}; {advice}")),
        None => io::Error::new(kind, sentence),
    }
}

/// Why a client's handshake with us has failed, as a sentence for our log.
pub fn of_client(error: &io::Error) -> String {
    match of_rustls(error) {
        Some(rustls::Error::InvalidCertificate(error)) => of_certificate("client", error),
        Some(rustls::Error::NoCertificatesPresented) => "the client has no certificate".to_owned(),
        Some(rustls::Error::NoApplicationProtocol) => {
            "the client speaks another protocol than this port".to_owned()
        }
        Some(rustls::Error::AlertReceived(alert)) => {
            format!("the client refused the TLS connection ({alert:?})")
        }
        Some(error) if is_not_tls(error) => "the client does not speak TLS".to_owned(),
        Some(error) => format!("TLS failed: {error}"),
        None if error.kind() == io::ErrorKind::TimedOut => {
            "the client did not finish the handshake in 10 s".to_owned()
        }
        None => printable(error.to_string().as_bytes()),
    }
}

/// The root cause of an error as a sentence: the message of an outer one is often only "transport error".
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let cause = error.downcast_ref::<io::Error>().and_then(of_rustls);
    match (cause, error.source()) {
        (Some(cause), _) => sentence(cause),
        (None, Some(source)) => root_cause(source),
        (None, None) => printable(error.to_string().as_bytes()),
    }
}

/// Why a key cannot be used with its certificate.
pub(super) fn of_key(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "does not fit the certificate".to_owned(),
        error => format!("cannot be used: {error}"),
    }
}

/// Whether the error is that the other side has ended the connection. Which one it is depends on what it had not read.
pub fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

pub(crate) fn demands_certificate(error: &io::Error) -> bool {
    let demanded = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
    of_rustls(error) == Some(&demanded)
}

fn of_rustls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

impl TlsAdvice {
    /// What to change after this error.
    fn on(&self, error: &rustls::Error) -> Option<&'static str> {
        use CertificateError::{BadSignature, NotValidForNameContext, UnknownIssuer};
        match error {
            rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => Some(self.trust),
            rustls::Error::InvalidCertificate(NotValidForNameContext { presented, .. }) => {
                let has_wildcard = presented.iter().any(|name| name.contains('*'));
                Some(if has_wildcard { TOO_WIDE } else { self.name })
            }
            rustls::Error::InvalidCertificate(error) if is_of_ca(error) => Some(NOT_OF_CA),
            error if is_not_tls(error) => Some(self.plain),
            _ => None,
        }
    }
}

/// Whether a server has shown a CA certificate, as a self-signed one often is.
fn is_of_ca(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(error) if error.0.to_string() == "CaUsedAsEndEntity")
}

const fn is_not_tls(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidMessage(_)
            | rustls::Error::InappropriateMessage { .. }
            | rustls::Error::InappropriateHandshakeMessage { .. }
    )
}

fn sentence(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(error) => of_certificate("server", error),
        rustls::Error::AlertReceived(alert) => of_alert(*alert),
        error if is_not_tls(error) => "the server does not speak TLS on this port".to_owned(),
        error => format!("TLS failed: {error}"),
    }
}

fn of_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::NoApplicationProtocol => {
            "the server speaks another protocol on this port".to_owned()
        }
        AlertDescription::CertificateRequired => {
            "the server demands a client certificate".to_owned()
        }
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::DecryptError => {
            format!("the server refused our client certificate ({alert:?})")
        }
        alert => format!("the server refused the TLS connection ({alert:?})"),
    }
}

/// A name without rustls's word for its kind: `DnsName("h")` and `IpAddress(::1)`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

fn of_certificate(holder: &str, error: &CertificateError) -> String {
    let problem = match error {
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names = match presented.as_slice() {
                [] => "no name".to_owned(),
                names => names.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
            };
            format!("is for {names}, not for {}", expected.to_str())
        }
        // The signature is bad if another CA has the name of one that is trusted.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by a trusted CA".to_owned()
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("expired at {}", date(*not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("is not valid before {}", date(*not_before))
        }
        error if is_of_ca(error) => format!("is a CA certificate, not a {holder} certificate"),
        CertificateError::Other(error) if error.0.is::<ChainProblem>() => error.0.to_string(),
        error => format!("is not valid ({error})"),
    };
    format!("the {holder}'s certificate {problem}")
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "a time that cannot be written".to_owned(), |time| time.to_string())
}
