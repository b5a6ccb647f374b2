//! What a server speaks, by the first bytes that it sends on a connection of its own. A client of another protocol fails
//! later, and by another error each time.

pub mod http1;

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};

use super::tls::{
    ByteStream,
    client::{TlsClient, host_of},
    demands_certificate, is_end, root_cause,
};

/// Bytes that show what a server speaks: the fourth of HTTP/2 is the type of its first frame.
const TELLING_BYTES: u64 = 4;

/// What a client of HTTP/2 sends first, with an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A request by HTTP/1 that changes nothing.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// Why a connection cannot be used. What to try is known to the caller, in the terms of its settings.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The connection could not be made; the text says why.
    #[error("{0}")]
    NotReached(String),
    /// The connection was made without TLS.
    #[error("the server speaks TLS on this port")]
    SpeaksTls,
    /// It speaks another protocol than gRPC needs.
    #[error("the server does not speak HTTP/2 (gRPC) on this port")]
    NotHttp2,
    /// It speaks another protocol than the admin API needs.
    #[error("the server does not speak HTTP/1 on this port")]
    NotHttp1,
    #[error("the server demands a client certificate")]
    DemandsCertificate,
    /// It ended the connection before it showed HTTP/2, as a server may do that expects TLS.
    #[error("the server ended the connection instead of speaking HTTP/2 (gRPC)")]
    EndedBeforeHttp2,
    #[error("the server ended the connection before it answered")]
    Ended,
    /// It sent nothing for this time, as a server may do that expects TLS.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The network failed, or TLS; the text also says what to try.
    #[error("{0}")]
    Failed(String),
}

impl PeerError {
    /// The error of a connection that was not made.
    pub fn not_reached(error: impl std::error::Error + 'static) -> Self {
        Self::NotReached(root_cause(&error))
    }
}

pub async fn reach(addr: &str, within: Duration) -> Result<TcpStream, PeerError> {
    match time::timeout(within, TcpStream::connect(addr)).await {
        Ok(Err(error)) if is_end(&error) => Err(PeerError::Ended),
        Ok(connected) => connected.map_err(PeerError::not_reached),
        Err(_) => Err(PeerError::NotReached(format!("no connection within {within:?}"))),
    }
}

/// Makes a connection to HOST:PORT secure, if there is TLS.
pub async fn secure(
    stream: TcpStream,
    addr: &str,
    tls: Option<&TlsClient>,
    protocol: Protocol,
) -> Result<Box<dyn ByteStream>, PeerError> {
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    match tls.connect(host_of(addr), stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(protocol.not_spoken()),
        Err(error) => Err(PeerError::Failed(root_cause(&error))),
    }
}

/// Connects to HOST:PORT by TCP, and by TLS if there is some.
pub async fn open(
    addr: &str,
    tls: Option<&TlsClient>,
    protocol: Protocol,
    within: Duration,
) -> Result<Box<dyn ByteStream>, PeerError> {
    let stream = reach(addr, within).await?;
    stream.set_nodelay(true).map_err(PeerError::not_reached)?;
    let secured = time::timeout(within, secure(stream, addr, tls, protocol)).await;
    secured.unwrap_or(Err(PeerError::Silent(within)))
}

/// Finds out why the server at HOST:PORT cannot be talked to: opens another connection, and reads the first bytes.
pub async fn diagnose(
    addr: &str,
    tls: Option<&TlsClient>,
    protocol: Protocol,
    within: Duration,
) -> Result<(), PeerError> {
    let mut stream = open(addr, tls, protocol, within).await?;
    let shown = time::timeout(within, first_bytes(&mut *stream, protocol)).await;
    protocol.check(&shown.unwrap_or(Err(PeerError::Silent(within)))?)
}

/// Opens the protocol, and returns what the server sends first; nothing if it ends the connection.
async fn first_bytes(
    stream: &mut dyn ByteStream,
    protocol: Protocol,
) -> Result<Vec<u8>, PeerError> {
    let opening = match protocol {
        Protocol::Http1 => REQUEST,
        Protocol::Http2 => PREFACE,
    };
    // A server may refuse a client after the handshake of TLS, and then end the connection: the reason is read below.
    drop(stream.write_all(opening).await);
    drop(stream.flush().await);
    let mut first = Vec::new();
    match stream.take(TELLING_BYTES).read_to_end(&mut first).await {
        Err(error) if demands_certificate(&error) => Err(PeerError::DemandsCertificate),
        Err(error) if !is_end(&error) => Err(PeerError::Failed(root_cause(&error))),
        _ => Ok(first),
    }
}

impl Protocol {
    const fn not_spoken(self) -> PeerError {
        match self {
            Self::Http1 => PeerError::NotHttp1,
            Self::Http2 => PeerError::NotHttp2,
        }
    }

    /// Whether a server that sends these bytes first speaks the protocol. With HTTP/1, an end explains nothing.
    fn check(self, first: &[u8]) -> Result<(), PeerError> {
        match (self, first) {
            // A record of TLS: an alert or a handshake message, in version 3.
            (_, [0x15 | 0x16, 3, ..]) => Err(PeerError::SpeaksTls),
            // The type of the first frame is SETTINGS.
            (Self::Http2, [_, _, _, 4, ..]) => Ok(()),
            (Self::Http2, []) => Err(PeerError::EndedBeforeHttp2),
            (Self::Http1, first) if b"HTTP".starts_with(first) => Ok(()),
            _ => Err(self.not_spoken()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// The message about a server that sends these parts and ends the connection.
    async fn said_of(protocol: Protocol, parts: &[&[u8]]) -> String {
        let (mut server, mut client) = duplex(64);
        let serve = async {
            for part in parts {
                server.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(server);
        };
        let (first, ()) = tokio::join!(first_bytes(&mut client, protocol), serve);
        let checked = first.and_then(|first| protocol.check(&first));
        checked.map_or_else(|error| error.to_string(), |()| "as expected".to_owned())
    }

    #[tokio::test]
    async fn the_first_bytes_show_the_protocol() {
        let said_of = |parts: &'static [&[u8]]| said_of(Protocol::Http2, parts);
        assert_eq!(said_of(&[&[0, 0, 6, 4, 0, 0, 0, 0, 0]]).await, "as expected");
        assert_eq!(said_of(&[&[0], &[0, 6], &[4, 0, 0, 0, 0, 0]]).await, "as expected");
        assert_eq!(said_of(&[b"HTTP/1.1 400"]).await, PeerError::NotHttp2.to_string());
        assert_eq!(said_of(&[&[0, 0, 6]]).await, PeerError::NotHttp2.to_string());
        assert_eq!(said_of(&[&[0x15, 3, 3, 0, 2]]).await, PeerError::SpeaksTls.to_string());
        // The length of a record is not the type of a frame.
        assert_eq!(said_of(&[&[0x16, 3, 3, 4]]).await, PeerError::SpeaksTls.to_string());
        assert_eq!(said_of(&[]).await, PeerError::EndedBeforeHttp2.to_string());
    }

    #[tokio::test]
    async fn only_what_is_not_http_1_explains_a_failed_exchange_by_http_1() {
        let said_of =
            |first: &'static [u8]| async move { said_of(Protocol::Http1, &[first]).await };
        assert_eq!(said_of(b"HTTP/1.1 2").await, "as expected");
        assert_eq!(said_of(b"HT").await, "as expected");
        assert_eq!(said_of(b"").await, "as expected");
        assert_eq!(said_of(b"-ERR").await, PeerError::NotHttp1.to_string());
        assert_eq!(said_of(&[0x15, 3, 3]).await, PeerError::SpeaksTls.to_string());
    }
}
