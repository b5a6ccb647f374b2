//! The gRPC listener: distributes connections over the workers, and serves them within bounds.

use std::{
    convert::Infallible,
    future::ready,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Limited;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, service::Routes};
use tower::Service as _;

use super::{
    age,
    slots::{ConnectionSlot, ConnectionSlots},
    socket::Socket,
};
use crate::{
    edge::{
        accept::{accept, secure, warn_once_a_minute},
        metrics::{ListenerMetrics, RefusedConnection},
    },
    net::{
        grpc::ServedMethod,
        tls::server::{ListenerTls, SecuredStream},
    },
    process::{calls::CallTracker, workers::Workers},
    rls::{
        framing::{ARRIVES_WITHIN, AnswerBody, OtherCall, STREAM_WINDOW_BYTES},
        large_calls::LargeCalls,
        refusal::Refusal,
        service::{ConnectedClient, Service},
    },
};

/// Maximum number of open calls on one connection. Further calls would wait in Envoy, and be lost if it shuts down. An
/// open call that sends nothing takes about 2 KiB.
const STREAMS_MAX: u32 = 8192;
/// Largest headers of a call, in bytes. Envoy's own maximum for a client's headers is 8 MiB.
const HEADER_LIST_BYTES_MAX: u32 = 9 << 20;
/// Unread data that a client may send for all calls of a connection, in bytes. Data is read as soon as it arrives.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Maximum number of streams that we reset because of the client's errors; see RUSTSEC-2024-0003.
const LOCAL_RESETS_MAX: usize = 1024;
/// Maximum number of calls that a client may cancel before we have accepted them. A client that cancels all of its calls
/// at once, because we were slow, does nothing wrong.
const REMOTE_RESETS_MAX: usize = STREAMS_MAX as usize;
/// A client that has vanished is detected within the sum of both.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);

/// The headers that the other services may need. They keep a call's headers while they wait for its body, so
/// passing on all of them would let a client use up the memory.
const HEADERS_OF_OTHERS: [HeaderName; 2] = [CONTENT_TYPE, HeaderName::from_static("grpc-encoding")];
const HEADER_OF_OTHERS_BYTES_MAX: usize = 128;
/// Most open calls of the other services and of RLQS on one connection, and most bytes that one of the others may send. `Watch`
/// stays open.
const OTHER_CALLS_MAX: usize = 100;
const OTHER_BYTES_MAX: usize = 4 << 10;

/// How long connections are still accepted after the stop, and the least time for which each is then served.
const CLOSE_AFTER: Duration = Duration::from_millis(100);

/// The pause until it is tried again whether a connection may be accepted.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(10);

#[derive(Debug, Clone)]
pub struct GrpcServices {
    pub rate_limit: Arc<Service>,
    /// Health and, if it is on, reflection.
    pub others: Routes,
}

/// The address on which the service answers gRPC.
pub struct Listener {
    pub socket: TcpListener,
    pub services: GrpcServices,
    pub slots: ConnectionSlots,
    pub tls: ListenerTls,
    pub metrics: ListenerMetrics,
}

/// Serves calls until `stop` is cancelled, and then finishes those in progress.
pub async fn serve(listener: Listener, workers: Arc<Workers>, stop: CancellationToken) {
    let Listener { socket, services, mut slots, tls, metrics } = listener;
    let mut connections = JoinSet::new();
    let mut closed = pin!(close_after(stop.clone()));
    loop {
        let may_accept = slots.may_accept(connections.len());
        tokio::select! {
            () = &mut closed => break,
            Some(_) = connections.join_next() => {}
            () = time::sleep(ACCEPT_AGAIN_AFTER), if !may_accept => {}
            stream = accept(&socket, &metrics), if may_accept => {
                let memory = services.rate_limit.memory_of_a_connection();
                let Some(slot) = slots.take(connections.len(), &metrics, memory) else {
                    metrics.refused(RefusedConnection::Full);
                    warn_once_a_minute(&metrics, "closed a connection: --max-connections have calls", None);
                    continue;
                };
                let Ok(stream) = stream.into_std() else { continue };
                let (services, tls, stop) = (services.clone(), tls.clone(), stop.clone());
                let age = slots.bounds.age;
                let open = metrics.opened();
                let connection = async move {
                    let (memory, tls) = (Arc::clone(&slot.memory), (tls, &open.0));
                    tokio::select! {
                        () = serve_connection(stream, services, age, tls, stop, &slot) => {}
                        () = memory.is_over() => {}
                    }
                    // The calls that outlive it.
                    if let Some(calls) = slot.calls.get() {
                        calls.clone().wait().await;
                    }
                    drop(open);
                };
                workers.spawn(&mut connections, connection);
            }
        }
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

/// Ends when the listener closes: connections that are in the accept queue at the stop are still served.
async fn close_after(stop: CancellationToken) {
    stop.cancelled().await;
    time::sleep(CLOSE_AFTER).await;
}

async fn serve_connection(
    stream: std::net::TcpStream,
    services: GrpcServices,
    age: Option<Duration>,
    (tls, metrics): (ListenerTls, &ListenerMetrics),
    stop: CancellationToken,
    slot: &Arc<ConnectionSlot>,
) {
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let Ok(address) = stream.peer_addr().map(|peer| peer.ip()) else { return };
    let secured = secure(stream, &tls, &slot.memory, metrics, &stop).await;
    let Some(SecuredStream { stream, identity }) = secured else { return };
    let calls = CallTracker::on_this_runtime();
    drop(slot.calls.set(calls.clone()));
    let gate = slot.gate.clone();
    let large_calls = LargeCalls::default();
    let socket = Socket::new(stream, gate.clone(), large_calls.clone(), Arc::clone(&slot.memory));
    let mut server = http2::Builder::new(calls.clone());
    server
        .timer(TokioTimer::new())
        // gRPC needs no date, and hyper panics on a clock before 1970.
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX)
        .max_pending_accept_reset_streams(REMOTE_RESETS_MAX)
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_WITHIN);
    let ending = CancellationToken::new();
    let client = Arc::new(ConnectedClient {
        calls,
        large_calls,
        memory: Arc::clone(&slot.memory),
        other_calls: Arc::new(Semaphore::new(OTHER_CALLS_MAX)),
        quota_turns: Arc::new(Semaphore::new(1)),
        ending: ending.clone(),
        identity,
        address,
    });
    let service = service_fn(|request| {
        slot.has_called.store(true, Ordering::Relaxed);
        services.answer(request, &client).map(Ok::<_, Infallible>)
    });
    let mut connection = pin!(server.serve_connection(TokioIo::new(socket), service));
    tokio::select! {
        // Connection errors are not reported: the service has not failed.
        _ = gate.run(connection.as_mut()) => return,
        // A new connection gets the time to send its calls.
        () = async { tokio::join!(stop.cancelled(), time::sleep(CLOSE_AFTER)); } => {}
        () = age::reached(age) => {}
        () = slot.is_silent() => return,
    }
    if !gate.has_spoken() {
        return;
    }
    ending.cancel();
    connection.as_mut().graceful_shutdown();
    drop(time::timeout(age::GRACE, gate.run(connection)).await);
}

impl GrpcServices {
    fn answer(
        &self,
        request: Request<Incoming>,
        client: &Arc<ConnectedClient>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send + use<> {
        let refused = match (request.method(), is_grpc(request.headers())) {
            (_, false) => Some(StatusCode::UNSUPPORTED_MEDIA_TYPE),
            (&Method::POST, true) => None,
            (_, true) => Some(StatusCode::METHOD_NOT_ALLOWED),
        };
        let method = ServedMethod::of(request.uri().path());
        let other: Pin<Box<dyn Future<Output = _> + Send>> = match (refused, method) {
            (Some(status), _) => Box::pin(ready(not_grpc(status))),
            (None, Some(ServedMethod::DecideStream)) => {
                let (service, client) = (Arc::clone(&self.rate_limit), Arc::clone(client));
                Box::pin(ready(service.answer_stream(request.into_body(), client)))
            }
            (None, Some(ServedMethod::StreamRateLimitQuotas)) => {
                let (service, client) = (Arc::clone(&self.rate_limit), Arc::clone(client));
                Box::pin(ready(service.answer_quotas(request.into_body(), client)))
            }
            (None, Some(method)) => {
                let (service, client) = (Arc::clone(&self.rate_limit), Arc::clone(client));
                return service.answer(method, request, client).left_future();
            }
            (None, None) => {
                Box::pin(answer_other(self.others.clone(), request, Arc::clone(client)))
            }
        };
        other.right_future()
    }
}

/// Answers a call of another service. Its bounds are ours, since tonic waits for a message without a limit.
async fn answer_other(
    mut others: Routes,
    request: Request<Incoming>,
    client: Arc<ConnectedClient>,
) -> Response<AnswerBody> {
    let answer = async {
        let mut call =
            Box::new(OtherCall::begin(OTHER_BYTES_MAX, &client.other_calls, &client.memory)?);
        let answer = time::timeout(ARRIVES_WITHIN, others.call(for_others(request))).await;
        let Ok(answer) = answer.map_err(|_| Refusal::TooSlow)?;
        Ok(answer.map(|body| {
            call.body = body;
            AnswerBody::Other(call)
        }))
    };
    answer.await.unwrap_or_else(|refusal: Refusal| refusal.status().into_http())
}

fn for_others(request: Request<Incoming>) -> Request<Body> {
    let (head, body) = request.into_parts();
    let body = Body::new(Limited::new(body, OTHER_BYTES_MAX));
    let mut request = Request::post(head.uri.path()).body(body).unwrap_or_default();
    for name in HEADERS_OF_OTHERS {
        if let Some(value) = head.headers.get(&name)
            && value.len() <= HEADER_OF_OTHERS_BYTES_MAX
        {
            request.headers_mut().insert(name, value.clone());
        }
    }
    request
}

/// Whether the content type is gRPC with Protobuf.
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let kind = value.and_then(|value| value.split(|byte| *byte == b';').next());
    kind.is_some_and(|kind| kind == b"application/grpc" || kind == b"application/grpc+proto")
}

/// The answer to a request that is not a gRPC call: 415, as gRPC requires for other content types, or 405.
fn not_grpc(status: StatusCode) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::End);
    *response.status_mut() = status;
    response
}
