//! Whether one server answers: its outage, its breaker, and the task that probes it as long as an outage lasts.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use redis::RedisResult;
use tokio::{
    runtime::Handle,
    select,
    sync::Notify,
    time::{self, Instant},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tollkeeper_base::{
    process::pause::Pause,
    telemetry::{EventKind, happened},
};

use super::{
    breaker::Breaker,
    pool::{self, Pool},
    probe::ProbeWrite,
};
use crate::{
    StoreError, lateness,
    metrics::StoreMetrics,
    outage::Outage,
    redis::{
        script,
        wire::connection::{CONNECT_WITHIN, Connection},
    },
};

/// The time from one probe to the next: first this, and twice as long after each, up to [`PAUSE_MAX`]. A probe does not wait
/// for those before it, whose packets may be lost: with [`CONNECT_WITHIN`], this bounds how many are under way.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A probe or a command beside calls has at least this long to be answered, even if the decision budget is shorter.
const ANSWER_WITHIN_MIN: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) pool: Pool,
    pub(crate) breaker: Breaker,
    outage: Outage,
    /// Is notified when the server fails: another may have taken over.
    search_due: Arc<Notify>,
    /// Is notified when the breaker opens.
    opens: Notify,
    metrics: StoreMetrics,
    label: String,
    /// What the metrics show: a [`ShownState`].
    shown: AtomicU8,
    pub(crate) probe: ProbeWrite,
    is_probed: AtomicBool,
    retired: CancellationToken,
    probes: TaskTracker,
}

impl ServerState {
    /// The state of a server that is taken to answer.
    pub(crate) fn new(
        pool: Pool,
        outage: Outage,
        search_due: Arc<Notify>,
        metrics: StoreMetrics,
        probe: ProbeWrite,
    ) -> Self {
        Self {
            label: pool.server().address.to_string(),
            pool,
            breaker: Breaker::default(),
            outage,
            search_due,
            opens: Notify::new(),
            metrics,
            shown: AtomicU8::new(ShownState::Nothing as u8),
            probe,
            is_probed: AtomicBool::new(false),
            retired: CancellationToken::new(),
            probes: TaskTracker::new(),
        }
    }

    pub(crate) fn answered(&self) {
        self.breaker.answered();
        self.outage.answered();
        self.show();
    }

    /// Records that a call or a probe has failed.
    pub(crate) fn failed(self: &Arc<Self>, error: &StoreError) {
        self.outage.failed(error);
        if self.breaker.failed(error) {
            // What they hold may never be answered, though the server answers others.
            self.pool.discard();
            self.opens.notify_waiters();
        }
        self.show();
        self.search_due.notify_one();
        self.start_probing();
    }

    /// Waits until the breaker opens. Returns what calls are answered with meanwhile.
    pub(crate) async fn opened(&self) -> StoreError {
        self.opens.notified().await;
        self.breaker.refusal().unwrap_or(StoreError::TimedOut)
    }

    /// Whether no outage of it is known.
    pub(crate) fn is_up(&self) -> bool {
        !self.outage.lasts()
    }

    /// Whether a connection to the server can be had.
    pub(crate) async fn is_reached(&self) -> bool {
        let is_reached = self.pool.get().await.is_ok();
        if is_reached && !self.breaker.is_open() {
            self.outage.ended();
            self.show();
        }
        is_reached
    }

    /// Ends the probing of a server that is retired, and its outage, which does not matter any more.
    pub(crate) async fn leave(&self) {
        self.retired.cancel();
        self.probes.close();
        self.probes.wait().await;
        self.outage.retired();
        // The SDK cannot end a series.
        self.metrics.server(&self.label, true, false);
    }

    /// Brings the metrics up to date. While nothing changes this costs three loads.
    fn show(&self) {
        let is_open = self.breaker.is_open();
        let shown = match (self.outage.lasts(), is_open) {
            (false, _) => ShownState::Up,
            (true, false) => ShownState::Down,
            (true, true) => ShownState::Open,
        } as u8;
        if self.shown.load(Ordering::Relaxed) == shown {
            return;
        }
        let before = self.shown.swap(shown, Ordering::Relaxed);
        if before != shown {
            self.metrics.server(&self.label, self.is_up(), is_open);
            let open = ShownState::Open as u8;
            if shown == open {
                happened(EventKind::BreakerOpened, format!("breaker of {}", self.label));
            } else if before == open {
                happened(EventKind::BreakerClosed, format!("breaker of {}", self.label));
            }
        }
    }

    /// Lets calls through again if a probe has succeeded, on the connection of the probe: others may take long to open.
    fn probed(self: &Arc<Self>, probed: Result<Connection, StoreError>) {
        match probed {
            Ok(connection) => {
                self.pool.answers_on(connection);
                self.breaker.close();
                self.answered();
            }
            Err(error) => {
                if matches!(error, StoreError::TakesNoWrites(_)) {
                    self.breaker.close();
                }
                self.failed(&error);
            }
        }
    }

    /// Asks the server, unless an outage is known: then it is probed anyway. Returns whether it answers.
    pub(crate) async fn ask(self: &Arc<Self>) -> bool {
        if self.is_up() && !self.retired.is_cancelled() {
            self.probed(self.probe().await);
        }
        self.is_up()
    }

    fn start_probing(self: &Arc<Self>) {
        // A call may be dropped after its runtime.
        let Ok(runtime) = Handle::try_current() else { return };
        if self.retired.is_cancelled() || self.is_probed.swap(true, Ordering::AcqRel) {
            return;
        }
        let probing = Probing(Arc::clone(self));
        drop(self.probes.spawn_on(probing.run(), &runtime));
    }

    /// How long Redis has to answer a probe, or a command beside calls.
    pub(crate) fn answer_within(&self) -> Duration {
        self.pool.timeout().max(ANSWER_WITHIN_MIN)
    }

    /// Opens a connection on which the server accepts a write within the decision budget.
    async fn probe(&self) -> Result<Connection, StoreError> {
        let opened = time::timeout(CONNECT_WITHIN, self.pool.open()).await;
        let opened = opened.map_err(|_| StoreError::TimedOut)?;
        let mut connection = opened.map_err(|error| pool::unavailable(&error))?;
        let (limit, write) = (self.answer_within(), self.probe.command());
        let answer: Option<RedisResult<()>> =
            lateness::within(limit, pin!(connection.query(&write)), &self.metrics).await;
        match answer.ok_or(StoreError::TimedOut)? {
            Ok(()) => Ok(connection),
            // It answers, and names another that has the key.
            Err(error) if script::is_elsewhere(&error) && !script::is_cluster_down(&error) => {
                Ok(connection)
            }
            Err(error) => Err(pool::failure(&error)),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum ShownState {
    Nothing,
    Up,
    Down,
    Open,
}

struct Probing(Arc<ServerState>);

impl Probing {
    /// Probes until the outage is over, or the server is retired.
    async fn run(self) {
        let Self(state) = &self;
        let retired = state.retired.clone();
        retired
            .run_until_cancelled(async {
                let mut pause = Pause::new(PAUSE_MIN, PAUSE_MAX);
                let mut next = Instant::now() + pause.time();
                let mut probes = FuturesUnordered::new();
                while state.outage.lasts() {
                    select! {
                        biased;
                        Some(probed) = probes.next() => state.probed(probed),
                        () = time::sleep_until(next) => {
                            probes.push(state.probe());
                            pause.longer();
                            next = Instant::now() + pause.time();
                        }
                    }
                }
            })
            .await;
    }
}

/// Also runs when the runtime ends: nothing probes the server then, so calls have to try it.
impl Drop for Probing {
    fn drop(&mut self) {
        let Self(state) = self;
        state.breaker.close();
        state.show();
        state.is_probed.store(false, Ordering::Release);
    }
}
