//! One connection to each address of the service: which of them get calls, and how lost ones are made again.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Weak, atomic::AtomicUsize, atomic::Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::{error::Error as StdError, io, iter, net::SocketAddr, pin::Pin, time::Duration};

use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, join};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, sleep, timeout};
use tokio::{select, sync::oneshot, sync::watch, task::JoinSet};
use tonic::{Status, body::Body, codegen::Body as HttpBody, codegen::Bytes};
use tower_service::Service;

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
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Sending = BoxFuture<Result<Response<Body>, Status>>;
type Sender = http2::SendRequest<Body>;
/// With a future that lasts as long as the connection.
type Connected = (Sender, BoxFuture<hyper::Result<()>>);

/// Where the service is.
pub(crate) struct Target {
    names: Vec<Authority>,
    /// Scheme and authority of requests.
    origin: Uri,
    #[cfg(feature = "tls")]
    tls: Option<crate::Tls>,
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

/// Sends requests to the service.
#[derive(Clone)]
pub(crate) struct Channel {
    /// Scheme and authority of requests.
    pub(crate) origin: Uri,
    send: Arc<dyn Fn(Request<Body>) -> Sending + Send + Sync>,
}

struct Shared {
    target: Target,
    links: watch::Sender<Links>,
    turn: AtomicUsize,
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

impl Channel {
    /// Sends each request to the next address that is connected.
    #[expect(clippy::disallowed_methods, reason = "the task ends when the channel is dropped")]
    pub(crate) fn open(target: Target) -> Self {
        let (origin, links, turn) = (target.origin.clone(), watch::Sender::default(), 0.into());
        let shared = Arc::new(Shared { target, links, turn });
        tokio::spawn(resolve(Arc::downgrade(&shared)));
        Self { origin, send: Arc::new(move |request| Box::pin(send(Arc::clone(&shared), request))) }
    }

    /// Sends requests by a service of the caller's own.
    pub(crate) fn over<S, B>(service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let send = move |request| -> Sending {
            let mut service = service.clone();
            Box::pin(async move {
                let failed = |error: S::Error| Status::from_error(error.into());
                poll_fn(|context| service.poll_ready(context)).await.map_err(failed)?;
                Ok(service.call(request).await.map_err(failed)?.map(Body::new))
            })
        };
        Self { origin: Uri::default(), send: Arc::new(send) }
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = Sending;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Sending {
        (self.send)(request)
    }
}

async fn send(channel: Arc<Shared>, mut request: Request<Body>) -> Result<Response<Body>, Status> {
    loop {
        let connection = channel.connection().await;
        // A caller that repeats failed calls at once must not stop the tasks that connect.
        if connection.as_ref().map_or(true, Sender::is_closed) {
            tokio::task::yield_now().await;
        }
        let mut sender = connection?;
        match sender.try_send_request(request).await {
            Ok(response) => return Ok(response.map(Body::new)),
            Err(mut error) => match error.take_message() {
                // It was not sent, since the connection ended meanwhile.
                Some(unsent) => request = unsent,
                None => return Err(Status::unavailable(text(&error.into_error()))),
            },
        }
    }
}

impl Shared {
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
}

/// Keeps a task for each address that the names have, until the channel is dropped.
async fn resolve(channel: Weak<Shared>) {
    let (mut tasks, mut ids) = (JoinSet::new(), 0..);
    while let Some(shared) = channel.upgrade() {
        let (mut found, mut error) = (Vec::new(), None);
        for name in &shared.target.names {
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
                    tasks.spawn(keep(channel.clone(), id, address));
                }
            }
        });
        drop(shared);
        while tasks.try_join_next().is_some() {}
        sleep(RESOLVE_PAUSE).await;
    }
}

/// Connects to an address again and again, until its link is removed. A connection without a link ends with its calls.
async fn keep(channel: Weak<Shared>, id: usize, address: SocketAddr) {
    let mut pause = PAUSE_MIN;
    // Returns whether there still is a link.
    let set = |state, error: Option<String>| {
        let Some(shared) = channel.upgrade() else { return false };
        shared.links.send_if_modified(|links| {
            links.error = error.map(|it| format!("{address}: {it}")).or(links.error.take());
            let link = links.list.iter_mut().find(|link| link.id == id);
            link.map(|link| link.state = state).is_some()
        })
    };
    while let Some(shared) = channel.upgrade() {
        let attempt = timeout(CONNECT_TIMEOUT, shared.target.connect(address)).await;
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
        let (scheme, tls) =
            (if options.tls.is_some() { "https" } else { "http" }, options.tls.clone());
        #[cfg(feature = "tls")]
        tls.as_ref().map(crate::Tls::config).transpose()?;
        #[cfg(not(feature = "tls"))]
        let (scheme, _) = ("http", options);
        let origin = names.first().map(|name| format!("{scheme}://{name}").parse());
        let origin = origin.and_then(Result::ok).unwrap_or_default();
        Ok(Self {
            names,
            origin,
            #[cfg(feature = "tls")]
            tls,
        })
    }

    pub(crate) fn is_secured(&self) -> bool {
        self.origin.scheme() == Some(&Scheme::HTTPS)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<Connected> {
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
        let Some(answered) = self.1.take() else { return Poll::Ready(Ok(())) };
        let read = buffer.filled().get(before..).unwrap_or_default();
        if read.starts_with(&TLS_ALERT) {
            return Poll::Ready(Err(io::Error::other(EXPECTS_TLS)));
        }
        if !read.is_empty() {
            // Its receiver may have gone.
            let _ = answered.send(());
        }
        Poll::Ready(Ok(()))
    }
}

/// Connects once the service has answered. No call is sent to one that only accepts connections.
async fn handshake<R, W>(read: R, write: W) -> io::Result<Connected>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let mut settings = http2::Builder::new(TokioExecutor::new());
    settings.timer(TokioTimer::new()).keep_alive_while_idle(true);
    settings.keep_alive_interval(PING_PAUSE).keep_alive_timeout(PING_TIMEOUT);
    let (first, answered) = oneshot::channel();
    let stream = TokioIo::new(join(Answers(read, Some(first)), write));
    let connected = settings.handshake(stream).await;
    let (sender, connection) = connected.map_err(io::Error::other)?;
    let mut connection: BoxFuture<_> = Box::pin(connection);
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
