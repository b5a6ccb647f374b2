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

use opentelemetry::metrics::Meter;
use parking_lot::Mutex;
use tokio::time;

use super::socket::InputGate;
use crate::{
    edge::{
        arriving::ConnectionBudget,
        metrics::{CALLS_OPEN, ListenerMetrics, RefusedConnection},
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

#[derive(Debug, Clone, Copy)]
pub struct ConnectionBounds {
    /// Most connections. For a further one an idle one is closed; if all have calls, the further one.
    pub connections_max: usize,
    /// The age at which a client is requested to reconnect, varied by up to 10 %; `None` for never.
    pub age: Option<Duration>,
}

/// The connections, in the order in which they were accepted.
pub struct ConnectionSlots {
    pub(super) bounds: ConnectionBounds,
    /// The open connections, and some that have ended.
    all: Arc<Mutex<Vec<Weak<ConnectionSlot>>>>,
    silent: VecDeque<(Instant, Weak<ConnectionSlot>)>,
}

pub(crate) struct ConnectionSlot {
    pub(super) gate: InputGate,
    pub(crate) memory: Arc<ConnectionBudget>,
    /// Its calls, from the end of its TLS handshake.
    pub(crate) calls: OnceLock<CallTracker>,
    pub(super) has_called: AtomicBool,
}

impl ConnectionSlots {
    /// Observes the number of calls in progress on its connections.
    pub(crate) fn new(bounds: ConnectionBounds, meter: &Meter) -> Self {
        let all = Arc::new(Mutex::new(Vec::<Weak<ConnectionSlot>>::new()));
        let observed = Arc::clone(&all);
        CALLS_OPEN.observe(meter, move |observe| {
            let all = observed.lock();
            let open = all.iter().filter_map(Weak::upgrade);
            let calls: usize = open.map(|slot| slot.calls_in_progress()).sum();
            observe(u32::try_from(calls).map_or(f64::INFINITY, f64::from), &[]);
        });
        Self { bounds, all, silent: VecDeque::new() }
    }

    /// Whether a further connection may be accepted now, if `open` are open.
    pub(super) fn may_accept(&mut self, open: usize) -> bool {
        let is_silent = |slot: Arc<ConnectionSlot>| !slot.gate.has_spoken();
        self.silent.retain(|(_, slot)| slot.upgrade().is_some_and(is_silent));
        let oldest = self.silent.front();
        let is_full = self.silent.len() >= SILENT_MAX
            && oldest.is_some_and(|(since, _)| since.elapsed() < SILENT_AFTER);
        !is_full && open < self.bounds.connections_max.saturating_add(SPARE)
    }

    /// The slot of a new connection beside `open` others, or `None` if all of them have calls.
    pub(crate) fn take(
        &mut self,
        open: usize,
        metrics: &ListenerMetrics,
        memory: Arc<ConnectionBudget>,
    ) -> Option<Arc<ConnectionSlot>> {
        let mut all = self.all.lock();
        if open >= self.bounds.connections_max {
            // Of those without a call now, the first that has never had one.
            let idle = all.iter().filter_map(Weak::upgrade).filter(|slot| slot.is_idle());
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
        if all.len() == all.capacity() {
            all.retain(|slot| slot.strong_count() > 0);
        }
        all.push(Arc::downgrade(&slot));
        self.silent.push_back((Instant::now(), Arc::downgrade(&slot)));
        Some(slot)
    }
}

impl ConnectionSlot {
    fn is_idle(&self) -> bool {
        self.calls_in_progress() == 0 && !self.memory.closing.is_cancelled()
    }

    fn calls_in_progress(&self) -> usize {
        self.calls.get().map_or(0, CallTracker::in_progress)
    }

    /// Ends if the client has not sent a whole preface in time: one with TLS may stop after its handshake.
    pub(crate) async fn is_silent(&self) {
        time::sleep(SILENT_FOR).await;
        if self.gate.has_spoken() {
            pending().await
        }
    }
}
