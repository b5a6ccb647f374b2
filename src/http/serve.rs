//! The listener for HTTP: how many connections there may be, and how long each may take over what.
//!
//! Anyone who can reach the port can hold connections open; no more of them than this take file
//! descriptors from the calls that gRPC answers. A probe always finds room: it is taken from the connection
//! that has waited longest for a request.

use std::{
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use axum::Router;
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

use crate::{accept::accept, calls::Calls, store::system_clock};

/// With this many, one that waits for a request is closed. Further ones wait in the system's queue until
/// it has.
const CONNECTIONS_MAX: usize = 256;

/// The one that is to be closed may have begun a request at that moment. Then another is chosen.
const ANOTHER_AFTER: Duration = Duration::from_millis(10);

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
    let (mut clients, calls) = (Clients::default(), Calls::here());
    loop {
        let is_full = connections.len() == CONNECTIONS_MAX;
        if is_full {
            clients.close_one();
        }
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            () = time::sleep(ANOTHER_AFTER), if is_full => {}
            stream = accept(&listener, "http"), if !is_full => {
                let client = clients.add(&calls);
                connections.spawn(answer(stream, router.clone(), client, stop.clone()));
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    calls.ended().await;
}

async fn answer(stream: TcpStream, router: Router, client: Arc<Client>, stop: CancellationToken) {
    if !DATES_SECS.contains(&system_clock().as_secs()) {
        return refuse(stream).await;
    }
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request| {
        client.set(State::Busy);
        let answer = client.calls.run(router.call(request));
        let client = Arc::clone(&client);
        async move {
            let answer = answer.await;
            client.set(State::waits());
            answer
        }
    });
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // How it ended is its peer's affair.
        _ = &mut connection => return,
        // A request may have come since it was chosen.
        () = client.close.notified() => if client.waits_since().is_some() { return },
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

/// The clients that are connected, and some that no longer are.
#[derive(Default)]
struct Clients(Vec<Weak<Client>>);

struct Client {
    state: Mutex<State>,
    close: Notify,
    calls: Calls,
}

#[derive(Clone, Copy)]
enum State {
    /// For a request, or for the rest of its head.
    Waits(Instant),
    Busy,
}

impl State {
    fn waits() -> Self {
        Self::Waits(Instant::now())
    }
}

impl Clients {
    fn add(&mut self, calls: &Calls) -> Arc<Client> {
        let state = Mutex::new(State::waits());
        let client = Arc::new(Client { state, close: Notify::new(), calls: calls.clone() });
        self.0.retain(|client| client.strong_count() > 0);
        self.0.push(Arc::downgrade(&client));
        client
    }

    /// Closes the connection that has waited longest for a request. There is one as long as fewer requests
    /// than connections may take time; see [`super::REQUESTS_MAX`].
    fn close_one(&mut self) {
        let clients = self.0.iter().filter_map(Weak::upgrade);
        let waiting = clients.filter_map(|client| Some((client.waits_since()?, client)));
        if let Some((_, client)) = waiting.min_by_key(|(since, _)| *since) {
            client.close.notify_one();
        }
    }
}

impl Client {
    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn waits_since(&self) -> Option<Instant> {
        match *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Waits(since) => Some(since),
            State::Busy => None,
        }
    }
}
