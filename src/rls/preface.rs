//! Accepts gRPC's connections: passes on those whose client has begun to speak HTTP/2.
//!
//! tonic waits for that without a limit, even during its own shutdown. Anyone who can reach the port could
//! therefore use up all file descriptors with silent connections, and delay the exit.

use std::{future, io, pin::pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt as _, stream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time,
};

use crate::accept::accept;

/// What a client sends as soon as it is connected (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection without a preface for this long counts as silent.
const SILENT_AFTER: Duration = Duration::from_millis(250);

/// Most silent connections at a time. Further ones are closed, so that they do not delay other clients.
const SILENT_MAX: usize = 128;

/// How long a silent connection is kept open.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// Most connections that may be without a preface: the silent ones, and as many new ones. Further
/// connections wait in the system's accept queue.
const PENDING_MAX: usize = 2 * SILENT_MAX;

/// The interval between looks at an incomplete preface: bytes that have already arrived cause no wake-up.
const PEEK_EVERY: Duration = Duration::from_millis(20);

/// The connections that speak HTTP/2, each as soon as it does. Dropping the stream closes all others, and
/// the listener.
pub(super) fn http2_connections(listener: TcpListener) -> impl Stream<Item = TcpStream> {
    let silent = Arc::new(Semaphore::new(SILENT_MAX));
    let incoming = stream::unfold(listener, async |listener| {
        Some((accept(&listener, "grpc").await, listener))
    });
    incoming
        .map(move |stream| after_preface(stream, Arc::clone(&silent)))
        .buffer_unordered(PENDING_MAX)
        .filter_map(future::ready)
}

async fn after_preface(stream: TcpStream, silent: Arc<Semaphore>) -> Option<TcpStream> {
    speaks_in_time(&stream, &silent).await.then_some(stream)
}

async fn speaks_in_time(stream: &TcpStream, silent: &Semaphore) -> bool {
    let mut preface = pin!(wait_for_preface(stream));
    if let Ok(result) = time::timeout(SILENT_AFTER, &mut preface).await {
        return result.is_ok();
    }
    let Ok(_permit) = silent.try_acquire() else { return false };
    matches!(time::timeout(SILENT_FOR, preface).await, Ok(Ok(())))
}

/// Waits for the preface, or for bytes that differ from it: the HTTP/2 server refuses those itself.
async fn wait_for_preface(stream: &TcpStream) -> io::Result<()> {
    let mut bytes = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut bytes).await?;
        let received = bytes.get(..count).unwrap_or_default();
        if received.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received == PREFACE || !PREFACE.starts_with(received) {
            return Ok(());
        }
        time::sleep(PEEK_EVERY).await;
    }
}
