//! The connection of a gRPC client.

use std::{io, time::Duration};

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::{net::TcpStream, time};
use tonic::transport::{Channel, Endpoint};
use tower::ServiceExt as _;

use crate::net::{
    peer::{self, PeerError, Protocol},
    tls::{client::TlsClient, root_cause},
};

/// After this silence the system checks whether the server's host is alive, and as often again. HTTP/2's own ping would
/// end the connection: Go's servers take one in less than five minutes for an attack.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

/// A host that leaves this many checks unanswered is gone.
const UNANSWERED_MAX: u32 = 3;

/// Connects to the host and port of an endpoint: TCP, and TLS if there is some. A connection that ends is not made again.
///
/// # Errors
/// If connecting fails or takes longer than `within`. A server that does not speak HTTP/2 shows that only later.
pub async fn connect(
    endpoint: Endpoint,
    tls: Option<&TlsClient>,
    within: Duration,
) -> Result<Channel, PeerError> {
    let connecting = async {
        let tcp = connect_tcp(&endpoint).await?;
        let addr = endpoint.uri().authority().map_or("", |authority| authority.as_str());
        let stream = peer::secure(tcp, addr, tls, Protocol::Http2).await?;
        let mut stream = Some(TokioIo::new(stream));
        let connector = tower::service_fn(move |_| {
            let stream = stream.take().ok_or_else(|| io::Error::other("the connection has ended"));
            async move { stream }
        });
        let channel = endpoint.connect_with_connector(connector).await;
        channel.map_err(|error| PeerError::Failed(root_cause(&error)))
    };
    let connected = time::timeout(within, connecting).await;
    connected
        .unwrap_or_else(|_| Err(PeerError::NotReached(format!("no connection within {within:?}"))))
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
