//! One run: threads that connect, begin at the same moment, and end together.

use std::{
    io, panic,
    pin::pin,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    time,
};
use tollkeeper_base::net::peer::{self, PeerError, Protocol};

use super::{
    connection::CONNECT_WITHIN, driver::Driver, load::Load, report::Report, workload::Workload,
};

#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The part of its time that is over, 0 to 1.
    pub part: f64,
    pub answered: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A connection could not be made.
    #[error("{0}")]
    Unreachable(PeerError),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// When the calls begin, once every thread has its connections.
type Start = Option<Instant>;

/// Between two reports of the progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Runs `load` to its end, or until `interrupted`; calls `watch` with the progress five times a second.
pub fn run(
    load: &Load,
    interrupted: impl Future<Output = ()>,
    mut watch: impl FnMut(Progress),
) -> Result<Report, BenchError> {
    let threads = load.threads.max(1);
    let load = Load { threads, connections: load.connections.max(threads), ..load.clone() };
    let workload = Arc::new(Workload::new(load));
    let own = runtime()?;
    let (addr, tls) = (&workload.load.addr, workload.load.tls.as_deref());
    own.block_on(peer::diagnose(addr, tls, Protocol::Http2, CONNECT_WITHIN))
        .map_err(BenchError::Unreachable)?;
    let runtimes = (0..threads).map(|_| runtime()).collect::<Result<Vec<_>, _>>()?;
    let (connected, connections) = mpsc::channel(threads);
    let (start, begin) = watch::channel(None);
    thread::scope(|scope| {
        let mut drivers = Vec::new();
        for (index, runtime) in runtimes.into_iter().enumerate() {
            let driven = drive(Arc::clone(&workload), index, connected.clone(), begin.clone());
            drivers.push(scope.spawn(move || runtime.block_on(driven)));
        }
        drop((connected, begin));
        let conducted = own.block_on(async {
            all_connected(connections, threads).await?;
            start.send_replace(Some(Instant::now()));
            conduct(&workload, &start, interrupted, &mut watch).await;
            Ok(())
        });
        // After a failed connection, this ends the threads that still wait for the start.
        drop(start);
        let mut report = Report::default();
        for driver in drivers {
            report.add(&driver.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        conducted.map(|()| report).map_err(BenchError::Unreachable)
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

async fn all_connected(
    mut connections: mpsc::Receiver<Result<(), PeerError>>,
    threads: usize,
) -> Result<(), PeerError> {
    for _ in 0..threads {
        // Each thread sends one.
        connections.recv().await.unwrap_or(Ok(()))?;
    }
    Ok(())
}

async fn drive(
    workload: Arc<Workload>,
    index: usize,
    connected: mpsc::Sender<Result<(), PeerError>>,
    mut begin: watch::Receiver<Start>,
) -> Report {
    let (driver, result) = match Driver::connect(workload, index).await {
        Ok(driver) => (Some(driver), Ok(())),
        Err(problem) => (None, Err(problem)),
    };
    // If another thread has failed, the receiver is gone, and the run does not start.
    drop(connected.send(result).await);
    let start = begin.wait_for(Option::is_some).await.ok().and_then(|start| *start);
    match driver.zip(start) {
        Some((driver, start)) => driver.drive(start).await,
        None => Report::default(),
    }
}

/// Lets the run go on until its time is over, it is interrupted, or the threads have ended.
async fn conduct(
    workload: &Workload,
    threads: &watch::Sender<Start>,
    interrupted: impl Future<Output = ()>,
    watch: &mut impl FnMut(Progress),
) {
    let (began, whole) = (Instant::now(), workload.load.warmup + workload.load.duration);
    let mut ticks = time::interval(PROGRESS_EVERY);
    let mut over = pin!(async {
        tokio::select! {
            () = time::sleep(whole) => {}
            () = interrupted => {}
            // Each thread has a receiver until it ends.
            () = threads.closed() => {}
        }
    });
    loop {
        tokio::select! {
            () = &mut over => break,
            _ = ticks.tick() => watch(Progress {
                part: (began.elapsed().as_secs_f64() / whole.as_secs_f64()).min(1.0),
                answered: workload.answered(),
            }),
        }
    }
    workload.ended.cancel();
}
