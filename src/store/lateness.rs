//! Waiting with a limit on a machine that may be short of CPU: a timer that fires late says nothing about a server.

use std::{pin::Pin, time::Duration};

use futures_util::FutureExt as _;
use tokio::{
    task,
    time::{self, Instant},
};

use crate::telemetry::{LogCause, StoreMetrics, due_line};

/// From this lateness of a timer on, the process was without CPU: it is far above what a busy worker takes.
const STARVED_FROM: Duration = Duration::from_millis(5);

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

/// The output of `future`, if it is there within this time; time in which the process was without CPU does not count.
pub(super) async fn within<F: Future>(
    time: Duration,
    mut future: Pin<&mut F>,
    metrics: &StoreMetrics,
) -> Option<F::Output> {
    loop {
        match until(Instant::now() + time, future.as_mut()).await {
            Ok(output) => return Some(output),
            Err(late) if starved(late, metrics) => {}
            Err(_) => return None,
        }
    }
}

/// Whether a timer that was this late shows that the process was without CPU; it is then counted and logged.
pub(super) fn starved(late: Duration, metrics: &StoreMetrics) -> bool {
    if late < STARVED_FROM {
        return false;
    }
    metrics.starved(late);
    if let Some(line) = due_line(LogCause::Starved, "") {
        let (ms, suppressed) = (late.as_millis(), line.suppressed);
        tracing::warn!(suppressed, "this process was without CPU for {ms} ms; calls may be late");
    }
    true
}
