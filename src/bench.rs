//! The load generator: asks a rate-limit service as fast, or as evenly, as it is told to, and
//! measures. It knows the API and nothing of how the service answers, so it may be anyone's.
//!
//! What it costs is taken from what it measures where both share a machine: so requests are encoded
//! before the run, and of an answer no more is read than its code.

mod answer;
mod calls;
mod connection;
mod driver;
mod keys;
mod report;
mod timetable;

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    time,
};
use tokio_util::sync::CancellationToken;

use self::driver::Driver;
pub use self::{
    calls::Calls,
    keys::{Distribution, Numbers},
    report::Report,
    timetable::Timetable,
};

/// What to do.
#[derive(Debug, Clone)]
pub struct Load {
    /// The service, as `host:port`.
    pub addr: String,
    /// What is asked.
    pub calls: Calls,
    /// When the next call is due.
    pub pace: Pace,
    /// How many connections there are, at least as many as threads.
    pub connections: usize,
    /// How many threads drive them, each with connections of its own; at least 1.
    pub threads: usize,
    /// How long calls are made before they count.
    pub warmup: Duration,
    /// How long they count.
    pub duration: Duration,
    /// After how many calls that count the run ends, if it has not before.
    pub calls_max: Option<u64>,
}

/// When the next call is due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// When an earlier one is answered: so many are under way at any time.
    Closed(usize),
    /// By a timetable of so many a second, whatever becomes of earlier ones.
    Open(f64),
}

/// How far a run has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The part of its time that is over, 0 to 1.
    pub part: f64,
    /// The calls that were answered and count.
    pub answered: u64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Not every connection could be made.
    #[error("{0}")]
    Unreachable(String),
    /// The system gave no runtime.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// What the threads of a run share.
#[derive(Debug)]
struct Run {
    load: Load,
    /// Says that no call is to be made any more.
    ended: CancellationToken,
    /// Calls that count and are still to be made.
    calls_left: AtomicU64,
    answered: AtomicU64,
}

/// Runs `load` to its end, or until `interrupted`; tells `watch` five times a second how far it is.
///
/// # Errors
/// If not every connection can be made, before any call is.
pub fn run(
    load: &Load,
    interrupted: impl Future<Output = ()>,
    mut watch: impl FnMut(Progress),
) -> Result<Report, Problem> {
    let run = Arc::new(Run {
        load: load.clone(),
        ended: CancellationToken::new(),
        calls_left: AtomicU64::new(load.calls_max.unwrap_or(u64::MAX)),
        answered: AtomicU64::new(0),
    });
    let runtime = runtime()?;
    let runtimes = (0..load.threads).map(|_| self::runtime()).collect::<Result<Vec<_>, _>>()?;
    let (connected, mut connections) = mpsc::channel(load.threads);
    let (start, begin) = watch::channel(None);
    thread::scope(|scope| {
        let drive = |(index, runtime): (usize, Runtime)| {
            let (run, connected, begin) = (Arc::clone(&run), connected.clone(), begin.clone());
            scope.spawn(move || runtime.block_on(drive(run, index, connected, begin)))
        };
        let threads: Vec<_> = runtimes.into_iter().enumerate().map(drive).collect();
        drop((connected, begin));
        let conducted = runtime.block_on(async {
            for _ in 0..run.load.threads {
                connections.recv().await.unwrap_or_else(|| Err("no thread".to_owned()))?;
            }
            start.send_replace(Some(Instant::now()));
            run.conduct(&start, interrupted, &mut watch).await;
            Ok(())
        });
        // Where a connection failed, threads that still wait for the start end without it.
        drop(start);
        let mut report = Report::default();
        for thread in threads {
            let part = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            report.add(&part);
        }
        conducted.map(|()| report).map_err(Problem::Unreachable)
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// One thread's part of the run: it connects, waits for the common start, and drives.
async fn drive(
    run: Arc<Run>,
    index: usize,
    connected: mpsc::Sender<Result<(), String>>,
    mut begin: watch::Receiver<Option<Instant>>,
) -> Report {
    let driver = Driver::connect(run, index).await;
    let (driver, told) = match driver {
        Ok(driver) => (Some(driver), Ok(())),
        Err(problem) => (None, Err(problem)),
    };
    // The receiver lives until the start is told.
    drop(connected.send(told).await);
    drop(connected);
    let start = begin.wait_for(Option::is_some).await.ok().and_then(|it| *it);
    match driver.zip(start) {
        Some((driver, start)) => driver.drive(start).await,
        None => Report::default(),
    }
}

impl Run {
    /// Lets the run go on until its time is over, someone interrupts, or the threads have ended.
    async fn conduct(
        &self,
        threads: &watch::Sender<Option<Instant>>,
        interrupted: impl Future<Output = ()>,
        watch: &mut impl FnMut(Progress),
    ) {
        let (began, whole) = (Instant::now(), self.load.warmup + self.load.duration);
        let mut ticks = time::interval(Duration::from_millis(200));
        let over = async {
            tokio::select! {
                () = time::sleep(whole) => {}
                () = interrupted => {}
                () = threads.closed() => {}
            }
        };
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => break,
                _ = ticks.tick() => watch(Progress {
                    part: (began.elapsed().as_secs_f64() / whole.as_secs_f64()).min(1.0),
                    answered: self.answered.load(Relaxed),
                }),
            }
        }
        self.ended.cancel();
    }
}
