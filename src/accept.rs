//! How connections are taken, whatever is served on them.

use std::time::Duration;

use tokio::{
    net::{TcpListener, TcpStream},
    time,
};

/// After a failure to accept, such as too many open files: trying at once would only spin.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The next connection. What fails is logged under the listener's name, and tried again.
pub(crate) async fn accept(listener: &TcpListener, name: &str) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Without it a small answer may wait for the acknowledgement of the one before.
                drop(stream.set_nodelay(true));
                return stream;
            }
            Err(error) => {
                tracing::warn!("{name}: no connection taken: {error}");
                time::sleep(AGAIN_AFTER).await;
            }
        }
    }
}
