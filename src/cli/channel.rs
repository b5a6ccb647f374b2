//! The gRPC connection of the commands that are clients of a service.

use std::{sync::Arc, time::Duration};

use tonic::transport::Channel;

use crate::{grpc::channel, peer::PeerError, tls::client::TlsClient};

pub(super) const ADDR_DEFAULT: &str = "127.0.0.1:8081";

/// How long to wait for a connection, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to HOST:PORT.
///
/// # Errors
/// The cause as text, if connecting fails or takes longer than [`TIMEOUT`].
pub(super) async fn connect(addr: &str, tls: Option<Arc<TlsClient>>) -> Result<Channel, String> {
    let endpoint = Channel::from_shared(format!("http://{addr}"))
        .map_err(|_| "not HOST:PORT".to_owned())?
        .timeout(TIMEOUT);
    let connected = channel::connect(endpoint, tls.as_deref(), TIMEOUT).await;
    connected.map_err(|error| match error {
        PeerError::NotHttp2 | PeerError::Ended => {
            format!("{error}; is this the gRPC address? Default: {ADDR_DEFAULT}")
        }
        _ => error.to_string(),
    })
}
