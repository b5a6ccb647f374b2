//! Waiting with a limit on a machine that may be short of CPU: a timer that fires late says nothing about a server.

use std::{
    pin::Pin,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    task,
    time::{self, Instant},
};

use crate::telemetry::{LogCause, StoreMetrics, due_line};

/// From this lateness of a timer on, the process was without CPU: it is far above what a busy worker takes.
const STARVED_FROM: Duration = Duration::from_millis(5);

/// How often a wait begins again because the process was without CPU: Redis may be silent at the same time.
const WAITS_MAX: usize = 20;

/// When timers were late last, in milliseconds since the first use of this.
static STARVED_AT_MS: AtomicU64 = AtomicU64::new(0);
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The output of `future`, if it is there at `due`. An output is used that is there when a late timer fires.
///
/// # Errors
/// How late the timer was.
pub(super) async fn until<F: Future>(
    due: Instant,
    mut future: Pin<&mut F>,
) -> Result<F::Output, Duration> {
    if let Ok(output) = time::timeout_at(due, future.as_mut()).await {
        return Ok(output);
    }
    let late = due.elapsed();
    // Another task of this thread may have the answer, and has not run yet.
    task::yield_now().await;
    future.now_or_never().ok_or(late)
}

/// The output of `future`, if it is there within this time. Time in which the process was without CPU does not count,
/// on whichever thread that was noticed: an answer may need several of them.
pub(super) async fn within<F: Future>(
    time: Duration,
    mut future: Pin<&mut F>,
    metrics: &StoreMetrics,
) -> Option<F::Output> {
    for _ in 0..WAITS_MAX {
        let began_ms = now_ms();
        match until(Instant::now() + time, future.as_mut()).await {
            Ok(output) => return Some(output),
            Err(late) => starved(late, metrics),
        }
        if STARVED_AT_MS.load(Ordering::Relaxed) <= began_ms {
            break;
        }
    }
    None
}

fn now_ms() -> u64 {
    u64::try_from(BEGAN.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Counts and logs that the process was without CPU, if a timer that was this late shows it.
pub(super) fn starved(late: Duration, metrics: &StoreMetrics) {
    if late < STARVED_FROM {
        return;
    }
    STARVED_AT_MS.store(now_ms(), Ordering::Relaxed);
    metrics.starved(late);
    if let Some(line) = due_line(LogCause::Starved, "") {
        let (ms, suppressed) = (late.as_millis(), line.suppressed);
        tracing::warn!(suppressed, "this process was without CPU for {ms} ms; calls may be late");
    }
}
