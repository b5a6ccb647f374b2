//! The listener for HTTP: how many connections there may be, and how long each may take over what.
//!
//! Whoever can reach the port can hold connections open; no more of them than this take file
//! descriptors from the calls that gRPC answers.

use std::{ops::Range, pin::pin, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;

use crate::{accept::accept, store::system_clock};

/// Further ones wait in the system's queue until one of these ends.
const CONNECTIONS_MAX: usize = 256;

/// How long the head of a request may take; so it is how long a connection may be idle, too.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// How long one connection is used. It also ends those whose peer does not read the answers.
const CONNECTION_LASTS: Duration = Duration::from_secs(300);

/// What is under way at a connection's end may take this long.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// When HTTP/1 can be served, in seconds since 1970: hyper works out a date for each connection, whether it
/// is sent or not, and panics where there is none of four digits. Clocks before 1970 show as 0.
const DATES_SECS: Range<u64> = 1..253_402_300_800;

/// The answer while the clock is outside of [`DATES_SECS`].
const NO_DATE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 58\r\n\
    connection: close\r\n\r\nthe clock of this machine shows no year from 1970 to 9999\n";

/// Answers until `stop` is cancelled, and then finishes what is under way.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            stream = accept(&listener, "http"), if connections.len() < CONNECTIONS_MAX => {
                connections.spawn(answer(stream, router.clone(), stop.clone()));
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn answer(stream: TcpStream, router: Router, stop: CancellationToken) {
    if !DATES_SECS.contains(&system_clock().as_secs()) {
        return refuse(stream).await;
    }
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // How it ended is its peer's affair.
        _ = &mut connection => return,
        _ = time::timeout(CONNECTION_LASTS, stop.cancelled()) => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(time::timeout(FINISH_WITHIN, connection).await);
}

async fn refuse(mut stream: TcpStream) {
    let answered = async {
        stream.write_all(NO_DATE).await?;
        stream.shutdown().await
    };
    drop(time::timeout(FINISH_WITHIN, answered).await);
}
