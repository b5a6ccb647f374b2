//! The connections of gRPC, and which of them is closed for a new one. Anyone who can reach the port can hold connections
//! open, so those whose client does not speak HTTP/2 have a bound of their own, and calls come before idle connections.

use std::{
    collections::VecDeque,
    future::pending,
    io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{net::TcpStream, time};
use tokio_util::sync::CancellationToken;

use super::socket::InputGate;
use crate::{
    calls::CallTracker,
    telemetry::{ListenerMetrics, RefusedConnection},
};

/// What a client sends as soon as it is connected (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Most connections that are silent: without a whole preface, also in a TLS handshake. For a further one, the one that
/// has been silent longest is closed.
const SILENT_MAX: usize = 512;

/// A silent connection is not closed for others before this time. Meanwhile they wait in the system's accept queue.
const SILENT_AFTER: Duration = Duration::from_millis(500);

/// How long a silent connection is kept open.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// The interval between looks at an incomplete preface: bytes that have already arrived cause no wake-up.
const PEEK_EVERY: Duration = Duration::from_millis(20);

/// Most connections over the maximum, while those that are closed for them end.
const SPARE: usize = 64;

/// The connections, in the order in which they were accepted.
pub(super) struct Slots {
    count_max: usize,
    began: Instant,
    /// Those that are open, and some that have ended.
    all: Vec<Weak<Slot>>,
    silent: VecDeque<(Instant, Weak<Slot>)>,
}

/// One connection.
pub(super) struct Slot {
    pub(super) gate: InputGate,
    /// Cancelled when it must end for another one.
    pub(super) must_end: CancellationToken,
    /// Its calls, once it has spoken.
    pub(super) calls: OnceLock<CallTracker>,
    began: Instant,
    /// Milliseconds from `began` to its last call; 0 without one.
    last_call: AtomicU64,
}

impl Slots {
    pub(super) fn new(count_max: usize) -> Self {
        Self { count_max, began: Instant::now(), all: Vec::new(), silent: VecDeque::new() }
    }

    /// Whether a further connection may be accepted now, if `open` are open.
    pub(super) fn may_accept(&mut self, open: usize) -> bool {
        let is_silent = |slot: Arc<Slot>| !slot.gate.has_spoken();
        self.silent.retain(|(_, slot)| slot.upgrade().is_some_and(is_silent));
        let oldest = self.silent.front();
        let is_full = self.silent.len() >= SILENT_MAX
            && oldest.is_some_and(|(since, _)| since.elapsed() < SILENT_AFTER);
        !is_full && open < self.count_max.saturating_add(SPARE)
    }

    /// The slot of a new connection beside `open` others, or `None` if all of them have calls.
    pub(super) fn take(&mut self, open: usize, metrics: &ListenerMetrics) -> Option<Arc<Slot>> {
        if open >= self.count_max {
            self.longest_idle()?.must_end.cancel();
        }
        if self.silent.len() >= SILENT_MAX
            && let Some((_, slot)) = self.silent.pop_front()
        {
            metrics.refused(RefusedConnection::Silent);
            slot.upgrade().inspect(|slot| slot.must_end.cancel());
        }
        let slot = Arc::new(Slot {
            gate: InputGate::default(),
            must_end: CancellationToken::new(),
            calls: OnceLock::new(),
            began: self.began,
            last_call: AtomicU64::new(0),
        });
        if self.all.len() == self.all.capacity() {
            self.all.retain(|slot| slot.strong_count() > 0);
        }
        self.all.push(Arc::downgrade(&slot));
        self.silent.push_back((Instant::now(), Arc::downgrade(&slot)));
        Some(slot)
    }

    /// Of the connections that have no call, the one whose last call was first.
    fn longest_idle(&self) -> Option<Arc<Slot>> {
        let idle = self.all.iter().filter_map(Weak::upgrade).filter(|slot| slot.is_idle());
        idle.min_by_key(|slot| slot.last_call.load(Relaxed))
    }
}

impl Slot {
    /// Notes that a call has begun.
    pub(super) fn called(&self) {
        let millis = self.began.elapsed().as_millis();
        self.last_call.store(u64::try_from(millis).unwrap_or(u64::MAX), Relaxed);
    }

    fn is_idle(&self) -> bool {
        let has_call = self.calls.get().is_some_and(|calls| calls.in_progress() > 0);
        !has_call && !self.must_end.is_cancelled()
    }

    /// Ends if the client has not sent a whole preface in time: one with TLS may stop after its handshake.
    pub(super) async fn is_silent(&self) {
        time::sleep(SILENT_FOR).await;
        if self.gate.has_spoken() {
            pending().await
        }
    }
}

/// Waits for the preface, or for bytes that differ from it: the HTTP/2 server refuses those itself.
pub(super) async fn wait_for_preface(stream: &TcpStream) -> io::Result<()> {
    let mut bytes = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut bytes).await?;
        let received = bytes.get(..count).unwrap_or_default();
        if received.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received == PREFACE || !PREFACE.starts_with(received) {
            return Ok(());
        }
        time::sleep(PEEK_EVERY).await;
    }
}
