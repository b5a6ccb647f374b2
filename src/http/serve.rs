//! The HTTP listener: bounds the number of connections, and the time that each may take.
//!
//! Anyone who can reach the port can hold connections open, so only a bounded number of them may take file
//! descriptors away from gRPC. A health probe is always accepted: the connection that has waited longest for a
//! request is closed for it.

use std::{
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use axum::{
    Router,
    http::{Request, StatusCode},
    response::IntoResponse as _,
};
use hyper::service::{Service as _, service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    accept::accept,
    calls::CallTracker,
    panics::caught,
    store::system_clock,
    telemetry::ListenerMetrics,
    tls::{
        ServerStream,
        server::{ListenerTls, SecuredStream},
    },
};

/// Most connections. At this number, one that waits for a request is closed; until it has closed, further
/// ones wait in the system's accept queue.
const CONNECTIONS_MAX: usize = 256;

/// The pause before another connection is chosen: the one chosen first may just have begun a request.
const CHOOSE_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Longest time for the head of a request, and so for an idle connection.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Longest life of a connection. It also ends connections whose client does not read the answers.
const CONNECTION_MAX: Duration = Duration::from_secs(300);

/// Longest time for a request in progress when its connection is to end.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The times at which HTTP/1 can be served, in seconds since 1970. hyper formats a date for each connection,
/// sent or not, and panics if the year does not have four digits. `system_clock` reads 0 before 1970.
const DATES_SECS: Range<u64> = 1..253_402_300_800;

/// The answer while the clock is outside of [`DATES_SECS`].
const NO_DATE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 60\r\n\
    connection: close\r\n\r\nthis machine's clock does not show a year from 1970 to 9999\n";

/// Serves requests until `stop` is cancelled, and then finishes those in progress.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: ListenerTls,
    metrics: ListenerMetrics,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    let (mut clients, calls) = (Clients::default(), CallTracker::on_this_runtime());
    loop {
        let is_full = connections.len() == CONNECTIONS_MAX;
        if is_full {
            clients.close_one();
        }
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            () = time::sleep(CHOOSE_AGAIN_AFTER), if is_full => {}
            stream = accept(&listener, &metrics), if !is_full => {
                let (client, router) = (clients.add(&calls), router.clone());
                let (tls, stop) = (tls.clone(), stop.clone());
                let open = metrics.opened();
                connections.spawn(async move {
                    serve_connection(stream, router, tls, client, stop).await;
                    drop(open);
                });
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    calls.wait().await;
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    tls: ListenerTls,
    client: Arc<Client>,
    stop: CancellationToken,
) {
    let secured = tokio::select! {
        secured = tls.secure(stream, &stop) => secured,
        () = client.close.notified() => return,
    };
    let Ok(SecuredStream { stream, identity }) = secured else { return };
    if !DATES_SECS.contains(&system_clock().as_secs()) {
        return refuse(stream).await;
    }
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<_>| {
        client.set(ClientState::Busy);
        if let Some(identity) = &identity {
            request.extensions_mut().insert(identity.clone());
        }
        let answer = client.calls.run(caught(router.call(request)));
        let client = Arc::clone(&client);
        async move {
            let answer = answer.await;
            client.set(ClientState::waiting_from_now());
            answer.unwrap_or_else(|_| Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response()))
        }
    });
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // Connection errors are not reported: nothing of ours has failed.
        _ = &mut connection => return,
        // A request may have begun since this connection was chosen.
        () = client.close.notified() => if client.waiting_since().is_some() { return },
        _ = time::timeout(CONNECTION_MAX, stop.cancelled()) => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(time::timeout(FINISH_WITHIN, connection).await);
}

async fn refuse(mut stream: ServerStream) {
    let written = async {
        stream.write_all(NO_DATE).await?;
        stream.shutdown().await
    };
    drop(time::timeout(FINISH_WITHIN, written).await);
}

/// The connected clients, and some that have left.
#[derive(Default)]
struct Clients(Vec<Weak<Client>>);

struct Client {
    state: Mutex<ClientState>,
    close: Notify,
    calls: CallTracker,
}

#[derive(Clone, Copy)]
enum ClientState {
    /// Since this time, for a request or for the rest of its head.
    Waiting(Instant),
    Busy,
}

impl ClientState {
    fn waiting_from_now() -> Self {
        Self::Waiting(Instant::now())
    }
}

impl Clients {
    fn add(&mut self, calls: &CallTracker) -> Arc<Client> {
        let state = Mutex::new(ClientState::waiting_from_now());
        let client = Arc::new(Client { state, close: Notify::new(), calls: calls.clone() });
        self.0.retain(|client| client.strong_count() > 0);
        self.0.push(Arc::downgrade(&client));
        client
    }

    /// Closes the connection that has waited longest for a request. There is always one, since fewer requests
    /// than connections can be in progress; see [`super::REQUESTS_MAX`].
    fn close_one(&mut self) {
        let clients = self.0.iter().filter_map(Weak::upgrade);
        let waiting = clients.filter_map(|client| Some((client.waiting_since()?, client)));
        if let Some((_, client)) = waiting.min_by_key(|(since, _)| *since) {
            client.close.notify_one();
        }
    }
}

impl Client {
    fn set(&self, state: ClientState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn waiting_since(&self) -> Option<Instant> {
        match *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            ClientState::Waiting(since) => Some(since),
            ClientState::Busy => None,
        }
    }
}
