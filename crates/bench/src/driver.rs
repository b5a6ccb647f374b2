//! One thread's share of the load: its connections, and the calls that it makes on them.

use std::{
    mem,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time};
use tollkeeper_base::net::peer::PeerError;
use tonic::Code;

use super::{
    answer::OverallCode, calls::Calls, connection::ClientConnection, load::Pace, report::Report,
    timetable::Timetable, workload::Workload,
};

/// How long to wait for the last answers.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of calls under way in an open loop. A service this far behind will not catch up.
const UNDER_WAY_MAX: usize = 10_000;

pub(super) struct Driver {
    workload: Arc<Workload>,
    index: usize,
    connections: Vec<ClientConnection>,
    work: Mutex<Work>,
}

/// The state that calls change. They run on one thread, so the lock is never contended.
struct Work {
    calls: Calls,
    report: Report,
    counts_from: Instant,
}

impl Driver {
    pub(super) async fn connect(workload: Arc<Workload>, index: usize) -> Result<Self, PeerError> {
        let load = &workload.load;
        let mut connections = Vec::new();
        for _ in 0..share(load.connections, index, load.threads) {
            connections.push(ClientConnection::open(&load.addr, load.tls.clone()).await?);
        }
        let work = Work {
            calls: load.calls.of_thread(index, load.threads),
            report: Report::default(),
            counts_from: Instant::now(),
        };
        Ok(Self { index, connections, work: Mutex::new(work), workload })
    }

    /// Makes calls until the run ends, and waits for the last answers.
    pub(super) async fn drive(self, start: Instant) -> Report {
        self.work.lock().counts_from = start + self.workload.load.warmup;
        let driver = Arc::new(self);
        let mut under_way = JoinSet::new();
        match driver.workload.load.pace {
            Pace::Closed(concurrency) => driver.spawn_loops(concurrency, &mut under_way),
            Pace::Open(rate) => driver.keep_pace(start, rate, &mut under_way).await,
        }
        let ended = driver.workload.ended.clone();
        let too_late = async {
            ended.cancelled().await;
            time::sleep(LAST_ANSWERS_WITHIN).await;
        };
        tokio::select! {
            () = async { while under_way.join_next().await.is_some() {} } => {}
            () = too_late => {}
        }
        driver.work.lock().report.fail(Code::DeadlineExceeded, under_way.len() as u64);
        under_way.shutdown().await;
        driver.finish()
    }

    /// A closed loop: each of these tasks makes one call after another.
    fn spawn_loops(self: &Arc<Self>, concurrency: usize, under_way: &mut JoinSet<()>) {
        for task in 0..share(concurrency, self.index, self.workload.load.threads) {
            let driver = Arc::clone(self);
            under_way.spawn(async move { while driver.call(task, Instant::now()).await {} });
        }
    }

    /// An open loop: makes each call when it is due.
    async fn keep_pace(self: &Arc<Self>, start: Instant, rate: f64, under_way: &mut JoinSet<()>) {
        let threads = self.workload.load.threads;
        // The threads take turns.
        let offset = Duration::try_from_secs_f64(self.index as f64 / rate).unwrap_or_default();
        let mut timetable = Timetable::start(start + offset, rate / threads as f64);
        let mut next = 0_usize;
        loop {
            let due = tokio::select! {
                due = timetable.next() => due,
                () = self.workload.ended.cancelled() => return,
            };
            while under_way.try_join_next().is_some() {}
            for since in due {
                next = next.wrapping_add(1);
                if self.workload.is_over() {
                    return;
                }
                if under_way.len() >= UNDER_WAY_MAX / threads {
                    if self.workload.has_calls() {
                        self.work.lock().skip(since);
                    }
                    continue;
                }
                let (driver, index) = (Arc::clone(self), next);
                under_way.spawn(async move {
                    driver.call(index, since).await;
                });
            }
        }
    }

    /// Makes a call that has been due since `since`; returns false if no call is left. `index` chooses
    /// the connection.
    async fn call(&self, index: usize, since: Instant) -> bool {
        let Some(connection) = self.connections.get(index % self.connections.len()) else {
            return false;
        };
        let Some(request) = self.claim(since) else { return false };
        let answer = connection.ask(request).await;
        let now = Instant::now();
        if self.work.lock().count(answer, since, now) {
            self.workload.count_answer();
        }
        true
    }

    /// The next request, unless the run has ended or has no calls left.
    fn claim(&self, since: Instant) -> Option<Bytes> {
        if self.workload.ended.is_cancelled() {
            return None;
        }
        let mut work = self.work.lock();
        if since >= work.counts_from {
            self.workload.take_call()?;
        }
        Some(work.calls.next())
    }

    fn finish(&self) -> Report {
        let reconnects =
            self.connections.iter().map(|connection| connection.reconnects.load(Relaxed)).sum();
        Report { reconnects, ..mem::take(&mut self.work.lock().report) }
    }
}

impl Work {
    /// Counts an answer; returns false in the warm-up.
    fn count(
        &mut self,
        answer: Result<(OverallCode, Bytes), Code>,
        since: Instant,
        now: Instant,
    ) -> bool {
        let answer = answer.map(|(code, message)| {
            self.calls.answered(&message);
            if self.report.sample.is_empty() {
                self.report.sample = message;
            }
            code
        });
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

fn share(whole: usize, index: usize, threads: usize) -> usize {
    whole / threads + usize::from(index < whole % threads)
}
