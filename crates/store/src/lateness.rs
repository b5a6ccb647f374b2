//! Waiting with a limit on a machine that may be short of CPU: a timer that fires late proves nothing about a server.

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
use tollkeeper_base::telemetry::{LogCause, due_line};

use super::metrics::StoreMetrics;

/// From this lateness of a timer on, the process was without CPU: it is far above what a busy worker takes.
const STARVED_FROM: Duration = Duration::from_millis(5);

/// How often a wait is extended: Redis may be silent while the process is without CPU.
const EXTENSIONS_MAX: usize = 3;

/// When timers were late last, and how long in all, in microseconds since the first use of this.
static STARVED_UNTIL_US: AtomicU64 = AtomicU64::new(0);
static STARVED_US: AtomicU64 = AtomicU64::new(0);
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The output of `future`, if it is there at `due`. An output is used that is there when a late timer fires.
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

/// The output of `future`, if it is there within this time. If the process was without CPU meanwhile, which may have been
/// noticed on another thread, there is a quarter more, a few times: what was to be sent may have been sent just now.
pub(super) async fn within<F: Future>(
    time: Duration,
    mut future: Pin<&mut F>,
    metrics: &StoreMetrics,
) -> Option<F::Output> {
    let (mut due, mut before) = (Instant::now() + time, starved_time());
    for _ in 0..=EXTENSIONS_MAX {
        match until(due, future.as_mut()).await {
            Ok(output) => return Some(output),
            Err(late) => starved(late, metrics),
        }
        let starved = starved_time();
        if starved == before {
            break;
        }
        (due, before) = (Instant::now() + time / 4, starved);
    }
    None
}

/// How long the process was without CPU until now.
fn starved_time() -> Duration {
    Duration::from_micros(STARVED_US.load(Ordering::Relaxed))
}

/// Counts and logs that the process was without CPU, if a timer that was this late shows it.
pub(super) fn starved(late: Duration, metrics: &StoreMetrics) {
    if late < STARVED_FROM {
        return;
    }
    let now_us = u64::try_from(BEGAN.elapsed().as_micros()).unwrap_or(u64::MAX);
    // Many timers may have been late at the same time.
    let since_us = match STARVED_UNTIL_US.swap(now_us.max(1), Ordering::Relaxed) {
        0 => u64::MAX,
        last_us => now_us.saturating_sub(last_us),
    };
    let starved = late.min(Duration::from_micros(since_us));
    STARVED_US.fetch_add(u64::try_from(starved.as_micros()).unwrap_or(0), Ordering::Relaxed);
    metrics.starved.add(starved.as_secs_f64(), &[]);
    if let Some(line) = due_line(LogCause::Starved, "") {
        let (ms, suppressed) = (late.as_millis(), line.suppressed);
        tracing::warn!(suppressed, "this process was without CPU for {ms} ms; calls may be late");
    }
}
