//! One connection to each address of the service: which of them get calls, and how lost ones are made again.

use std::sync::{Arc, Weak, atomic::AtomicUsize, atomic::Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::{error::Error as StdError, io, iter, net::SocketAddr, pin::Pin, time::Duration};

use http::{Request, Response, Uri, uri::Authority};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, sleep, timeout};
use tokio::{sync::watch, task::JoinSet};
use tonic::{Status, body::Body};
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

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Sender = http2::SendRequest<Body>;
/// With a future that lasts as long as the connection.
type Connected = (Sender, BoxFuture<hyper::Result<()>>);

/// Where the service is.
pub(crate) struct Target {
    names: Vec<Authority>,
    /// Scheme and authority of requests.
    pub(crate) origin: Uri,
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

/// Sends each request to the next address that is connected.
#[derive(Clone)]
pub(crate) struct Channel(Arc<Shared>);

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
    #[expect(clippy::disallowed_methods, reason = "the task ends when the channel is dropped")]
    pub(crate) fn open(target: Target) -> Self {
        let (links, turn) = (watch::Sender::default(), AtomicUsize::new(0));
        let shared = Arc::new(Shared { target, links, turn });
        tokio::spawn(resolve(Arc::downgrade(&shared)));
        Self(shared)
    }

    async fn send(self, mut request: Request<Body>) -> Result<Response<Incoming>, Status> {
        loop {
            let connection = self.connection().await;
            // A caller that repeats failed calls at once must not stop the tasks that connect.
            if connection.as_ref().map_or(true, Sender::is_closed) {
                tokio::task::yield_now().await;
            }
            let mut sender = connection?;
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(mut error) => match error.take_message() {
                    // It was not sent, since the connection ended meanwhile.
                    Some(unsent) => request = unsent,
                    None => return Err(Status::unavailable(text(&error.into_error()))),
                },
            }
        }
    }

    async fn connection(&self) -> Result<Sender, Status> {
        let turn = self.0.turn.fetch_add(1, Relaxed);
        let mut picked = self.0.links.borrow().pick(turn);
        if picked.is_none() {
            let is_picked = |links: &Links| {
                picked = links.pick(turn);
                picked.is_some()
            };
            // It fails only without a sender, which is in `self`.
            let _ = self.0.links.subscribe().wait_for(is_picked).await;
        }
        picked.unwrap_or_else(|| Err(Status::cancelled("the client is closed")))
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = Status;
    type Future = BoxFuture<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
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
        let began = Instant::now();
        let error = match attempt {
            Ok(Ok((sender, connection))) => {
                set(State::Ready(sender), None);
                connection.await.map_or_else(|end| text(&end), |()| "it was closed".to_owned())
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no connection in time".to_owned(),
        };
        if began.elapsed() > PAUSE_MAX {
            pause = PAUSE_MIN;
            if !set(State::Connecting, None) {
                return;
            }
        } else if set(State::Failed, Some(error)) {
            sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        } else {
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

    async fn connect(&self, address: SocketAddr) -> io::Result<Connected> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let host = self.origin.host().unwrap_or_default();
            return handshake(tls.connect(stream, host.trim_matches(['[', ']'])).await?).await;
        }
        let (read, write) = stream.into_split();
        handshake(tokio::io::join(PlainRead(read, false), PlainWrite(write))).await
    }
}

/// What a service writes without TLS, and whether it has written anything.
struct PlainRead(OwnedReadHalf, bool);

impl AsyncRead for PlainRead {
    /// An alert of TLS is an error: as HTTP/2 it would be a frame that is too large.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        if !self.1 && read.starts_with(&TLS_ALERT) {
            return Poll::Ready(Err(io::Error::other(EXPECTS_TLS)));
        }
        self.1 = true;
        Poll::Ready(Ok(()))
    }
}

/// What a service without TLS is sent.
struct PlainWrite(OwnedWriteHalf);

impl PlainWrite {
    /// A service with TLS closes behind its alert, so that a write may fail before the alert is read.
    fn cause(&self, error: io::Error) -> io::Error {
        let mut start = [0; TLS_ALERT.len()];
        let read = self.0.as_ref().try_read(&mut start);
        if read.is_ok() && start == TLS_ALERT { io::Error::other(EXPECTS_TLS) } else { error }
    }
}

impl AsyncWrite for PlainWrite {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.0).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.cause(error)))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.0).poll_write_vectored(context, parts));
        Poll::Ready(written.map_err(|error| self.cause(error)))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<Connected> {
    let mut settings = http2::Builder::new(TokioExecutor::new());
    settings.timer(TokioTimer::new()).keep_alive_while_idle(true);
    settings.keep_alive_interval(PING_PAUSE).keep_alive_timeout(PING_TIMEOUT);
    let connected = settings.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = connected.map_err(io::Error::other)?;
    Ok((sender, Box::pin(connection)))
}

/// An error with its causes.
fn text(error: &(dyn StdError + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
