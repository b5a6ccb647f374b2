//! Whether one server answers: its outage, its breaker, and the task that probes it as long as an outage lasts.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use redis::RedisResult;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{self, Instant},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    breaker::Breaker,
    pool::{self, Pool},
    probe::ProbeWrite,
    script::{self, WriteRefusal},
};
use crate::{
    store::{StoreError, outage::Outage},
    telemetry::StoreMetrics,
};

/// The time from one probe to the next: first this, and twice as long after each, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long a probe may take to connect. Calls do not wait for it.
const CONNECT_WITHIN: Duration = Duration::from_millis(250);

/// The least time that a probe has for its answer, where the budget is shorter.
const ANSWER_WITHIN_MIN: Duration = Duration::from_millis(5);

/// What is known of one server.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) pool: Pool,
    pub(super) breaker: Breaker,
    outage: Outage,
    /// Rings when the server fails: another may have taken over.
    bell: Arc<Notify>,
    metrics: StoreMetrics,
    /// The address, as a label.
    label: String,
    /// What the metrics show: a [`ShownState`].
    shown: AtomicU8,
    pub(super) probe: ProbeWrite,
    is_probed: AtomicBool,
    /// Cancelled when the server is left.
    left: CancellationToken,
    probes: TaskTracker,
}

impl ServerState {
    /// The state of a server that answers as far as is known.
    pub(super) fn new(
        pool: Pool,
        outage: Outage,
        bell: Arc<Notify>,
        metrics: StoreMetrics,
        probe: ProbeWrite,
    ) -> Self {
        Self {
            label: pool.server().address.to_string(),
            pool,
            breaker: Breaker::default(),
            outage,
            bell,
            metrics,
            shown: AtomicU8::new(ShownState::Nothing as u8),
            probe,
            is_probed: AtomicBool::new(false),
            left: CancellationToken::new(),
            probes: TaskTracker::new(),
        }
    }

    /// Records that a call got an answer.
    pub(super) fn answered(&self) {
        self.breaker.answered();
        self.outage.answered();
        self.show();
    }

    /// Records that a call or a probe has failed.
    pub(super) fn failed(self: &Arc<Self>, error: &StoreError) {
        self.outage.failed(error);
        if self.breaker.failed(error) {
            // What they hold may never be answered, though the server answers others.
            self.pool.discard();
        }
        self.show();
        self.bell.notify_one();
        self.start_probing();
    }

    /// Whether it answers, as far as is known.
    pub(super) fn is_up(&self) -> bool {
        !self.outage.lasts()
    }

    /// Whether a connection to the server can be had within the budget.
    pub(super) async fn is_reached(&self) -> bool {
        let is_reached = self.pool.get().await.is_ok();
        if is_reached && !self.breaker.is_open() {
            self.outage.ended();
            self.show();
        }
        is_reached
    }

    /// Ends the probing of a server that is left, and its outage, which does not matter any more.
    pub(super) async fn leave(&self) {
        self.left.cancel();
        self.probes.close();
        self.probes.wait().await;
        self.outage.left();
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
        if self.shown.load(Ordering::Relaxed) != shown
            && self.shown.swap(shown, Ordering::Relaxed) != shown
        {
            self.metrics.server(&self.label, self.is_up(), is_open);
        }
    }

    fn start_probing(self: &Arc<Self>) {
        // A call may be dropped after its runtime.
        let Ok(runtime) = Handle::try_current() else { return };
        if self.left.is_cancelled() || self.is_probed.swap(true, Ordering::AcqRel) {
            return;
        }
        let probing = Probing(Arc::clone(self));
        drop(self.probes.spawn_on(probing.run(), &runtime));
    }

    /// Whether the server takes a write in the way of a call, as fast as a call needs it.
    async fn probe(&self) -> Result<(), StoreError> {
        let timed_out = |_| StoreError::TimedOut;
        let opened = time::timeout(CONNECT_WITHIN, self.pool.open()).await.map_err(timed_out)?;
        let mut connection = opened.map_err(|error| pool::unavailable(&error))?;
        let within = self.pool.timeout().max(ANSWER_WITHIN_MIN);
        let answer: RedisResult<()> =
            time::timeout(within, connection.query(&self.probe.command()))
                .await
                .map_err(timed_out)?;
        match answer {
            Ok(()) => Ok(()),
            // It answers, and names another that has the key.
            Err(error) if script::is_elsewhere(&error) && !script::is_cluster_down(&error) => {
                Ok(())
            }
            Err(error) => Err(WriteRefusal::from_error(&error)
                .map_or_else(|| pool::unavailable(&error), StoreError::from)),
        }
    }
}

/// What the metrics show of a server.
#[derive(Debug, Clone, Copy)]
enum ShownState {
    Nothing,
    Up,
    Down,
    Open,
}

/// The task that probes a server.
struct Probing(Arc<ServerState>);

impl Probing {
    /// Probes until the outage is over, or the server is left.
    async fn run(self) {
        let Self(state) = &self;
        let left = state.left.clone();
        left.run_until_cancelled(async {
            let mut pause = PAUSE_MIN;
            while state.outage.lasts() {
                let began = Instant::now();
                time::sleep_until(began + jittered(pause)).await;
                pause = (2 * pause).min(PAUSE_MAX);
                match state.probe().await {
                    Ok(()) => {
                        state.breaker.close();
                        state.answered();
                    }
                    Err(error) => {
                        if matches!(error, StoreError::TakesNoWrites(_)) {
                            state.breaker.close();
                        }
                        state.failed(&error);
                    }
                }
            }
        })
        .await;
    }
}

/// Also runs when the runtime ends: nothing probes the server then, so calls have to ask it.
impl Drop for Probing {
    fn drop(&mut self) {
        let Self(state) = self;
        state.breaker.close();
        state.show();
        state.is_probed.store(false, Ordering::Release);
    }
}

/// This time, or up to a quarter less, so that replicas do not all probe at once.
fn jittered(time: Duration) -> Duration {
    let quarters = RandomState::new().hash_one(0) % 256;
    time - time * u32::try_from(quarters).unwrap_or(0) / 1024
}
