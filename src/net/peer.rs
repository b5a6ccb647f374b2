//! What a server speaks, by the first bytes that it sends. A client of another protocol fails only later, and by another
//! error each time.

pub(crate) mod http1;

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::oneshot::{self, error::TryRecvError},
    time,
};

use super::tls::{demands_certificate, is_end, root_cause};

/// Bytes that show what a server speaks: the fourth of HTTP/2 is the type of its first frame.
const TELLING_BYTES: usize = 4;

/// The type of an HTTP/2 server's first frame.
const SETTINGS: u8 = 4;

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
    /// It wants to see a certificate of ours.
    #[error("the server demands a client certificate")]
    DemandsCertificate,
    /// It ended the connection before it showed HTTP/2, as a server may do that expects TLS.
    #[error("the server ended the connection instead of speaking HTTP/2 (gRPC)")]
    EndedBeforeHttp2,
    /// It ended the connection early.
    #[error("the server ended the connection before it answered")]
    Ended,
    /// It said nothing for this time, as a server may do that expects TLS.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The network failed, or TLS; the text also says what to try.
    #[error("{0}")]
    Failed(String),
}

impl PeerError {
    /// The error of a connection that was not made.
    pub(crate) fn not_reached(error: impl std::error::Error + 'static) -> Self {
        Self::NotReached(root_cause(&error))
    }

    /// The error of a TLS handshake with a server that should speak a protocol within TLS, else `other_protocol`.
    pub(crate) fn of_tls(error: io::Error, other_protocol: Self) -> Self {
        match error.kind() {
            io::ErrorKind::Unsupported => other_protocol,
            _ => Self::Failed(root_cause(&error)),
        }
    }

    /// The error of reading before the server has shown its protocol; `None` if the connection has only ended.
    fn of_read(error: &io::Error) -> Option<Self> {
        if is_end(error) {
            None
        } else if demands_certificate(error) {
            Some(Self::DemandsCertificate)
        } else {
            Some(Self::Failed(root_cause(error)))
        }
    }
}

/// Connects to HOST:PORT by TCP.
///
/// # Errors
/// If that fails or takes longer than `within`.
pub(crate) async fn reach(addr: &str, within: Duration) -> Result<TcpStream, PeerError> {
    match time::timeout(within, TcpStream::connect(addr)).await {
        Ok(Err(error)) if is_end(&error) => Err(PeerError::Ended),
        Ok(connected) => connected.map_err(PeerError::not_reached),
        Err(_) => Err(PeerError::NotReached(format!("no connection within {within:?}"))),
    }
}

/// A connection whose first bytes from the server are observed.
pub(crate) struct ObservedStream<S> {
    stream: S,
    first: Vec<u8>,
    /// Until enough has been read, or reading has failed.
    observer: Option<oneshot::Sender<Result<Vec<u8>, PeerError>>>,
}

/// The first bytes that a server sends, or why there are none.
#[derive(Debug)]
pub(crate) struct FirstBytes(oneshot::Receiver<Result<Vec<u8>, PeerError>>);

/// Observes what the server sends first.
pub(crate) fn observe<S>(stream: S) -> (ObservedStream<S>, FirstBytes) {
    let (observer, observed) = oneshot::channel();
    (ObservedStream { stream, first: Vec::new(), observer: Some(observer) }, FirstBytes(observed))
}

impl FirstBytes {
    /// Waits until the server has shown HTTP/2. The connection must be read meanwhile.
    ///
    /// # Errors
    /// What it has shown instead, or why it has shown nothing.
    pub(crate) async fn http2(self) -> Result<(), PeerError> {
        check_http2(self.0.await.ok())
    }

    /// Whether the server has shown HTTP/2 until now; `None` if it has sent too little to know.
    pub(crate) fn http2_so_far(mut self) -> Option<Result<(), PeerError>> {
        match self.0.try_recv() {
            Ok(observed) => Some(check_http2(Some(observed))),
            Err(TryRecvError::Closed) => Some(check_http2(None)),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// Why an exchange by HTTP/1 has failed, if the server has shown another protocol, or the connection failed.
    pub(crate) fn cause(mut self) -> Option<PeerError> {
        match self.0.try_recv() {
            Ok(Ok(first)) if is_tls(&first) => Some(PeerError::SpeaksTls),
            Ok(Ok(first)) if !b"HTTP".starts_with(&first) => Some(PeerError::NotHttp1),
            Ok(Err(cause)) => Some(cause),
            _ => None,
        }
    }
}

/// Checks the first bytes of a server, or the error in their place; `None` if the connection is gone.
fn check_http2(observed: Option<Result<Vec<u8>, PeerError>>) -> Result<(), PeerError> {
    match observed {
        Some(Ok(first)) if is_tls(&first) => Err(PeerError::SpeaksTls),
        Some(Ok(first)) if first.get(TELLING_BYTES - 1) == Some(&SETTINGS) => Ok(()),
        Some(Ok(first)) if !first.is_empty() => Err(PeerError::NotHttp2),
        Some(Err(cause)) => Err(cause),
        Some(Ok(_)) | None => Err(PeerError::EndedBeforeHttp2),
    }
}

/// Whether bytes begin a record of TLS: an alert or a handshake message, in version 3.
fn is_tls(first: &[u8]) -> bool {
    matches!(first, [0x15 | 0x16, 3, ..])
}

impl<S: AsyncRead + Unpin> ObservedStream<S> {
    /// Records what was read; nothing is the end.
    fn note(&mut self, read: Result<&[u8], &io::Error>) {
        let known = match read {
            Ok(bytes) => {
                self.first.extend(bytes.iter().take(TELLING_BYTES - self.first.len()));
                if self.first.len() < TELLING_BYTES && !bytes.is_empty() {
                    return;
                }
                Ok(std::mem::take(&mut self.first))
            }
            Err(error) => match PeerError::of_read(error) {
                None => Ok(std::mem::take(&mut self.first)),
                Some(cause) => Err(cause),
            },
        };
        if let Some(observer) = self.observer.take() {
            drop(observer.send(known));
        }
    }

    /// Holds the error of a write back until the reason has been read: a server may refuse a client after the handshake
    /// of TLS, and then end the connection.
    fn with_reason<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if !matches!(written, Poll::Ready(Err(_))) || self.observer.is_none() {
            return written;
        }
        let mut bytes = [0; TELLING_BYTES];
        let mut buffer = ReadBuf::new(&mut bytes);
        match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
            Ok(()) => self.note(Ok(buffer.filled())),
            Err(error) => self.note(Err(&error)),
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if self.observer.is_some() {
            let new = buffer.filled().get(before..).unwrap_or_default();
            self.note(read.as_ref().map(|()| new));
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.with_reason(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.with_reason(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.with_reason(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// What is said of a server that sends these parts and ends the connection.
    async fn said_of(parts: &[&[u8]]) -> String {
        let (mut server, client) = duplex(64);
        let (mut stream, first) = observe(client);
        for part in parts {
            server.write_all(part).await.unwrap();
            let mut read = vec![0; part.len()];
            stream.read_exact(&mut read).await.unwrap();
            assert_eq!(read, *part);
        }
        drop(server);
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0);
        first.http2().await.map_or_else(|error| error.to_string(), |()| "HTTP/2".to_owned())
    }

    #[tokio::test]
    async fn the_first_bytes_show_the_protocol() {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0];
        assert_eq!(said_of(&[&settings]).await, "HTTP/2");
        assert_eq!(said_of(&[&settings[..1], &settings[1..3], &settings[3..]]).await, "HTTP/2");
        assert_eq!(said_of(&[b"HTTP/1.1 400"]).await, PeerError::NotHttp2.to_string());
        assert_eq!(said_of(&[&settings[..3]]).await, PeerError::NotHttp2.to_string());
        assert_eq!(said_of(&[&[0x15, 3, 3, 0, 2]]).await, PeerError::SpeaksTls.to_string());
        // The length of a record is not the type of a frame.
        assert_eq!(said_of(&[&[0x16, 3, 3, 4]]).await, PeerError::SpeaksTls.to_string());
        assert_eq!(said_of(&[]).await, PeerError::EndedBeforeHttp2.to_string());
    }

    /// Why an exchange by HTTP/1 has failed with a server that sends this and ends the connection.
    async fn cause_of(first: &[u8]) -> Option<String> {
        let (mut server, client) = duplex(64);
        let (mut stream, first_bytes) = observe(client);
        server.write_all(first).await.unwrap();
        drop(server);
        stream.read_to_end(&mut Vec::new()).await.unwrap();
        first_bytes.cause().map(|error| error.to_string())
    }

    #[tokio::test]
    async fn only_what_is_not_http_1_explains_a_failed_exchange_by_http_1() {
        assert_eq!(cause_of(b"HTTP/1.1 2").await, None);
        assert_eq!(cause_of(b"HT").await, None);
        assert_eq!(cause_of(b"").await, None);
        assert_eq!(cause_of(b"-ERR").await, Some(PeerError::NotHttp1.to_string()));
        assert_eq!(cause_of(&[0x15, 3, 3]).await, Some(PeerError::SpeaksTls.to_string()));
    }
}
