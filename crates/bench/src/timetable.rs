//! When calls of an open loop are due. A thread of its own watches the clock, because the runtime's timers
//! have a resolution of a millisecond, which would turn an even pace into bursts.

use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::watch;

#[derive(Debug)]
pub struct Timetable {
    begin: Instant,
    rate: f64,
    taken: u64,
    due: watch::Receiver<u64>,
    clock: Option<JoinHandle<()>>,
}

impl Timetable {
    /// A timetable of `rate` calls per second, which is limited to 0.001 to 10,000,000.
    #[expect(clippy::disallowed_methods, reason = "the timetable joins it when it is dropped")]
    pub fn start(begin: Instant, rate: f64) -> Self {
        let rate = if rate > 1e-3 { rate.min(1e7) } else { 1e-3 };
        let (sender, due) = watch::channel(0);
        let clock = thread::spawn(move || count_due(begin, rate, &sender));
        Self { begin, rate, taken: 0, due, clock: Some(clock) }
    }

    /// Waits until a call is due. Returns the due times of all calls since the last one returned.
    pub async fn next(&mut self) -> impl Iterator<Item = Instant> + use<> {
        // The thread does not end before its receiver is dropped.
        drop(self.due.wait_for(|due| *due > self.taken).await);
        let (begin, rate, taken, due) = (self.begin, self.rate, self.taken, *self.due.borrow());
        self.taken = due;
        (taken..due).map(move |index| at(begin, rate, index))
    }
}

impl Drop for Timetable {
    fn drop(&mut self) {
        drop(std::mem::replace(&mut self.due, watch::channel(0).1));
        if let Some(clock) = self.clock.take() {
            clock.thread().unpark();
            drop(clock.join());
        }
    }
}

fn at(begin: Instant, rate: f64, index: u64) -> Instant {
    begin + Duration::from_secs_f64(index as f64 / rate)
}

/// Publishes the number of calls that are due, whenever it changes.
fn count_due(begin: Instant, rate: f64, sender: &watch::Sender<u64>) {
    let mut due = 0;
    while !sender.is_closed() {
        let now = Instant::now();
        let before = due;
        while at(begin, rate, due) <= now {
            due += 1;
        }
        if due > before {
            sender.send_replace(due);
        }
        // Dropping the timetable wakes the thread, so that the drop does not wait for the next call.
        thread::park_timeout(at(begin, rate, due).saturating_duration_since(Instant::now()));
    }
}
