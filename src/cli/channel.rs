//! The gRPC connection of the commands that are clients of a service.

use std::{sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use tonic::transport::Channel;

use crate::tls::client::TlsClient;

/// How long to wait for a connection, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to HOST:PORT.
///
/// # Errors
/// A sentence, if there is no connection in time.
pub(super) async fn connect(addr: &str, tls: Option<Arc<TlsClient>>) -> Result<Channel, String> {
    let endpoint = Channel::from_shared(format!("http://{addr}"))
        .map_err(|_| "not HOST:PORT".to_owned())?
        .connect_timeout(TIMEOUT)
        .timeout(TIMEOUT);
    let channel = match tls {
        None => endpoint.connect().await,
        Some(tls) => {
            let addr = addr.to_owned();
            let connector = tower::service_fn(move |_| {
                let (tls, addr) = (Arc::clone(&tls), addr.clone());
                async move { tls.connect_to(&addr).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await
        }
    };
    channel.map_err(|error| innermost(&error))
}

/// The root cause of an error: tonic's own message is only "transport error".
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}
