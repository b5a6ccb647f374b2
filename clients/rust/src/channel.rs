//! One connection to each address of the service: which of them get calls, and how lost ones are made again.

use std::sync::{Arc, Weak, atomic::AtomicUsize, atomic::Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::{error::Error as StdError, io, iter, net::SocketAddr, pin::Pin, time::Duration};

use http::uri::{Authority, Uri};
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, join};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, sleep, timeout};
use tokio::{select, sync::oneshot, sync::watch, task::JoinSet};
use tonic::{Code, Status, body::Body, codegen::Body as HttpBody, codegen::Bytes};
use tower::{Service, ServiceExt as _, service_fn, util::BoxCloneSyncService};

use crate::{Error, Options};

/// For TCP and the handshake of TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RESOLVE_PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Notices a peer that has disappeared without closing its connection.
const PING_PAUSE: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// How a TLS server begins its answer to something else. HTTP/2 begins with a frame of at most 2^14 bytes, whose first byte is 0.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];
const EXPECTS_TLS: &str =
    "the service answers in TLS, and the target is plain (http): set `tls` in the options";

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
type Sender = http2::SendRequest<Body>;
/// Lasts as long as the connection.
type Connection = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// Sends requests to the service.
pub(crate) type Channel = BoxCloneSyncService<Request<Body>, Response<Body>, Status>;

/// Where the service is, and its connections.
pub(crate) struct Target {
    names: Vec<Authority>,
    /// Scheme and authority of requests.
    pub(crate) origin: Uri,
    #[cfg(feature = "tls")]
    tls: Option<crate::Tls>,
    links: watch::Sender<Links>,
    turn: AtomicUsize,
}

/// The connection to one address.
struct Link {
    id: usize,
    address: SocketAddr,
    state: State,
}

enum State {
    /// The connection is being opened. Calls wait for it only if no other address has one.
    Connecting,
    Ready(Sender),
    Failed,
}

#[derive(Default)]
struct Links {
    list: Vec<Link>,
    /// Why the last attempt to resolve a name or to connect failed.
    error: Option<String>,
}

impl Links {
    /// The next connection, or an error if there is nothing to wait for.
    fn pick(&self, turn: usize) -> Option<Result<Sender, Status>> {
        let mut waits = false;
        let first = turn.checked_rem(self.list.len()).unwrap_or_default();
        for link in self.list.iter().cycle().skip(first).take(self.list.len()) {
            match &link.state {
                State::Ready(sender) if !sender.is_closed() => return Some(Ok(sender.clone())),
                State::Ready(_) | State::Connecting => waits = true,
                State::Failed => {}
            }
        }
        let error = self.error.as_ref().filter(|_| !waits);
        error.map(|error| Err(Status::unavailable(error)))
    }
}

/// Sends requests by a service of the caller's own.
pub(crate) fn over<S, B>(service: S) -> Channel
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let failed = |error: S::Error| Status::from_error(error.into());
    let answered = |answer: Result<Response<B>, Status>| answer.and_then(of_grpc);
    BoxCloneSyncService::new(service.map_err(failed).map_result(answered))
}

/// The answer, or an error if it is not a gRPC answer, such as an error page of a proxy. gRPC's http-grpc-status-mapping gives
/// the code.
fn of_grpc<B>(response: Response<B>) -> Result<Response<Body>, Status>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (status, headers) = (response.status(), response.headers());
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_page = kind.is_some_and(|kind| !kind.starts_with(b"application/grpc"));
    if headers.contains_key(Status::GRPC_STATUS) || status == StatusCode::OK && !is_page {
        return Ok(response.map(Body::new));
    }
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Err(Status::new(code, format!("the answer is not of gRPC: HTTP status {status}")))
}

impl Target {
    pub(crate) fn new(target: &str, options: &Options) -> Result<Self, Error> {
        let parse = |name: &str| {
            let name = name.trim().parse().ok().filter(|name: &Authority| name.port().is_some());
            name.ok_or_else(|| {
                Error("target: must be HOST:PORT, or several with commas".to_owned())
            })
        };
        let names = target.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
        #[cfg(feature = "tls")]
        options.tls.as_ref().map(crate::Tls::config).transpose()?;
        let scheme = if options.is_secured() { "https" } else { "http" };
        let origin = names.first().map(|name| format!("{scheme}://{name}").parse());
        Ok(Self {
            names,
            origin: origin.and_then(Result::ok).unwrap_or_default(),
            #[cfg(feature = "tls")]
            tls: options.tls.clone(),
            links: watch::Sender::default(),
            turn: AtomicUsize::default(),
        })
    }

    /// Sends each request to the next address that is connected.
    #[expect(clippy::disallowed_methods, reason = "the task ends when the channel is dropped")]
    pub(crate) fn open(self) -> Channel {
        let target = Arc::new(self);
        tokio::spawn(resolve(Arc::downgrade(&target)));
        BoxCloneSyncService::new(service_fn(move |request| Arc::clone(&target).send(request)))
    }

    async fn send(self: Arc<Self>, mut request: Request<Body>) -> Result<Response<Body>, Status> {
        loop {
            let connection = self.connection().await;
            // A caller that repeats failed calls at once must not stop the tasks that connect.
            if connection.as_ref().map_or(true, Sender::is_closed) {
                tokio::task::yield_now().await;
            }
            let mut sender = connection?;
            match sender.try_send_request(request).await {
                Ok(response) => return of_grpc(response),
                Err(mut error) => match error.take_message() {
                    // It was not sent, since the connection ended meanwhile.
                    Some(unsent) => request = unsent,
                    None => return Err(Status::unavailable(text(&error.into_error()))),
                },
            }
        }
    }

    async fn connection(&self) -> Result<Sender, Status> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let mut picked = self.links.borrow().pick(turn);
        if picked.is_none() {
            let is_picked = |links: &Links| {
                picked = links.pick(turn);
                picked.is_some()
            };
            // It fails only without a sender, which is in `self`.
            let _ = self.links.subscribe().wait_for(is_picked).await;
        }
        picked.unwrap_or_else(|| Err(Status::unavailable("there is no connection")))
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<(Sender, Connection)> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let host = self.origin.host().unwrap_or_default();
            let stream = tls.connect(stream, host.trim_matches(['[', ']'])).await;
            let stream = stream.map_err(|error| io::Error::other(format!("TLS: {error}")))?;
            let (read, write) = tokio::io::split(stream);
            return handshake(read, write).await;
        }
        let (read, write) = stream.into_split();
        handshake(read, write).await
    }
}

/// Keeps a task for each address that the names have, until the channel is dropped.
async fn resolve(target: Weak<Target>) {
    let (mut tasks, mut ids) = (JoinSet::new(), 0..);
    while let Some(shared) = target.upgrade() {
        let (mut found, mut error) = (Vec::new(), None);
        for name in &shared.names {
            match lookup_host(name.as_str()).await {
                Ok(addresses) => found.extend(addresses),
                Err(failure) => error = Some(format!("{name}: {failure}")),
            }
        }
        shared.links.send_modify(|links| {
            if error.is_none() {
                links.list.retain(|link| found.contains(&link.address));
            }
            links.error = error.or(links.error.take());
            for address in found {
                if links.list.iter().all(|link| link.address != address) {
                    let id = ids.next().unwrap_or_default();
                    links.list.push(Link { id, address, state: State::Connecting });
                    tasks.spawn(keep(target.clone(), id, address));
                }
            }
        });
        drop(shared);
        while tasks.try_join_next().is_some() {}
        sleep(RESOLVE_PAUSE).await;
    }
}

/// Connects to an address again and again, until its link is removed. A connection without a link ends with its calls.
async fn keep(target: Weak<Target>, id: usize, address: SocketAddr) {
    let mut pause = PAUSE_MIN;
    // Returns whether there still is a link.
    let set = |state, error: Option<String>| {
        let Some(shared) = target.upgrade() else { return false };
        shared.links.send_if_modified(|links| {
            links.error = error.map(|it| format!("{address}: {it}")).or(links.error.take());
            let link = links.list.iter_mut().find(|link| link.id == id);
            link.map(|link| link.state = state).is_some()
        })
    };
    while let Some(shared) = target.upgrade() {
        let attempt = timeout(CONNECT_TIMEOUT, shared.connect(address)).await;
        drop(shared);
        let is_kept = match attempt.unwrap_or_else(|late| Err(late.into())) {
            Ok((sender, connection)) => {
                set(State::Ready(sender), None);
                let began = Instant::now();
                // Its calls have got the error.
                let _ = connection.await;
                pause = PAUSE_MIN;
                let is_kept = set(State::Connecting, None);
                sleep(PAUSE_MIN.saturating_sub(began.elapsed())).await;
                is_kept
            }
            Err(error) => {
                let is_kept = set(State::Failed, Some(error.to_string()));
                sleep(pause).await;
                pause = PAUSE_MAX.min(pause * 2);
                is_kept
            }
        };
        if !is_kept {
            return;
        }
    }
}

/// What the service writes, until its first bytes have shown that it speaks HTTP/2.
struct Answers<R>(R, Option<oneshot::Sender<()>>);

impl<R: AsyncRead + Unpin> AsyncRead for Answers<R> {
    /// An alert of TLS is an error: as HTTP/2 it would be a frame that is too large.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        if let Some(answered) = self.1.take_if(|_| !read.is_empty()) {
            if read.starts_with(&TLS_ALERT) {
                return Poll::Ready(Err(io::Error::other(EXPECTS_TLS)));
            }
            // Its receiver may have gone.
            let _ = answered.send(());
        }
        Poll::Ready(Ok(()))
    }
}

/// Connects once the service has answered. No call is sent to one that only accepts connections.
async fn handshake<R, W>(read: R, write: W) -> io::Result<(Sender, Connection)>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let mut settings = http2::Builder::new(TokioExecutor::new());
    settings.timer(TokioTimer::new()).keep_alive_while_idle(true);
    settings.keep_alive_interval(PING_PAUSE).keep_alive_timeout(PING_TIMEOUT);
    let (first, answered) = oneshot::channel();
    let stream = TokioIo::new(join(Answers(read, Some(first)), write));
    let (sender, connection) = settings.handshake(stream).await.map_err(io::Error::other)?;
    let mut connection: Connection = Box::pin(connection);
    select! {
        end = &mut connection => {
            let closed = || "the service has closed the connection".to_owned();
            Err(io::Error::other(end.err().map_or_else(closed, |error| text(&error))))
        }
        Ok(()) = answered => Ok((sender, connection)),
    }
}

/// An error with its causes.
fn text(error: &(dyn StdError + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
