//! The connection of a gRPC client.

use std::{io, time::Duration};

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{self, Instant},
};
use tonic::transport::{Channel, Endpoint};
use tower::ServiceExt as _;

use crate::net::{
    peer::{FirstBytes, PeerError, observe},
    tls::{client::TlsClient, root_cause},
};

/// After this silence the system asks whether the server's host is alive, and as often again. HTTP/2's own ping would
/// end the connection: Go's servers take one in less than five minutes for an attack.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

/// A host that leaves this many questions unanswered is gone.
const UNANSWERED_MAX: u32 = 3;

trait ClientStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ClientStream for T {}

/// Connects to the host and port of an endpoint: TCP, TLS if there is some, and HTTP/2, which the server must show.
/// `within` is the upper bound on all of it. A connection that ends is not made again.
///
/// # Errors
/// If connecting fails, the server does not speak HTTP/2, or `within` has passed.
pub(crate) async fn connect(
    endpoint: Endpoint,
    tls: Option<&TlsClient>,
    within: Duration,
) -> Result<Channel, PeerError> {
    let deadline = Instant::now() + within;
    let opened = time::timeout_at(deadline, open(endpoint, tls)).await;
    let (channel, first_bytes) = opened.unwrap_or_else(|_| {
        Err(PeerError::NotReached(format!("no connection within {within:?}")))
    })?;
    match time::timeout_at(deadline, first_bytes.http2()).await {
        Ok(shown) => shown.map(|()| channel),
        Err(_) => Err(PeerError::Silent(within)),
    }
}

async fn open(
    endpoint: Endpoint,
    tls: Option<&TlsClient>,
) -> Result<(Channel, FirstBytes), PeerError> {
    let tcp = connect_tcp(&endpoint).await?;
    let stream: Box<dyn ClientStream> = match tls {
        None => Box::new(tcp),
        Some(tls) => {
            let host = endpoint.uri().host().unwrap_or_default().trim_matches(['[', ']']);
            let connected = tls.connect(host, tcp).await;
            Box::new(connected.map_err(|error| PeerError::of_tls(error, PeerError::NotHttp2))?)
        }
    };
    let (stream, first_bytes) = observe(stream);
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::other("the connection has ended"));
        async move { stream }
    });
    let channel = endpoint.connect_with_connector(connector).await;
    let channel = channel.map_err(|error| PeerError::Failed(root_cause(&error)))?;
    Ok((channel, first_bytes))
}

async fn connect_tcp(endpoint: &Endpoint) -> Result<TcpStream, PeerError> {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(ALIVE_EVERY));
    tcp.set_keepalive_interval(Some(ALIVE_EVERY));
    tcp.set_keepalive_retries(Some(UNANSWERED_MAX));
    let connected = tcp.oneshot(endpoint.uri().clone()).await;
    connected.map(TokioIo::into_inner).map_err(PeerError::not_reached)
}
