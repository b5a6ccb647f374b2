//! The gRPC listener: connections come in, and are put on the workers.

use std::{
    convert::Infallible,
    future::ready,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE,
};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, service::Routes};
use tower::Service as _;

use super::{
    framing::{AnswerBody, Room},
    preface::speaking,
    service::Service,
    socket::Socket,
};
use crate::{
    calls::Calls,
    grpc::{self, METHOD_PATH},
    workers::Workers,
};

/// Bounds on what one connection may ask of us. Calls over this number would wait in Envoy, and be lost
/// where it ends; each that is open and silent costs about 2 KiB.
const STREAMS_MAX: u32 = 8192;
/// Whatever Envoy can hand on: it cannot be set to take more than 8 MiB of headers from a client.
const HEADER_LIST_BYTES_MAX: u32 = 9 << 20;
/// What a peer may send before it is read: of one call, and of all. It is read as soon as it comes.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// See RUSTSEC-2024-0003.
const LOCAL_RESETS_MAX: usize = 1024;
/// A caller who gives up many calls at once, because we were held up, does nothing wrong. Each can be
/// given up once.
const REMOTE_RESETS_MAX: usize = STREAMS_MAX as usize;
/// A peer that has vanished is noticed within the sum of both.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);

/// How long we go on taking connections when the service ends, and the least that one is served.
const CLOSES_WITHIN: Duration = Duration::from_millis(100);

/// What is served.
#[derive(Debug, Clone)]
pub struct Served {
    /// The method that all is about.
    pub service: Arc<Service>,
    /// Whatever else is asked.
    pub others: Routes,
}

/// Answers until `stop` is cancelled, and then finishes what is under way.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    workers: Arc<Workers>,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    // Who was let in by the system before the door closes is not turned away.
    let stopped = stop.clone();
    let closed = async move {
        stopped.cancelled().await;
        time::sleep(CLOSES_WITHIN).await;
    };
    let mut incoming = Box::pin(speaking(listener).take_until(closed));
    loop {
        let stream = tokio::select! {
            Some(_) = connections.join_next() => continue,
            stream = incoming.next() => stream,
        };
        let Some(stream) = stream else { break };
        let Ok(stream) = stream.into_std() else { continue };
        workers.spawn(&mut connections, answer(stream, served.clone(), stop.clone()));
    }
    drop(incoming);
    while connections.join_next().await.is_some() {}
}

async fn answer(stream: std::net::TcpStream, served: Served, stop: CancellationToken) {
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let calls = Calls::here();
    connect(stream, served, stop, calls.clone()).await;
    calls.ended().await;
}

/// Takes calls until the connection ends.
async fn connect(stream: TcpStream, served: Served, stop: CancellationToken, calls: Calls) {
    let (socket, end) = Socket::new(stream);
    let mut server = http2::Builder::new(calls.clone());
    server
        .timer(TokioTimer::new())
        // gRPC needs none, and hyper panics on a clock before 1970.
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX)
        .max_pending_accept_reset_streams(REMOTE_RESETS_MAX)
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_WITHIN);
    let room = Arc::default();
    let service =
        service_fn(move |request| served.answer(request, &calls, &room).map(Ok::<_, Infallible>));
    let mut connection = pin!(server.serve_connection(TokioIo::new(socket), service));
    tokio::select! {
        // How it ended is its peer's affair.
        _ = end.run(connection.as_mut()) => return,
        // One that has just come may not have said what it wants.
        () = async { tokio::join!(stop.cancelled(), time::sleep(CLOSES_WITHIN)); } => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(end.run(connection).await);
}

impl Served {
    fn answer(
        &self,
        request: Request<Incoming>,
        calls: &Calls,
        room: &Arc<Room>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send + use<> {
        let is_ours = request.uri().path() == METHOD_PATH;
        if is_ours && is_grpc(request.headers()) {
            return Arc::clone(&self.service)
                .answer(request, calls, Arc::clone(room))
                .left_future();
        }
        let other: Pin<Box<dyn Future<Output = _> + Send>> = match is_ours {
            true => Box::pin(ready(no_grpc())),
            false => Box::pin(self.others.clone().call(for_others(request)).map(of_others)),
        };
        other.right_future()
    }
}

/// The headers that other services may need. As long as they wait for a body they keep those that they
/// get, so that many large ones would take all memory.
const HEADERS_OF_OTHERS: [HeaderName; 2] = [CONTENT_TYPE, HeaderName::from_static("grpc-encoding")];
const HEADER_OF_OTHERS_BYTES_MAX: usize = 128;

fn for_others(request: Request<Incoming>) -> Request<Body> {
    let (head, body) = request.into_parts();
    let mut request = Request::post(head.uri.path()).body(Body::new(body)).unwrap_or_default();
    for name in HEADERS_OF_OTHERS {
        let value = head.headers.get(&name);
        if let Some(value) = value.filter(|it| it.len() <= HEADER_OF_OTHERS_BYTES_MAX) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    request
}

fn of_others(answered: Result<Response<Body>, Infallible>) -> Response<AnswerBody> {
    match answered {
        Ok(response) => response.map(AnswerBody::Other),
        Err(never) => match never {},
    }
}

/// Whether a request says that it is gRPC.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(grpc::CONTENT_TYPE.as_bytes()))
}

/// What the protocol wants one to hear who does not speak it.
fn no_grpc() -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::End);
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}
