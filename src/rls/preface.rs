//! Accepts gRPC's connections: passes on those whose client has begun to speak HTTP/2.
//!
//! tonic waits for that without a limit, even during its own shutdown. Anyone who can reach the port could
//! therefore use up all file descriptors with silent connections, and delay the exit.

use std::{future, io, pin::pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt as _, stream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};

use crate::{
    accept::{accept, warn_once_a_minute},
    telemetry::{ListenerMetrics, RefusedConnection},
};

/// What a client sends as soon as it is connected (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection without a preface for this long counts as silent.
const SILENT_AFTER: Duration = Duration::from_millis(250);

/// Most silent connections at a time. Further ones are closed, so that they do not delay other clients.
const SILENT_MAX: usize = 128;

/// How long a silent connection is kept open.
pub(super) const SILENT_FOR: Duration = Duration::from_secs(10);

/// Most connections that may be without a preface: the silent ones, and as many new ones. Further
/// connections wait in the system's accept queue.
const PENDING_MAX: usize = 2 * SILENT_MAX;

/// The interval between looks at an incomplete preface: bytes that have already arrived cause no wake-up.
const PEEK_EVERY: Duration = Duration::from_millis(20);

/// The connections that speak HTTP/2, each as soon as it does, and its slot among `slots`. Without a free slot
/// a new connection is closed at once. Dropping the stream closes all others, and the listener.
pub(super) fn http2_connections(
    listener: TcpListener,
    slots: Arc<Semaphore>,
    metrics: ListenerMetrics,
) -> impl Stream<Item = (TcpStream, OwnedSemaphorePermit)> {
    let silent = Arc::new(Semaphore::new(SILENT_MAX));
    let accepting = (listener, slots, metrics.clone());
    let incoming = stream::unfold(accepting, async |accepting| {
        let (listener, slots, metrics) = &accepting;
        loop {
            let stream = accept(listener, metrics).await;
            match Arc::clone(slots).try_acquire_owned() {
                Ok(slot) => return Some(((stream, slot), accepting)),
                Err(_) => {
                    metrics.refused(RefusedConnection::Full);
                    warn_once_a_minute(metrics, "closed a connection: --max-connections are open");
                }
            }
        }
    });
    incoming
        .map(move |(stream, slot)| {
            after_preface(stream, slot, Arc::clone(&silent), metrics.clone())
        })
        .buffer_unordered(PENDING_MAX)
        .filter_map(future::ready)
}

async fn after_preface(
    stream: TcpStream,
    slot: OwnedSemaphorePermit,
    silent: Arc<Semaphore>,
    metrics: ListenerMetrics,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    speaks_in_time(&stream, &silent, &metrics).await.then_some((stream, slot))
}

async fn speaks_in_time(stream: &TcpStream, silent: &Semaphore, metrics: &ListenerMetrics) -> bool {
    let mut preface = pin!(wait_for_preface(stream));
    if let Ok(result) = time::timeout(SILENT_AFTER, &mut preface).await {
        return result.is_ok();
    }
    if let Ok(_permit) = silent.try_acquire()
        && let Ok(result) = time::timeout(SILENT_FOR, preface).await
    {
        return result.is_ok();
    }
    metrics.refused(RefusedConnection::Silent);
    false
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
