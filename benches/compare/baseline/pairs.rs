//! Bare commands: a count and its expiry.

use std::{
    collections::VecDeque,
    future, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    task::JoinSet,
    time,
};
use tollkeeper::bench::{Distribution, Numbers, Timetable};

use super::{histogram, nanos, sample};
use crate::{
    process::Result,
    sample::Sample,
    scenarios::{LoadShape, Scenario},
};

/// Number of connections in an open loop.
const CONNECTIONS_PACED: usize = 64;

/// `INCRBY` and `EXPIRE` for each descriptor of a decision, all in one write. Each plain connection has
/// one decision under way.
pub(crate) fn pairs(port: u16, scenario: &Scenario, slice: Duration) -> Result<Sample> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (connections, rate) = match scenario.load {
        LoadShape::UnderWay(count) => (count, None),
        LoadShape::Paced(rate) => (CONNECTIONS_PACED, Some(rate)),
        LoadShape::HalfOfMaximum => return Err("pairs have no maximum".into()),
    };
    let shared = Arc::new(Shared::new(scenario, rate)?);
    runtime.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let mut tasks = JoinSet::new();
        let began = Instant::now();
        for stream in streams {
            tasks.spawn(Arc::clone(&shared).drive(stream));
        }
        tokio::select! {
            () = shared.keep_pace(began, rate) => {}
            () = time::sleep(slice) => {}
            Some(ended) = tasks.join_next() => ended??,
        }
        tasks.shutdown().await;
        let latency = shared.latency.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(sample(&latency, slice))
    })
}

/// What the connections share.
struct Shared {
    numbers: Mutex<Numbers>,
    /// One for each descriptor, with `{}` for the number.
    keys: Vec<String>,
    latency: Mutex<Histogram<u64>>,
    /// Only in an open loop.
    due: Option<Due>,
}

/// The decisions that are due, with the time since when.
struct Due {
    since: Mutex<VecDeque<Instant>>,
    count: Semaphore,
}

impl Default for Due {
    fn default() -> Self {
        Self { since: Mutex::default(), count: Semaphore::new(0) }
    }
}

impl Due {
    fn add(&self, since: Instant) {
        self.queue().push_back(since);
        self.count.add_permits(1);
    }

    async fn next(&self) -> Option<Instant> {
        self.count.acquire().await.ok()?.forget();
        self.queue().pop_front()
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn new(scenario: &Scenario, rate: Option<f64>) -> Result<Self> {
        let keys = scenario.descriptors.iter().map(|(key, value)| format!("{key}_{value}"));
        Ok(Self {
            numbers: Mutex::new(Numbers::new(scenario.keys, Distribution::Uniform)),
            keys: keys.collect(),
            latency: Mutex::new(histogram()?),
            due: rate.map(|_| Due::default()),
        })
    }

    /// Adds decisions when they are due; never ends.
    async fn keep_pace(&self, began: Instant, rate: Option<f64>) {
        let Some((rate, due)) = rate.zip(self.due.as_ref()) else {
            return future::pending().await;
        };
        let mut timetable = Timetable::start(began, rate);
        loop {
            for since in timetable.next().await {
                due.add(since);
            }
        }
    }

    async fn drive(self: Arc<Self>, mut stream: TcpStream) -> io::Result<()> {
        let replies = 2 * self.keys.len();
        let mut buffer = [0; 256];
        loop {
            let due = match &self.due {
                Some(due) => due.next().await,
                None => None,
            };
            let command = self.command();
            let began = due.unwrap_or_else(Instant::now);
            stream.write_all(command.as_bytes()).await?;
            let mut lines = 0;
            while lines < replies {
                let read = stream.read(&mut buffer).await?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                lines += buffer.iter().take(read).filter(|byte| **byte == b'\n').count();
            }
            let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
            latency.saturating_record(nanos(began.elapsed()));
        }
    }

    fn command(&self) -> String {
        let mut command = String::new();
        for key in &self.keys {
            let number = self.numbers.lock().map_or(0, |mut numbers| numbers.draw());
            let key = format!("pair:{}", key.replace("{}", &number.to_string()));
            let length = key.len();
            command += &format!(
                "*3\r\n$6\r\nINCRBY\r\n${length}\r\n{key}\r\n$1\r\n1\r\n\
                 *3\r\n$6\r\nEXPIRE\r\n${length}\r\n{key}\r\n$4\r\n3600\r\n"
            );
        }
        command
    }
}
