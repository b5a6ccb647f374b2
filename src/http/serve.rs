//! The HTTP listener: bounds the number of connections, and the time that each may take.
//!
//! Anyone who can reach the port can hold connections open, so only a bounded number of them may take file
//! descriptors away from gRPC. A health probe is always accepted: the connection that has waited longest for a
//! request, or for its body, is closed for it.

use std::{
    convert::Infallible,
    net::IpAddr,
    ops::Range,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    http::{Extensions, Request, StatusCode},
    response::IntoResponse as _,
};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, SemaphorePermit},
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    edge::{accept::accept, metrics::ListenerMetrics, panics::caught},
    net::tls::{
        ByteStream,
        server::{ListenerTls, SecuredStream},
    },
    process::calls::CallTracker,
    store::system_clock,
};

/// Most connections. At this number, one that waits for a request is closed; until it has closed, further
/// ones wait in the system's accept queue.
const CONNECTIONS_MAX: usize = 256;

/// The pause before another connection is chosen: the one chosen first may just have begun a request.
const CHOOSE_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Requests whose body is arriving and whose connection is not closed for another. The connections of further ones
/// wait, like those without a request.
static BODIES: Semaphore = Semaphore::const_new(64);

/// Longest time for the head of a request, and so for an idle connection, and until a client takes a further frame of
/// its answer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Most bytes of a request's head, and about as many of an answer that its client has not taken are kept.
const BUFFER_BYTES: usize = 64 << 10;

/// Longest life of a connection.
const CONNECTION_MAX: Duration = Duration::from_secs(300);

/// Longest time for a request in progress when its connection is to end.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The times at which HTTP/1 can be served, in seconds since 1970. hyper formats a date for each connection,
/// sent or not, and panics if the year does not have four digits. `system_clock` reads 0 before 1970.
const DATES_SECS: Range<u64> = 1..253_402_300_800;

/// The answer while the clock is outside of [`DATES_SECS`].
const NO_DATE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 60\r\n\
    connection: close\r\n\r\nthis machine's clock does not show a year from 1970 to 9999\n";

/// The address of the client, in the extensions of each of its requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) IpAddr);

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
    let peer = stream.peer_addr().map(|address| Peer(address.ip())).ok();
    let secured = tokio::select! {
        secured = tls.secure(stream, &stop) => secured,
        () = client.close.notified() => return,
    };
    let Ok(SecuredStream { stream, identity }) = secured else { return };
    client.set(ClientState::waiting_from_now());
    if !DATES_SECS.contains(&system_clock().as_secs()) {
        return refuse(stream).await;
    }
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(WAIT_MAX);
    server.http1().max_buf_size(BUFFER_BYTES);
    let router = TowerToHyperService::new(router);
    let mut of_connection = Extensions::new();
    peer.and_then(|peer| of_connection.insert(peer));
    identity.and_then(|identity| of_connection.insert(identity));
    let service = service_fn(|mut request: Request<Incoming>| {
        let has_body = !request.body().is_end_stream();
        let slot = has_body.then(|| BODIES.try_acquire().ok()).flatten();
        let waits = has_body && slot.is_none();
        client.set(if waits { ClientState::waiting_from_now() } else { ClientState::Busy });
        request.extensions_mut().extend(of_connection.clone());
        let (to_client, client) = (Arc::clone(&client), Arc::clone(&client));
        let request = request.map(|body| FollowedBody { body, of: BodyOf::Request(slot), client });
        let answer = to_client.calls.run(caught(router.call(request)));
        async move {
            let answer = answer.await;
            let client = to_client;
            client.set(ClientState::waiting_from_now());
            let Ok(answer) =
                answer.unwrap_or_else(|_| Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response()));
            Ok::<_, Infallible>(answer.map(|body| FollowedBody {
                body,
                of: BodyOf::Answer,
                client,
            }))
        }
    });
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // Connection errors are not reported: the service has not failed.
        _ = &mut connection => return,
        // A request may have begun since this connection was chosen.
        () = client.close.notified() => if client.waiting_since().is_some() { return },
        () = client.waits_too_long() => return,
        _ = time::timeout(CONNECTION_MAX, stop.cancelled()) => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(time::timeout(FINISH_WITHIN, connection).await);
}

async fn refuse(mut stream: Box<dyn ByteStream>) {
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
    /// Since this time, for a request or the rest of it, or for its client to take a further frame of the answer.
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
    /// than connections can be in progress; see [`super::REQUESTS_MAX`], [`super::REPORTS_MAX`] and [`BODIES`].
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
        *self.state.lock() = state;
    }

    fn waiting_since(&self) -> Option<Instant> {
        match *self.state.lock() {
            ClientState::Waiting(since) => Some(since),
            ClientState::Busy => None,
        }
    }

    /// Ends when the connection has waited for [`WAIT_MAX`].
    async fn waits_too_long(&self) {
        loop {
            let since = self.waiting_since().unwrap_or_else(Instant::now);
            if since.elapsed() >= WAIT_MAX {
                return;
            }
            time::sleep_until(since + WAIT_MAX).await;
        }
    }
}

/// A body that its client's state follows.
struct FollowedBody<B> {
    body: B,
    of: BodyOf,
    client: Arc<Client>,
}

enum BodyOf {
    /// With its slot of [`BODIES`], if it has one.
    Request(Option<SemaphorePermit<'static>>),
    Answer,
}

impl<B: Body + Unpin> Body for FollowedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Self { body, of, client } = &mut *self;
        let frame = ready!(Pin::new(body).poll_frame(context));
        match (of, &frame) {
            (BodyOf::Request(slot), None) => {
                client.set(ClientState::Busy);
                *slot = None;
            }
            (BodyOf::Answer, Some(_)) => client.set(ClientState::waiting_from_now()),
            _ => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
