//! The connections that gRPC is given: those whose peer has begun to speak HTTP/2.
//!
//! tonic waits for that without end, and at its own end too. Whoever can reach the port could take all
//! file descriptors by saying nothing, and hold up the exit.

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

/// Who takes longer than this is silent.
const AT_ONCE: Duration = Duration::from_millis(250);

/// How many may be silent. Further ones are closed, so that nobody who speaks waits behind them.
const SILENT_MAX: usize = 128;

/// How long one may be silent.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// How many are listened to: the silent, and as many who have only just come. Further ones wait in
/// the system's queue.
const HEARD_MAX: usize = 2 * SILENT_MAX;

/// A part of the preface is looked at again after this: what has come already wakes nobody.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Those who speak, as soon as each does. Dropped, it closes all others, and the listener.
pub(super) fn speaking(listener: TcpListener) -> impl Stream<Item = TcpStream> {
    let silent = Arc::new(Semaphore::new(SILENT_MAX));
    let incoming = stream::unfold(listener, async |listener| {
        Some((accept(&listener, "grpc").await, listener))
    });
    incoming
        .map(move |stream| heard(stream, Arc::clone(&silent)))
        .buffer_unordered(HEARD_MAX)
        .filter_map(future::ready)
}

async fn heard(stream: TcpStream, silent: Arc<Semaphore>) -> Option<TcpStream> {
    speaks_in_time(&stream, &silent).await.then_some(stream)
}

async fn speaks_in_time(stream: &TcpStream, silent: &Semaphore) -> bool {
    let mut speaks = pin!(speaks(stream));
    if let Ok(spoke) = time::timeout(AT_ONCE, &mut speaks).await {
        return spoke.is_ok();
    }
    let Ok(_place) = silent.try_acquire() else { return false };
    matches!(time::timeout(SILENT_FOR, speaks).await, Ok(Ok(())))
}

/// Waits for the preface; or for what is none, which the HTTP/2 server refuses in its own way.
async fn speaks(stream: &TcpStream) -> io::Result<()> {
    let mut bytes = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut bytes).await?;
        let sent = bytes.get(..count).unwrap_or_default();
        if sent.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if sent == PREFACE || !PREFACE.starts_with(sent) {
            return Ok(());
        }
        time::sleep(LOOK_AGAIN_AFTER).await;
    }
}
