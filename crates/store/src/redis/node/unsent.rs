//! Work that is sent later, since nobody waits for it any more; `owed` decides what that is, and `topology/resend` sends it. It
//! waits until its server answers, or until its window or its hold has ended.

use std::{
    collections::{HashSet, VecDeque},
    mem,
    time::Duration,
};

use tollkeeper_base::telemetry::{LogCause, due_line};
use tollkeeper_engine::time::Timestamp;

use crate::{
    metrics::StoreMetrics,
    redis::script::work::NodeWork,
    sync::{Mutex, Notify, time::Instant},
};

/// How long a take without an answer is left alone: it may still be on its way to the server, and would come after its
/// release.
pub(crate) const RELEASED_AFTER: Duration = Duration::from_secs(1);

/// About what one takes, in bytes, beside its counter's name; and what its name takes, if it counts once.
const KEPT_BYTES: usize = 256;

/// How many bytes each may take on average.
const BYTES_EACH: usize = 1024;

#[derive(Debug)]
pub struct Unsent {
    queue: Mutex<UnsentQueue>,
    pub(crate) arrived: Notify,
    count_max: usize,
    metrics: StoreMetrics,
}

#[derive(Debug, Default)]
struct UnsentQueue {
    kept: VecDeque<UnsentWork>,
    /// Of all, with those that are being sent.
    count: usize,
    bytes: usize,
    /// The names of those that count once: a repeat waits no second time.
    once: HashSet<(bool, String)>,
}

#[derive(Debug)]
pub(crate) struct UnsentWork {
    pub(super) work: NodeWork,
    pub(super) made: Made,
    pub(crate) until: Instant,
    pub(super) not_before: Instant,
}

/// When work arrived, which decides its window.
#[derive(Debug, Clone, Copy)]
pub(super) enum Made {
    At(Timestamp),
    /// Nothing was known of Redis's clock. Our own may show another window.
    Since(Instant),
}

impl Made {
    /// The time by Redis's clock, or 1970 until Redis has told its time. Redis then refuses the work, since all windows of 1970
    /// have ended, and tells its time with the refusal.
    pub(super) fn at(self) -> Timestamp {
        match self {
            Self::At(made) => made,
            Self::Since(_) => Timestamp::default(),
        }
    }
}

impl Unsent {
    /// Keeps at most `count_max`, of a KiB each on average.
    pub fn new(count_max: usize, metrics: StoreMetrics) -> Self {
        Self { queue: Mutex::default(), arrived: Notify::new(), count_max, metrics }
    }

    /// Keeps `works`, in place of one that was kept and sent.
    pub(super) fn replace(&self, sent: Option<&NodeWork>, works: Vec<UnsentWork>) {
        let (mut queue, mut change, mut dropped) = (self.queue.lock(), 0, 0);
        if let Some(sent) = sent {
            queue.bytes = queue.bytes.saturating_sub(bytes(sent));
            queue.count = queue.count.saturating_sub(1);
            change -= 1;
            if let Some(name) = sent.name_of_once() {
                queue.once.remove(&name);
            }
        }
        for kept in works {
            let name = kept.work.name_of_once();
            if name.as_ref().is_some_and(|name| queue.once.contains(name)) {
                continue;
            }
            let bytes = queue.bytes + bytes(&kept.work);
            if queue.count >= self.count_max || bytes > BYTES_EACH * self.count_max {
                dropped += 1;
                continue;
            }
            queue.bytes = bytes;
            queue.count += 1;
            queue.once.extend(name);
            queue.kept.push_back(kept);
            change += 1;
        }
        drop(queue);
        self.metrics.commits_queued.add(change, &[]);
        self.arrived.notify_one();
        (0..dropped).for_each(|_| self.dropped("full"));
    }

    /// The number of those that wait, and are not being sent.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().kept.len()
    }

    /// Whether none waits or is being sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().count == 0
    }

    /// Drops all, also those that are being sent.
    pub(crate) fn drop_all(&self) {
        let rest = mem::take(&mut *self.queue.lock());
        let count = i64::try_from(rest.count).unwrap_or(i64::MAX);
        self.metrics.commits_queued.add(-count, &[]);
        (0..rest.count).for_each(|_| self.dropped("stopped"));
    }

    /// The next of `left` that is due by `due`.
    pub(crate) fn pop(&self, due: Instant, left: &mut usize) -> Option<UnsentWork> {
        let mut queue = self.queue.lock();
        while *left > 0 {
            *left -= 1;
            let kept = queue.kept.pop_front()?;
            if kept.not_before <= due {
                return Some(kept);
            }
            queue.kept.push_back(kept);
        }
        None
    }

    pub(crate) fn dropped(&self, reason: &'static str) {
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

fn bytes(work: &NodeWork) -> usize {
    let bytes: usize = work.counters().map(|counter| KEPT_BYTES + counter.id_bytes()).sum();
    if work.counts_once() { 2 * bytes } else { bytes }
}
