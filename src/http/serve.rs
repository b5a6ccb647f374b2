//! The listener for HTTP: how many connections there may be, and how long each may take over what.
//!
//! Whoever can reach the port can hold connections open; no more of them than this take file
//! descriptors from the calls that gRPC answers.

use std::{pin::pin, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;

use crate::accept::accept;

/// Further ones wait in the system's queue until one of these ends.
const CONNECTIONS_MAX: usize = 256;

/// How long the head of a request may take; so it is how long a connection may be idle, too.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// How long one connection is used. It also ends those whose peer does not read the answers.
const CONNECTION_LASTS: Duration = Duration::from_secs(300);

/// What is under way at a connection's end may take this long.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

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
