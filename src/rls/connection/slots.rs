//! The connections of gRPC, and which of them is closed for a new one. Anyone who can reach the port can hold connections
//! open, so those whose client does not speak HTTP/2 have a bound of their own, and calls come before idle connections.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::time;

use super::socket::InputGate;
use crate::{
    edge::{
        arriving::ConnectionBudget,
        metrics::{CountedCalls, ListenerMetrics, RefusedConnection},
    },
    process::calls::CallTracker,
};

/// Most connections that are silent: without a whole preface, also in a TLS handshake. For a further one, the one that
/// has been silent longest is closed.
const SILENT_MAX: usize = 512;

/// A silent connection is not closed for others before this time. Meanwhile they wait in the system's accept queue.
const SILENT_AFTER: Duration = Duration::from_millis(500);

const SILENT_FOR: Duration = Duration::from_secs(10);

/// Most connections over the maximum, while those that are closed for them end.
const SPARE: usize = 64;

/// The connections, in the order in which they were accepted.
pub(crate) struct ConnectionSlots {
    count_max: usize,
    /// The open connections, and some that have ended.
    all: Vec<Weak<ConnectionSlot>>,
    silent: VecDeque<(Instant, Weak<ConnectionSlot>)>,
}

pub(crate) struct ConnectionSlot {
    pub(super) gate: InputGate,
    pub(crate) memory: Arc<ConnectionBudget>,
    /// Its calls, from the end of its TLS handshake.
    pub(crate) calls: OnceLock<(CallTracker, CountedCalls)>,
    pub(super) has_called: AtomicBool,
}

impl ConnectionSlots {
    pub(crate) fn new(count_max: usize) -> Self {
        Self { count_max, all: Vec::new(), silent: VecDeque::new() }
    }

    /// Whether a further connection may be accepted now, if `open` are open.
    pub(super) fn may_accept(&mut self, open: usize) -> bool {
        let is_silent = |slot: Arc<ConnectionSlot>| !slot.gate.has_spoken();
        self.silent.retain(|(_, slot)| slot.upgrade().is_some_and(is_silent));
        let oldest = self.silent.front();
        let is_full = self.silent.len() >= SILENT_MAX
            && oldest.is_some_and(|(since, _)| since.elapsed() < SILENT_AFTER);
        !is_full && open < self.count_max.saturating_add(SPARE)
    }

    /// The slot of a new connection beside `open` others, or `None` if all of them have calls.
    pub(crate) fn take(
        &mut self,
        open: usize,
        metrics: &ListenerMetrics,
        memory: Arc<ConnectionBudget>,
    ) -> Option<Arc<ConnectionSlot>> {
        if open >= self.count_max {
            // Of those without a call now, the first that has never had one.
            let idle = self.all.iter().filter_map(Weak::upgrade).filter(|slot| slot.is_idle());
            idle.min_by_key(|slot| slot.has_called.load(Relaxed))?.memory.closing.cancel();
        }
        if self.silent.len() >= SILENT_MAX
            && let Some((_, slot)) = self.silent.pop_front()
        {
            metrics.refused(RefusedConnection::Silent);
            slot.upgrade().inspect(|slot| slot.memory.closing.cancel());
        }
        let slot = Arc::new(ConnectionSlot {
            gate: InputGate::default(),
            memory,
            calls: OnceLock::new(),
            has_called: AtomicBool::new(false),
        });
        if self.all.len() == self.all.capacity() {
            self.all.retain(|slot| slot.strong_count() > 0);
        }
        self.all.push(Arc::downgrade(&slot));
        self.silent.push_back((Instant::now(), Arc::downgrade(&slot)));
        Some(slot)
    }
}

impl ConnectionSlot {
    fn is_idle(&self) -> bool {
        let has_call = self.calls.get().is_some_and(|(calls, _)| calls.in_progress() > 0);
        !has_call && !self.memory.closing.is_cancelled()
    }

    /// Ends if the client has not sent a whole preface in time: one with TLS may stop after its handshake.
    pub(crate) async fn is_silent(&self) {
        time::sleep(SILENT_FOR).await;
        if self.gate.has_spoken() {
            pending().await
        }
    }
}
