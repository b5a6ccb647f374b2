//! One run: threads that connect, begin at the same moment, and end together.

use std::{
    future::Future,
    io, panic,
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

use super::{Load, Problem, Progress, driver::Driver, report::Report};

/// What the threads of a run share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) load: Load,
    /// Says that no call is to be made any more.
    pub(super) ended: CancellationToken,
    /// Calls that count and are still to be made.
    pub(super) calls_left: AtomicU64,
    pub(super) answered: AtomicU64,
}

/// When the calls begin, once every thread has its connections.
type Start = Option<Instant>;

pub(super) fn run(
    load: &Load,
    interrupted: impl Future<Output = ()>,
    mut watch: impl FnMut(Progress),
) -> Result<Report, Problem> {
    let threads = load.threads.max(1);
    let load = Load { threads, connections: load.connections.max(threads), ..load.clone() };
    let run = Arc::new(Run {
        ended: CancellationToken::new(),
        calls_left: AtomicU64::new(load.calls_max.unwrap_or(u64::MAX)),
        answered: AtomicU64::new(0),
        load,
    });
    let own = runtime()?;
    let runtimes = (0..threads).map(|_| runtime()).collect::<Result<Vec<_>, _>>()?;
    let (connected, mut connections) = mpsc::channel(threads);
    let (start, begin) = watch::channel(None);
    thread::scope(|scope| {
        let begin_thread = |(index, runtime): (usize, Runtime)| {
            let (run, connected, begin) = (Arc::clone(&run), connected.clone(), begin.clone());
            scope.spawn(move || runtime.block_on(drive(run, index, connected, begin)))
        };
        let begun: Vec<_> = runtimes.into_iter().enumerate().map(begin_thread).collect();
        drop((connected, begin));
        let conducted = own.block_on(async {
            for _ in 0..threads {
                connections.recv().await.unwrap_or_else(|| Err("no thread".to_owned()))?;
            }
            start.send_replace(Some(Instant::now()));
            run.conduct(&start, interrupted, &mut watch).await;
            Ok(())
        });
        // Where a connection failed, threads that still wait for the start end without it.
        drop(start);
        let mut report = Report::default();
        for thread in begun {
            report.add(&thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        conducted.map(|()| report).map_err(Problem::Unreachable)
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// One thread's part of the run.
async fn drive(
    run: Arc<Run>,
    index: usize,
    connected: mpsc::Sender<Result<(), String>>,
    mut begin: watch::Receiver<Start>,
) -> Report {
    let (driver, told) = match Driver::connect(run, index).await {
        Ok(driver) => (Some(driver), Ok(())),
        Err(problem) => (None, Err(problem)),
    };
    // Nobody listens any more where another thread has failed; then there is no start, either.
    drop(connected.send(told).await);
    let start = begin.wait_for(Option::is_some).await.ok().and_then(|start| *start);
    match driver.zip(start) {
        Some((driver, start)) => driver.drive(start).await,
        None => Report::default(),
    }
}

impl Run {
    /// Lets the run go on until its time is over, someone interrupts, or the threads have ended.
    async fn conduct(
        &self,
        threads: &watch::Sender<Start>,
        interrupted: impl Future<Output = ()>,
        watch: &mut impl FnMut(Progress),
    ) {
        let (began, whole) = (Instant::now(), self.load.warmup + self.load.duration);
        let mut ticks = time::interval(Duration::from_millis(200));
        let over = async {
            tokio::select! {
                () = time::sleep(whole) => {}
                () = interrupted => {}
                // Each has its receiver until it ends.
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

    /// Whether there is no call to be made any more.
    pub(super) fn is_over(&self) -> bool {
        self.ended.is_cancelled() || self.calls_left.load(Relaxed) == 0
    }

    /// Whether calls are still to be made.
    pub(super) fn has_calls(&self) -> bool {
        self.calls_left.load(Relaxed) > 0
    }

    /// Takes one of the calls that count, if any is left.
    pub(super) fn take_call(&self) -> Option<u64> {
        self.calls_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()
    }
}
