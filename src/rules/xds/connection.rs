//! A connection to a control plane.

use std::{error::Error, sync::Arc, time::Duration};

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::time;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use tower::ServiceExt as _;

use super::target::XdsTarget;
use crate::{VERSION, printable::printable};

/// Upper bound on making a connection: name resolution, TCP and TLS.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// After this silence the system asks whether the server's host is alive, and as often again. HTTP/2's own ping would
/// end the connection: Go's servers take one in less than five minutes for an attack.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

/// A host that leaves this many questions unanswered is gone.
const UNANSWERED_MAX: u32 = 3;

/// Bytes that a server may send ahead.
const WINDOW_BYTES: u32 = 1 << 20;

/// Connects to a control plane. Certificates are read anew.
///
/// # Errors
/// Why there is no connection, in words.
pub(super) async fn connect(target: &XdsTarget) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{}", target.authority()))
        .and_then(|endpoint| endpoint.user_agent(format!("tollkeeper/{VERSION}")))
        .map_err(|error| innermost(&error))?
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(ALIVE_EVERY));
    tcp.set_keepalive_interval(Some(ALIVE_EVERY));
    tcp.set_keepalive_retries(Some(UNANSWERED_MAX));
    let connected = async {
        match &target.tls {
            None => endpoint.connect_with_connector(tcp).await,
            Some(tls) => {
                let (tls, host) = (Arc::clone(tls), target.host.clone());
                let connector = tower::service_fn(move |uri| {
                    let (tls, host, tcp) = (Arc::clone(&tls), host.clone(), tcp.clone());
                    async move {
                        let stream = tcp.oneshot(uri).await?.into_inner();
                        let stream = tls.connect(&host, stream).await?;
                        Ok::<_, Box<dyn Error + Send + Sync>>(TokioIo::new(stream))
                    }
                });
                endpoint.connect_with_connector(connector).await
            }
        }
    };
    match time::timeout(CONNECT_WITHIN, connected).await {
        Ok(connected) => connected.map_err(|error| innermost(&error)),
        Err(_) => Err(format!("no connection within {CONNECT_WITHIN:?}")),
    }
}

/// Why a stream ended, in words.
pub(super) fn in_words(status: &Status) -> String {
    match status.source() {
        Some(source) => innermost(source),
        None => format!("{:?}: {}", status.code(), printable(status.message().as_bytes())),
    }
}

/// The root cause of an error: tonic's own message is only "transport error".
fn innermost(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => printable(error.to_string().as_bytes()),
    }
}
