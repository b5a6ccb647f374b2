//! Debits, refunds and give-backs that could not be sent: they count or undo work that is done, so they wait until
//! their server answers, or until their window has ended. What may have run is not kept, since it would count twice, but
//! for commits: they count once, and wait until their deadline.

use std::{collections::VecDeque, iter, time::Duration};

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{self, Instant},
};

use super::decided::NotDecided;
use crate::{
    engine::time::Timestamp,
    store::{metrics::StoreMetrics, redis::script::work::NodeWork},
    telemetry::{LogCause, due_line},
};

/// How long servers are left alone that do not answer.
const PAUSE: Duration = Duration::from_millis(50);

/// How many are sent at once.
const SENT_AT_ONCE: usize = 32;

/// About what one takes, in bytes, beside its counter's name.
const KEPT_BYTES: usize = 256;

/// How many bytes each may take on average.
const BYTES_EACH: usize = 1024;

/// A store that sends what was kept.
pub(crate) trait Resend {
    /// Does work that arrived at `made`, by Redis's clock, unless its window has ended.
    fn send(
        &self,
        work: &NodeWork,
        made: Timestamp,
    ) -> impl Future<Output = Result<(), NotDecided>> + Send;
}

/// What waits to be sent.
#[derive(Debug)]
pub struct Unsent {
    queue: Mutex<UnsentQueue>,
    arrived: Notify,
    count_max: usize,
    metrics: StoreMetrics,
}

#[derive(Debug, Default)]
struct UnsentQueue {
    kept: VecDeque<UnsentWork>,
    /// Of all, with those that are being sent.
    count: usize,
    bytes: usize,
}

#[derive(Debug)]
struct UnsentWork {
    work: NodeWork,
    /// Redis's time when it arrived, which decides its window.
    made: Timestamp,
    until: Instant,
}

impl Unsent {
    /// Keeps at most `count_max`, of a KiB each on average.
    pub fn new(count_max: usize, metrics: StoreMetrics) -> Self {
        Self { queue: Mutex::default(), arrived: Notify::new(), count_max, metrics }
    }

    /// Keeps what of this work [outlives its caller](NodeWork::outlives_caller). It arrived at `made`, by Redis's
    /// clock.
    pub(crate) fn keep(&self, work: NodeWork, made: Timestamp) {
        for work in work.outliving() {
            self.keep_one(work, made);
        }
    }

    /// Keeps the commits of work that may have run.
    pub(crate) fn keep_commits(&self, work: NodeWork, made: Timestamp) {
        let outliving = work.outliving().into_iter();
        for commit in outliving.filter(|work| work.commit_deadline().is_some()) {
            self.keep_one(commit, made);
        }
    }

    fn keep_one(&self, work: NodeWork, made: Timestamp) {
        let window = work.counters().map(|counter| counter.limit.remaining_window(made)).max();
        let remaining = match work.commit_deadline() {
            Some(deadline) => made.until(deadline),
            None => window.unwrap_or_default(),
        };
        self.push(UnsentWork { work, made, until: Instant::now() + remaining });
    }

    /// Sends by `sender` what is kept, as long as this runs.
    pub(crate) async fn follow(&self, sender: &impl Resend) {
        loop {
            if self.send_once(sender).await {
                time::sleep(PAUSE).await;
            } else {
                self.arrived.notified().await;
            }
        }
    }

    /// Sends by `sender` what is kept, for this time at most, and drops the rest.
    pub(crate) async fn end(&self, time: Duration, sender: &impl Resend) {
        let all = async {
            while self.send_once(sender).await {
                time::sleep(PAUSE).await
            }
        };
        drop(time::timeout(time, all).await);
        while let Some(kept) = self.pop() {
            self.ended(&kept, Some("stopped"));
        }
    }

    /// Tries to send each once. Returns whether some could not be sent.
    async fn send_once(&self, sender: &impl Resend) -> bool {
        let count = self.queue.lock().kept.len();
        let sending = iter::from_fn(|| self.pop()).take(count).map(async |kept| {
            if kept.until <= Instant::now() {
                return self.ended(&kept, Some("ended"));
            }
            let is_commit = kept.work.commit_deadline().is_some();
            match sender.send(&kept.work, kept.made).await {
                Err(NotDecided::WindowEnded) => self.ended(&kept, Some("ended")),
                Err(error) if error.was_not_sent() || is_commit && error.may_pass() => {
                    self.queue.lock().kept.push_back(kept);
                }
                _ => self.ended(&kept, None),
            }
        });
        stream::iter(sending).buffer_unordered(SENT_AT_ONCE).collect::<()>().await;
        !self.queue.lock().kept.is_empty()
    }

    fn push(&self, kept: UnsentWork) {
        let mut queue = self.queue.lock();
        let bytes = queue.bytes + kept.bytes();
        if queue.count >= self.count_max || bytes > BYTES_EACH * self.count_max {
            drop(queue);
            return self.dropped("full");
        }
        queue.bytes = bytes;
        queue.count += 1;
        queue.kept.push_back(kept);
        drop(queue);
        self.metrics.commits_queued(1);
        self.arrived.notify_one();
    }

    fn pop(&self) -> Option<UnsentWork> {
        self.queue.lock().kept.pop_front()
    }

    /// Notes that this was sent, or dropped for a reason.
    fn ended(&self, kept: &UnsentWork, dropped: Option<&'static str>) {
        let mut queue = self.queue.lock();
        queue.bytes -= kept.bytes();
        queue.count -= 1;
        drop(queue);
        self.metrics.commits_queued(-1);
        if let Some(reason) = dropped {
            self.dropped(reason);
        }
    }

    fn dropped(&self, reason: &'static str) {
        self.metrics.debit_dropped(reason);
        if let Some(line) = due_line(LogCause::DroppedDebits, reason) {
            let why = match reason {
                "full" => "--debits-queued-max of them wait for Redis",
                "ended" => "their window ended before Redis answered",
                _ => "the service stops, and Redis does not answer",
            };
            tracing::warn!(suppressed = line.suppressed, "a debit or a refund was dropped: {why}");
        }
    }
}

impl UnsentWork {
    fn bytes(&self) -> usize {
        self.work.counters().map(|counter| KEPT_BYTES + counter.id_bytes()).sum()
    }
}
