//! One thread's share of the load: its connections, and the calls that it makes on them.

use std::{
    iter, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{task::JoinSet, time};
use tonic::Code;

use super::{
    Pace, answer::Answer, calls::Calls, connection::Connection, report::Report, run::Run,
    timetable::Timetable,
};

/// How long answers are waited for when no more calls are made.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most calls under way in an open loop; a service this far behind is not going to catch up.
const UNDER_WAY_MAX: usize = 10_000;

pub(super) struct Driver {
    run: Arc<Run>,
    index: usize,
    connections: Vec<Connection>,
    work: Mutex<Work>,
}

/// What calls change. They take turns on one thread, so nobody ever waits for the lock.
struct Work {
    calls: Calls,
    report: Report,
    counts_from: Instant,
}

impl Driver {
    pub(super) async fn connect(run: Arc<Run>, index: usize) -> Result<Self, String> {
        let load = &run.load;
        let mut connections = Vec::new();
        for _ in 0..share(load.connections, index, load.threads) {
            connections.push(Connection::open(&load.addr).await?);
        }
        let work = Work {
            calls: load.calls.of_thread(index, load.threads),
            report: Report::default(),
            counts_from: Instant::now(),
        };
        Ok(Self { index, connections, work: Mutex::new(work), run })
    }

    /// Makes calls until the run ends, and waits for the last answers.
    pub(super) async fn drive(self, start: Instant) -> Report {
        self.work().counts_from = start + self.run.load.warmup;
        let driver = Arc::new(self);
        let mut under_way = JoinSet::new();
        match driver.run.load.pace {
            Pace::Closed(concurrency) => driver.spawn_loops(concurrency, &mut under_way),
            Pace::Open(rate) => driver.keep_pace(start, rate, &mut under_way).await,
        }
        let ended = driver.run.ended.clone();
        let patience = async {
            ended.cancelled().await;
            time::sleep(PATIENCE).await;
        };
        tokio::select! {
            () = async { while under_way.join_next().await.is_some() {} } => {}
            () = patience => {}
        }
        driver.work().report.fail(Code::DeadlineExceeded, under_way.len() as u64);
        under_way.shutdown().await;
        driver.finish()
    }

    /// A closed loop: each of these makes one call after another.
    fn spawn_loops(self: &Arc<Self>, concurrency: usize, under_way: &mut JoinSet<()>) {
        for lane in 0..share(concurrency, self.index, self.run.load.threads) {
            let driver = Arc::clone(self);
            under_way.spawn(async move { while driver.call(lane, Instant::now()).await {} });
        }
    }

    /// An open loop: makes each call when it is due.
    async fn keep_pace(self: &Arc<Self>, start: Instant, rate: f64, under_way: &mut JoinSet<()>) {
        let threads = self.run.load.threads;
        // The threads take turns.
        let offset = Duration::try_from_secs_f64(self.index as f64 / rate).unwrap_or_default();
        let mut timetable = Timetable::start(start + offset, rate / threads as f64);
        let mut lanes = 0..;
        loop {
            let due = tokio::select! {
                due = timetable.next() => due,
                () = self.run.ended.cancelled() => return,
            };
            while under_way.try_join_next().is_some() {}
            for (since, lane) in iter::zip(due, &mut lanes) {
                if self.run.is_over() {
                    return;
                }
                if under_way.len() >= UNDER_WAY_MAX / threads {
                    if self.run.has_calls() {
                        self.work().skip(since);
                    }
                    continue;
                }
                let driver = Arc::clone(self);
                under_way.spawn(async move {
                    driver.call(lane, since).await;
                });
            }
        }
    }

    /// Makes a call that is due `since` then; false if there is none to make.
    async fn call(&self, lane: usize, since: Instant) -> bool {
        let Some(connection) = self.connections.get(lane % self.connections.len()) else {
            return false;
        };
        let Some(request) = self.claim(since) else { return false };
        let answer = connection.ask(request).await;
        let now = Instant::now();
        if self.work().count(answer, since, now) {
            self.run.answered.fetch_add(1, Relaxed);
        }
        true
    }

    /// The next request, unless the run has ended or has no calls left.
    fn claim(&self, since: Instant) -> Option<Bytes> {
        if self.run.ended.is_cancelled() {
            return None;
        }
        let mut work = self.work();
        if since >= work.counts_from {
            self.run.take_call()?;
        }
        Some(work.calls.next())
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self) -> Report {
        let reconnects = self.connections.iter().map(|it| it.reconnects.load(Relaxed)).sum();
        Report { reconnects, ..mem::take(&mut self.work().report) }
    }
}

impl Work {
    /// Counts an answer; false in the warm-up.
    fn count(&mut self, answer: Result<Answer, Code>, since: Instant, now: Instant) -> bool {
        if since < self.counts_from {
            return false;
        }
        self.report.count(answer, now.saturating_duration_since(since));
        self.report.elapsed = now.saturating_duration_since(self.counts_from);
        true
    }

    fn skip(&mut self, since: Instant) {
        self.report.not_sent += u64::from(since >= self.counts_from);
    }
}

/// What one of several threads has of a whole.
fn share(whole: usize, index: usize, threads: usize) -> usize {
    whole / threads + usize::from(index < whole % threads)
}
