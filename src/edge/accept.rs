//! Accepting connections, and their TLS, for the gRPC and the HTTP listeners alike.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time,
};
use tokio_util::sync::CancellationToken;

use super::{
    arriving::ConnectionBudget,
    metrics::{ListenerMetrics, RefusedConnection},
};
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
                let problem = format!("could not accept a connection: {error}");
                warn_once_a_minute(metrics, &problem, None);
                time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

/// The connection as it is to be served; `None` if its handshake fails, which is counted, and logged at most once a minute.
/// Until the handshake ends, what it may take counts as memory of its connection.
pub(crate) async fn secure(
    stream: TcpStream,
    tls: &ListenerTls,
    memory: &Arc<ConnectionBudget>,
    metrics: &ListenerMetrics,
    stop: &CancellationToken,
) -> Option<SecuredStream> {
    let mut held = memory.reserve();
    let secured = match held.add(tls.handshake_bytes()) {
        Ok(()) => tls.secure(stream, stop).await,
        Err(spent) => Err(io::Error::other(spent)),
    };
    let failed = |error: &io::Error| {
        // Probes connect and leave, and the service may stop.
        if !is_end(error) && error.kind() != io::ErrorKind::Interrupted {
            metrics.refused(RefusedConnection::Tls);
            warn_once_a_minute(metrics, "a TLS handshake failed", Some(&of_client(error)));
        }
    };
    secured.inspect_err(failed).ok()
}

/// Logs a problem at most once a minute, whatever the `error`: clients may choose that.
pub(crate) fn warn_once_a_minute(metrics: &ListenerMetrics, problem: &str, error: Option<&str>) {
    let subject = format!("{}: {problem}", metrics.name());
    if let Some(line) = due_line(LogCause::RefusedConnection, &subject) {
        tracing::warn!(
            error,
            suppressed = line.suppressed,
            "{subject} (logged at most once a minute)"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, pin::pin, task::Context};

    use futures_util::task::noop_waker_ref;
    use opentelemetry::metrics::{MeterProvider as _, noop::NoopMeterProvider};
    use rcgen::{CertificateParams, KeyPair};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        edge::{arriving::ArrivalBudget, metrics::EdgeMetrics},
        net::tls::server::{ServerFiles, TlsServer, TlsUse},
    };

    fn tls() -> ListenerTls {
        let folder = TempDir::new().unwrap();
        let pair = KeyPair::generate().unwrap();
        let of_us = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("certificate"), folder.path().join("key"));
        fs::write(&certificate, of_us.self_signed(&pair).unwrap().pem()).unwrap();
        fs::write(&key, pair.serialize_pem()).unwrap();
        let server = TlsServer::load(ServerFiles { certificate, key, client_ca: None }).unwrap();
        ListenerTls::new(Some(Arc::new(server)), TlsUse::Grpc)
    }

    #[tokio::test]
    async fn an_unfinished_handshake_counts_as_memory_of_its_connection() {
        for (tls, bytes, is_secured) in [(tls(), 64 << 10, false), (ListenerTls::none(), 0, true)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let metrics = EdgeMetrics::new(&NoopMeterProvider::new().meter("")).of_listener("grpc");
            let memory = ArrivalBudget::new(1 << 20).connection(1 << 20);
            let (stream, stop) = (accept(&listener, &metrics).await, CancellationToken::new());
            let mut secured = pin!(secure(stream, &tls, &memory, &metrics, &stop));
            let mut context = Context::from_waker(noop_waker_ref());
            let begun = secured.as_mut().poll(&mut context);
            assert_eq!((begun.is_ready(), memory.held()), (is_secured, bytes));
            if begun.is_pending() {
                drop(client);
                assert!(secured.await.is_none());
                assert_eq!(memory.held(), 0);
            }
        }
    }
}
