//! The HTTP listener: bounds the number of connections, and the time that each may take.
//!
//! A proxy has a connection for each request that it is deciding, so there may be as many as of gRPC. Anyone who can
//! reach the port can hold connections open, so those that have asked for nothing have a bound of their own, and
//! those that wait longest for a request are closed for others. One with a request is never closed: if it waited longest
//! before, its answer asks the client to close it.

use std::{
    convert::Infallible,
    future::pending,
    net::IpAddr,
    ops::Range,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::Body as AnyBody,
    http::{Extensions, HeaderValue, Request, StatusCode, header::CONNECTION},
    response::IntoResponse as _,
};
use bytes::Bytes;
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
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use super::buffered::{Buffered, Socket};
use crate::{
    edge::{
        accept::{accept, secure},
        arriving::{ArrivalBudget, CONNECTION_BYTES_MAX, ConnectionBudget, HeldBytes},
        metrics::ListenerMetrics,
        panics::caught,
    },
    net::tls::{
        ByteStream,
        server::{ListenerTls, SecuredStream},
    },
    process::calls::CallTracker,
    rls::refusal::Refusal,
    store::system_clock,
};

/// Most connections that have not sent the head of a request yet. For a further one, the one that has waited longest is
/// closed.
const SILENT_MAX: usize = 512;

/// How long a connection must have waited for its first request, or for a further one, before it is closed for another.
/// Meanwhile further ones wait in the system's accept queue.
const SILENT_AFTER: Duration = Duration::from_millis(500);
const IDLE_AFTER: Duration = Duration::from_secs(2);

/// The pause before another connection is chosen.
const CHOOSE_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Longest time for the first request, and then from an answer to the next request: proxies close idle connections sooner
/// (NGINX after 60 s), so that no request meets a connection that is just being closed.
const SILENT_MAX_FOR: Duration = Duration::from_secs(10);
const IDLE_MAX: Duration = Duration::from_secs(150);

/// Most bytes of a request's head, and about as many of an answer that its client has not taken are kept.
const BUFFER_BYTES: usize = 64 << 10;

/// The size of the frames in which an answer is sent.
const FRAME_BYTES: usize = 16 << 10;

/// The age at which the answers of a connection ask the client to close it.
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

#[derive(Debug, Clone)]
pub struct HttpBounds {
    pub connections_max: usize,
    /// The memory for requests that arrive, and for answers that are not read.
    pub arriving: Arc<ArrivalBudget>,
}

/// Serves requests until `stop` is cancelled, and then finishes those in progress.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: ListenerTls,
    metrics: ListenerMetrics,
    HttpBounds { connections_max, arriving }: HttpBounds,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    let (mut clients, calls) = (Clients::default(), CallTracker::on_this_runtime());
    loop {
        let may_accept = clients.may_accept(connections.len(), connections_max);
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            () = time::sleep(CHOOSE_AGAIN_AFTER), if !may_accept => {}
            stream = accept(&listener, &metrics), if may_accept => {
                let memory = arriving.connection(CONNECTION_BYTES_MAX);
                let (client, router) = (clients.add(&calls, memory), router.clone());
                let (tls, stop) = (tls.clone(), stop.clone());
                let open = metrics.opened();
                connections.spawn(async move {
                    serve_connection(stream, router, (tls, &open.0), client, stop).await;
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
    (tls, metrics): (ListenerTls, &ListenerMetrics),
    client: Arc<Client>,
    stop: CancellationToken,
) {
    let peer = stream.peer_addr().map(|address| Peer(address.ip())).ok();
    let secured = tokio::select! {
        secured = secure(stream, &tls, &client.memory, metrics, &stop) => secured,
        () = client.memory.is_over() => return,
    };
    let Some(SecuredStream { stream, identity }) = secured else { return };
    if !DATES_SECS.contains(&system_clock().as_secs()) {
        return refuse(stream).await;
    }
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_MAX);
    server.http1().max_buf_size(BUFFER_BYTES);
    let router = TowerToHyperService::new(router);
    let mut of_connection = Extensions::new();
    of_connection.insert(Arc::clone(&client.memory));
    peer.and_then(|peer| of_connection.insert(peer));
    identity.and_then(|identity| of_connection.insert(identity));
    let began = Instant::now();
    let service = service_fn(|mut request: Request<Incoming>| {
        let has_body = !request.body().is_end_stream();
        client.asks(has_body);
        request.extensions_mut().extend(of_connection.clone());
        let (to_client, client) = (Arc::clone(&client), Arc::clone(&client));
        let request = request.map(|body| Followed {
            body: AnyBody::new(body),
            rest: Bytes::new(),
            held: None,
            client,
        });
        let answer = to_client.calls.run(caught(router.call(request)));
        async move {
            let answer = answer.await;
            let client = to_client;
            let Ok(answer) =
                answer.unwrap_or_else(|_| Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response()));
            let mut held = client.memory.reserve_briefly();
            let bytes = usize::try_from(answer.body().size_hint().lower()).unwrap_or(usize::MAX);
            let mut answer = match client.buffered.answered().and_then(|()| held.add(bytes)) {
                Ok(()) => answer,
                Err(spent) => Refusal::Busy(spent).into_response(),
            };
            // hyper closes the connection of a client that still has to send its body.
            let is_unread = client.waits.lock().replace(Instant::now()).is_some();
            // Others may have left meanwhile.
            let is_next = client.is_next.swap(false, Relaxed) && client.crowd.is_full.load(Relaxed);
            if is_unread || is_next || began.elapsed() > CONNECTION_MAX {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer.map(|body| Followed {
                body,
                rest: Bytes::new(),
                held: Some(held),
                client,
            }))
        }
    });
    let socket = Socket { stream, buffered: Arc::clone(&client.buffered) };
    let mut connection = pin!(server.serve_connection(TokioIo::new(socket), service));
    tokio::select! {
        // Connection errors are not reported: the service has not failed.
        _ = &mut connection => return,
        // A request may have begun since this connection was chosen.
        () = client.memory.is_over() => if client.waiting_since().is_some() { return },
        () = client.is_silent() => return,
        () = stop.cancelled() => {}
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
struct Clients {
    all: Vec<Weak<Client>>,
    crowd: Arc<Crowd>,
}

#[derive(Default)]
struct Crowd {
    /// Whether as many are connected as may be.
    is_full: AtomicBool,
    /// How many have asked for nothing yet.
    silent: AtomicUsize,
}

struct Client {
    /// Since when it waits for a request or the rest of it, or takes its answer; `None` while that is made.
    waits: Mutex<Option<Instant>>,
    has_asked: AtomicBool,
    /// Whether it waited longest when another connection needed its place, but for too short a time to be closed.
    is_next: AtomicBool,
    /// Requests that arrive, and answers that are not read.
    memory: Arc<ConnectionBudget>,
    buffered: Arc<Buffered>,
    calls: CallTracker,
    crowd: Arc<Crowd>,
}

impl Clients {
    fn add(&mut self, calls: &CallTracker, memory: Arc<ConnectionBudget>) -> Arc<Client> {
        let crowd = Arc::clone(&self.crowd);
        crowd.silent.fetch_add(1, Relaxed);
        let waits = Mutex::new(Some(Instant::now()));
        let [has_asked, is_next] = [false; 2].map(AtomicBool::new);
        let (buffered, calls) = (Arc::new(Buffered::new(Arc::clone(&memory))), calls.clone());
        let client = Arc::new(Client { waits, has_asked, is_next, memory, buffered, calls, crowd });
        if self.all.len() == self.all.capacity() {
            self.all.retain(|client| client.strong_count() > 0);
        }
        self.all.push(Arc::downgrade(&client));
        client
    }

    /// Whether a further connection may be accepted beside `open` others. If not, the one that waits longest is closed, or its
    /// next answer asks its client to close it. So clients that ask often keep their connections.
    fn may_accept(&self, open: usize, connections_max: usize) -> bool {
        let is_full = open >= connections_max;
        self.crowd.is_full.store(is_full, Relaxed);
        if !is_full && self.crowd.silent.load(Relaxed) < SILENT_MAX {
            return true;
        }
        let clients = self.all.iter().filter_map(Weak::upgrade);
        let staying = clients.filter(|client| !client.memory.closing.is_cancelled());
        let waiting = staying.filter_map(|client| {
            let (has_asked, since) = (client.has_asked.load(Relaxed), client.waiting_since()?);
            let may_close = match has_asked {
                true => is_full && since.elapsed() >= IDLE_AFTER,
                false => since.elapsed() >= SILENT_AFTER,
            };
            Some(((!may_close, may_close && has_asked, since), client))
        });
        match waiting.min_by_key(|(order, _)| *order) {
            Some(((false, ..), client)) => client.memory.closing.cancel(),
            Some((_, client)) => client.is_next.store(true, Relaxed),
            None => {}
        }
        false
    }
}

impl Client {
    /// A request has begun; its body may not have arrived.
    fn asks(&self, has_body: bool) {
        if !self.has_asked.swap(true, Relaxed) {
            self.crowd.silent.fetch_sub(1, Relaxed);
        }
        *self.waits.lock() = has_body.then(Instant::now);
        self.buffered.taken();
    }

    fn waiting_since(&self) -> Option<Instant> {
        *self.waits.lock()
    }

    /// Ends if no request has come in time.
    async fn is_silent(&self) {
        time::sleep(SILENT_MAX_FOR).await;
        if self.has_asked.load(Relaxed) {
            pending().await
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !*self.has_asked.get_mut() {
            self.crowd.silent.fetch_sub(1, Relaxed);
        }
    }
}

/// The body of a request or of an answer, which its client's state follows.
struct Followed {
    body: AnyBody,
    /// What remains of its last frame.
    rest: Bytes,
    /// What an answer holds until it is written; `None` for a request.
    held: Option<HeldBytes>,
    client: Arc<Client>,
}

impl Body for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, rest, held, client } = &mut *self;
        if rest.is_empty() {
            let frame = ready!(Pin::new(body).poll_frame(context));
            match (frame.map(|frame| frame.map(Frame::into_data)), held) {
                (Some(Ok(Ok(data))), None) => {
                    client.buffered.taken();
                    *rest = data;
                }
                (Some(Ok(Ok(data))), Some(held)) => *rest = held.split(data.len()).hold(data),
                (Some(Ok(Err(trailers))), _) => return Poll::Ready(Some(Ok(trailers))),
                (Some(Err(error)), _) => return Poll::Ready(Some(Err(error))),
                (None, held) => {
                    if held.is_none() {
                        client.asks(false);
                    }
                    return Poll::Ready(None);
                }
            }
        }
        let bytes = self.rest.len().min(FRAME_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
