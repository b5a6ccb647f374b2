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
    Result,
    scenarios::{LoadShape, Scenario},
    trial::Sample,
};

/// Connections where a pace is kept.
const PACED: usize = 64;

/// `INCRBY` and `EXPIRE` for each descriptor of a decision, all in one write, one decision under way
/// on each plain connection.
pub(crate) fn pairs(port: u16, scenario: &Scenario, slice: Duration) -> Result<Sample> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (connections, rate) = match scenario.load {
        LoadShape::UnderWay(count) => (count, None),
        LoadShape::Paced(rate) => (PACED, Some(rate)),
        LoadShape::HalfOfMaximum => return Err("pairs have no maximum".into()),
    };
    runtime.block_on(async {
        let lanes = Arc::new(Lanes {
            numbers: Mutex::new(Numbers::new(scenario.keys, Distribution::Uniform)),
            keys: scenario
                .descriptors
                .iter()
                .map(|(key, value)| format!("{key}_{value}"))
                .collect(),
            latency: Mutex::new(histogram()?),
            due: rate.map(|_| Due::default()),
        });
        let mut tasks = JoinSet::new();
        let mut streams = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let began = Instant::now();
        for stream in streams {
            tasks.spawn(Arc::clone(&lanes).drive(stream));
        }
        let paced = async {
            let Some((rate, due)) = rate.zip(lanes.due.as_ref()) else {
                return future::pending().await;
            };
            let mut timetable = Timetable::start(began, rate);
            loop {
                timetable.next().await.for_each(|since| due.add(since));
            }
        };
        tokio::select! {
            () = paced => {}
            () = time::sleep(slice) => {}
            Some(ended) = tasks.join_next() => ended??,
        }
        tasks.shutdown().await;
        let latency = lanes.latency.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(sample(&latency, slice))
    })
}

/// What the connections share.
struct Lanes {
    numbers: Mutex<Numbers>,
    /// One for each descriptor, with `{}` for the number.
    keys: Vec<String>,
    latency: Mutex<Histogram<u64>>,
    /// Where a pace is kept.
    due: Option<Due>,
}

/// Decisions that are due, and since when.
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

impl Lanes {
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
                match stream.read(&mut buffer).await? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    read => {
                        let ends = buffer.iter().take(read).filter(|byte| **byte == b'\n');
                        lines += ends.count();
                    }
                }
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
