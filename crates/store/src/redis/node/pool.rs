//! Connections to Redis. A connection whose command did not finish is closed, never reused.
//!
//! bb8's defaults are wrong for a call that may take 15 ms: it would ping at each checkout, wait 30
//! seconds, and swallow errors. Every option is spelled out here.

use std::{
    fmt, io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bb8::ManageConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::{
    select,
    sync::Notify,
    time::{self, Instant},
};
use tollkeeper_base::process::{pause::jittered, workers};

use super::server_checks::Checks;
use crate::{
    StoreError,
    metrics::StoreMetrics,
    outage::Outage,
    redis::{
        script::WriteRefusal,
        wire::{
            connection::{self, CONNECT_WITHIN, Connection},
            endpoint::Server,
            server_info::ServerInfo,
        },
    },
    report::ServerReport,
};

/// The least time after which a connection is replaced, so that a server whose DNS name has moved is found.
const LIFETIME: Duration = Duration::from_secs(600);

/// A connection that was idle for longer is tried by a PING first: something between may have forgotten it.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Minimum number of connections of one worker: it needs several where answers are late.
const PART_MIN: usize = 4;

#[derive(Clone)]
pub(crate) struct PoolOptions {
    /// Where Redis is, and how to log in there.
    pub server: Server,
    pub checks: Arc<Checks>,
    /// Maximum number of connections, at least 1.
    pub connections_max: u32,
    /// Number of workers. Each keeps connections of its own if there are enough.
    pub workers: usize,
    /// How long the server may take for an answer.
    pub timeout: Duration,
    /// Is notified of connections that cannot be opened.
    pub outage: Outage,
}

/// Connections to one Redis. Each worker has its own, since its runtime waits for them; if there are too few,
/// workers share.
#[derive(Clone)]
pub(crate) struct Pool(Arc<PoolInner>);

struct PoolInner {
    options: PoolOptions,
    metrics: StoreMetrics,
    /// The first is for threads that are not workers.
    parts: Vec<OnceLock<bb8::Pool<Manager>>>,
    /// How often all connections were discarded.
    discards: Arc<AtomicU64>,
    /// Is notified when a connection could not be opened.
    failed: Arc<Notify>,
    /// Is notified when the server answers again on a connection that was opened outside of the pool.
    answers: Arc<Notify>,
    /// Number of batches that wait for a connection.
    waiting: AtomicU64,
}

/// A connection that a batch has to itself.
pub(crate) type Connected<'pool> = bb8::PooledConnection<'pool, Manager>;

/// Omits the connections, which are of no use in a log line.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool that connects when it is first used.
    pub(crate) fn new(options: PoolOptions, metrics: StoreMetrics) -> Self {
        let most = usize::try_from(options.connections_max).unwrap_or(usize::MAX);
        let parts = (most / PART_MIN).clamp(1, options.workers + 1);
        let parts = (0..parts).map(|_| OnceLock::new()).collect();
        Self(Arc::new(PoolInner {
            options,
            metrics,
            parts,
            discards: Arc::default(),
            failed: Arc::default(),
            answers: Arc::default(),
            waiting: AtomicU64::new(0),
        }))
    }

    /// A connection for one batch, as soon as there is one. It must be requested inside a tokio runtime.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if an attempt to open one fails while there is no other.
    pub(crate) async fn get(&self) -> Result<Connected<'_>, StoreError> {
        self.get_tried_after(IDLE_MAX).await
    }

    /// As [`get`](Self::get), but a connection that was idle for longer than this is first tried by a PING.
    pub(crate) async fn get_tried_after(
        &self,
        idle_max: Duration,
    ) -> Result<Connected<'_>, StoreError> {
        let Some(connections) = self.part() else {
            return Err(StoreError::Unavailable("no connections are allowed".to_owned()));
        };
        let _waits = Waits::new(&self.0.waiting);
        loop {
            let failed = self.0.failed.notified();
            let held = select! {
                biased;
                held = connections.get() => held,
                () = failed => match connections.state().connections {
                    0 => return Err(self.0.options.outage.no_connection()),
                    _ => continue,
                },
            };
            let mut held = held.map_err(|_| StoreError::NoConnection)?;
            // One that the server closed while it was idle is dropped here, and not a call with it. An old one stays
            // until there is another.
            let is_replaced = || connections.state().idle_connections > 0;
            if held.discards == self.0.discards.load(Ordering::Relaxed)
                && !held.is_closed()
                && (Instant::now() < held.replace_at || !is_replaced())
                && (held.answered_at.elapsed() < idle_max || self.answers(&mut held).await)
            {
                return Ok(held);
            }
            held.retire();
        }
    }

    /// Adds a connection on which the server has just answered, if there is room. Those that are being opened start
    /// again: their packets may have been lost before.
    pub(crate) fn answers_on(&self, connection: Connection) {
        if let Some(part) = self.part() {
            drop(part.add(connection));
        }
        self.0.answers.notify_waiters();
    }

    /// Whether a connection answers now.
    async fn answers(&self, connection: &mut Connection) -> bool {
        // Enough is left of the budget to open another.
        let (ping, limit) = (redis::cmd("PING"), self.timeout() / 4);
        let answer = time::timeout(limit, connection.query::<()>(&ping)).await;
        matches!(answer, Ok(Ok(())))
    }

    /// Notes that a connection answers although all were [discarded](Self::discard).
    pub(crate) fn keep(&self, connection: &mut Connection) {
        connection.discards = self.0.discards.load(Ordering::Relaxed);
    }

    /// This worker's part of the pool; `None` if no connections are allowed.
    fn part(&self) -> Option<&bb8::Pool<Manager>> {
        let part = self.0.parts.get(workers::share(self.0.parts.len()))?;
        Some(part.get_or_init(|| self.0.connect()))
    }

    /// What is known of the connections, and of their server's use.
    pub(crate) fn report(&self) -> ServerReport {
        let PoolOptions { connections_max, checks, .. } = &self.0.options;
        let mut report = ServerReport {
            connections_max: u64::from(*connections_max),
            waiting: self.0.waiting.load(Ordering::Relaxed),
            usage: checks.usage(),
            ..ServerReport::default()
        };
        for part in self.0.parts.iter().filter_map(OnceLock::get) {
            let state = part.state();
            report.connections += u64::from(state.connections);
            report.idle += u64::from(state.idle_connections);
        }
        report
    }

    /// Since when the present run of the server is known.
    pub(crate) fn known_since(&self) -> Option<Instant> {
        self.0.options.checks.known_since()
    }

    /// Queries how much memory and how many clients the server has. The last report stays if it gives none.
    pub(crate) async fn learn_usage(&self) {
        let Ok(mut connection) = self.get().await else { return };
        let info = redis::cmd("INFO");
        if let Ok(Ok(info)) = time::timeout(CONNECT_WITHIN, connection.query::<String>(&info)).await
        {
            self.0.options.checks.learn_usage(ServerInfo(&info));
        }
    }

    /// Opens a connection that does not belong to the pool.
    pub(crate) async fn open(&self) -> RedisResult<Connection> {
        self.0.manager().open().await
    }

    /// Sees to it that no connection that was opened before is used again.
    pub(super) fn discard(&self) {
        self.0.discards.fetch_add(1, Ordering::Relaxed);
    }

    /// Where its connections lead.
    pub(crate) fn server(&self) -> &Server {
        &self.0.options.server
    }

    pub(crate) fn workers(&self) -> usize {
        self.0.options.workers
    }

    /// How long the server may take for an answer.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.options.timeout
    }
}

/// A batch that waits for a connection, until this is dropped.
struct Waits<'pool>(&'pool AtomicU64);

impl<'pool> Waits<'pool> {
    fn new(waiting: &'pool AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PoolInner {
    /// One part of the pool, which connects in the background.
    fn connect(&self) -> bb8::Pool<Manager> {
        let PoolOptions { connections_max, .. } = self.options;
        let parts = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        let connections_max = (connections_max / parts).max(1);
        bb8::Pool::builder()
            .max_size(connections_max)
            // A second one, for when the first is lost and making another takes its time.
            .min_idle(Some(connections_max.min(2)))
            // A PING would double the round trips, and proves nothing about the next command.
            .test_on_check_out(false)
            // `get` replaces old ones.
            .max_lifetime(None)
            .idle_timeout(None)
            .connection_timeout(CONNECT_WITHIN)
            // The next call tries again; a retry of bb8's own would only hold its place.
            .retry_connection(false)
            .queue_strategy(bb8::QueueStrategy::Lifo)
            .error_sink(Box::new(CountedErrors(self.metrics.clone())))
            .build_unchecked(self.manager())
    }

    fn manager(&self) -> Manager {
        let PoolOptions { server, checks, outage, .. } = self.options.clone();
        let (discards, failed) = (Arc::clone(&self.discards), Arc::clone(&self.failed));
        Manager { server, checks, outage, discards, failed, answers: Arc::clone(&self.answers) }
    }
}

/// The failure of a command: Redis takes no writes, or gives no answer.
pub(crate) fn failure(error: &RedisError) -> StoreError {
    WriteRefusal::from_error(error).map_or_else(|| unavailable(error), StoreError::from)
}

pub(crate) fn unavailable(error: &RedisError) -> StoreError {
    StoreError::Unavailable(match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) => {
            error.detail().unwrap_or("login refused").to_owned()
        }
        (_, Some("NOAUTH")) => "it requires a login".to_owned(),
        (ErrorKind::Server(ServerErrorKind::ClusterDown), _) => {
            "CLUSTERDOWN: it considers the cluster down".to_owned()
        }
        _ => error.to_string().replace(['\r', '\n'], " "),
    })
}

/// What to say of a command that the server refuses to its user. The server's own text also names the user, as it pleases.
pub(crate) fn not_permitted(error: &RedisError, server: &Server) -> Option<StoreError> {
    if error.code() != Some("NOPERM") {
        return None;
    }
    // The last quoted word: a name may have quotes, too.
    let command = error.detail().and_then(|text| text.rsplit('\'').nth(1));
    let is_name =
        |text: &&str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'|');
    let command = command.filter(is_name).map(str::to_ascii_uppercase);
    let refused = command.map_or_else(
        || "use a key or a command that is needed".to_owned(),
        |command| format!("run {command}"),
    );
    let user = server.access.user_in_words();
    Some(StoreError::NotPermitted(format!("{user} may not {refused}")))
}

/// Makes connections for the pool, and judges them when they come back.
pub(crate) struct Manager {
    server: Server,
    checks: Arc<Checks>,
    outage: Outage,
    discards: Arc<AtomicU64>,
    failed: Arc<Notify>,
    answers: Arc<Notify>,
}

/// Only the server is of use.
impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("server", &self.server).finish_non_exhaustive()
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        let opened = loop {
            select! {
                biased;
                opened = time::timeout(CONNECT_WITHIN, self.open()) => break opened,
                () = self.answers.notified() => {}
            }
        };
        let opened =
            opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        opened.inspect_err(|error| {
            self.outage.cannot_connect(&unavailable(error));
            self.failed.notify_waiters();
        })
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        connection.query(&redis::cmd("PING")).await
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        !connection.is_usable() || connection.is_closed()
    }
}

impl Manager {
    /// Connects, and checks that the server is one that we can work with.
    async fn open(&self) -> RedisResult<Connection> {
        let mut connection = connection::open(&self.server).await?;
        self.checks.run(&mut connection).await?;
        // It has just answered.
        connection.discards = self.discards.load(Ordering::Relaxed);
        connection.replace_at = Instant::now() + jittered(LIFETIME);
        Ok(connection)
    }
}

/// Counts what bb8 would swallow: connections that could not be made for the pool.
#[derive(Debug, Clone)]
struct CountedErrors(StoreMetrics);

impl bb8::ErrorSink<RedisError> for CountedErrors {
    fn sink(&self, _: RedisError) {
        self.0.connection_failures.add(1, &[]);
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}
