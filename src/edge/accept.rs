//! Accepting connections, and their TLS, for the gRPC and the HTTP listeners alike.

use std::{io, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time,
};
use tokio_util::sync::CancellationToken;

use super::metrics::{ListenerMetrics, RefusedConnection};
use crate::{
    net::tls::{
        is_end, of_client,
        server::{ListenerTls, SecuredStream},
    },
    telemetry::{LogCause, due_line},
};

/// The pause after a failure to accept, such as too many open files. An immediate retry would only spin.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Accepts the next connection. Failures are counted, logged at most once a minute, and retried.
pub(crate) async fn accept(listener: &TcpListener, metrics: &ListenerMetrics) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Otherwise a small answer may wait for the acknowledgement of the previous one.
                drop(stream.set_nodelay(true));
                return stream;
            }
            // The client has left the accept queue: the service has not failed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                metrics.refused(RefusedConnection::Accept);
                warn_once_a_minute(metrics, &format!("could not accept a connection: {error}"));
                time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

/// The connection as it is to be served; `None` if its handshake fails, which is counted, and logged at most once a minute.
pub(crate) async fn secure(
    stream: TcpStream,
    tls: &ListenerTls,
    metrics: &ListenerMetrics,
    stop: &CancellationToken,
) -> Option<SecuredStream> {
    let secured = tls.secure(stream, stop).await;
    let failed = |error: &io::Error| {
        // Probes connect and leave, and the service may stop.
        if !is_end(error) && error.kind() != io::ErrorKind::Interrupted {
            metrics.refused(RefusedConnection::Tls);
            warn_of_handshake(metrics, &of_client(error));
        }
    };
    secured.inspect_err(failed).ok()
}

pub(crate) fn warn_once_a_minute(metrics: &ListenerMetrics, problem: &str) {
    let subject = format!("{}: {problem}", metrics.name());
    if let Some(line) = due_line(LogCause::RefusedConnection, &subject) {
        tracing::warn!(suppressed = line.suppressed, "{subject} (logged at most once a minute)");
    }
}

fn warn_of_handshake(metrics: &ListenerMetrics, error: &str) {
    let subject = format!("{}: a TLS handshake failed", metrics.name());
    if let Some(line) = due_line(LogCause::RefusedConnection, &subject) {
        tracing::warn!(
            error,
            suppressed = line.suppressed,
            "{subject} (logged at most once a minute)"
        );
    }
}
