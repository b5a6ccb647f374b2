//! When calls of an open loop are due. A thread of its own watches the clock: the timers of the
//! runtime tick once in a millisecond, and would turn an even pace into bursts.

use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// Due times at one rate, evenly, from a begin on.
#[derive(Debug)]
pub struct Timetable {
    begin: Instant,
    rate: f64,
    taken: u64,
    due: watch::Receiver<u64>,
    clock: Option<JoinHandle<()>>,
}

impl Timetable {
    /// A timetable of `rate` a second, or of the nearest that can be kept: from one in a thousand
    /// seconds to ten million a second.
    #[expect(clippy::disallowed_methods, reason = "the timetable joins it when it is dropped")]
    pub fn start(begin: Instant, rate: f64) -> Self {
        let rate = if rate > 1e-3 { rate.min(1e7) } else { 1e-3 };
        let (told, due) = watch::channel(0);
        let clock = thread::spawn(move || tell(begin, rate, &told));
        Self { begin, rate, taken: 0, due, clock: Some(clock) }
    }

    /// Waits until something is due, and tells since when each is that was not told before.
    pub async fn next(&mut self) -> impl Iterator<Item = Instant> + use<> {
        // The thread ends after its receiver only.
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

/// Tells how many are due, whenever that changes and the system wakes us in time.
fn tell(begin: Instant, rate: f64, told: &watch::Sender<u64>) {
    let mut due = 0;
    while !told.is_closed() {
        let now = Instant::now();
        let before = due;
        while at(begin, rate, due) <= now {
            due += 1;
        }
        if due > before {
            told.send_replace(due);
        }
        // Whoever needs no more of it wakes the thread, so that its end takes nobody's time.
        thread::park_timeout(at(begin, rate, due).saturating_duration_since(Instant::now()));
    }
}
