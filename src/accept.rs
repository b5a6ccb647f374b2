//! Accepting connections, for the gRPC and the HTTP listeners alike.

use std::time::Duration;

use tokio::{
    net::{TcpListener, TcpStream},
    time,
};

/// The pause after a failure to accept, such as too many open files. An immediate retry would only spin.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Accepts the next connection. Failures are logged under the listener's name, and retried.
pub(crate) async fn accept(listener: &TcpListener, name: &str) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Otherwise a small answer may wait for the acknowledgement of the previous one.
                drop(stream.set_nodelay(true));
                return stream;
            }
            Err(error) => {
                tracing::warn!("{name}: could not accept a connection: {error}");
                time::sleep(RETRY_AFTER).await;
            }
        }
    }
}
