//! Redis asked directly: the least that a counter with an expiry costs it, and the shortest way
//! there and back.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Semaphore,
    task::JoinSet,
    time,
};
use tollkeeper::bench::{Distribution, Numbers, Timetable};

use crate::{
    Result,
    scenarios::{Rhythm, Scenario},
    slice::Sample,
};

/// Connections where a pace is kept.
const PACED: usize = 64;

/// `INCRBY` and `EXPIRE` for each descriptor of a decision, all in one write, one decision under way
/// on each plain connection.
pub(crate) fn pairs(port: u16, scenario: &Scenario, slice: Duration) -> Result<Sample> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (connections, rate) = match scenario.rhythm {
        Rhythm::UnderWay(count) => (count, None),
        Rhythm::Paced(rate) => (PACED, Some(rate)),
        Rhythm::HalfOfMaximum => return Err("pairs have no maximum".into()),
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
            due: Semaphore::new(0),
            paced: rate.is_some(),
        });
        let mut tasks = JoinSet::new();
        let mut streams = Vec::new();
        for _ in 0..connections {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let began = Instant::now();
        for stream in streams {
            tasks.spawn(Arc::clone(&lanes).drive(stream));
        }
        let paced = async {
            let Some(rate) = rate else { return std::future::pending().await };
            let mut timetable = Timetable::start(began, rate);
            loop {
                lanes.due.add_permits(timetable.next().await.count());
            }
        };
        tokio::select! {
            () = paced => {}
            () = time::sleep(slice) => {}
            Some(ended) = tasks.join_next() => ended??,
        }
        tasks.shutdown().await;
        let latency = lanes.latency.lock().map_err(|_| "a lane has panicked")?;
        Ok(sample(&latency, slice))
    })
}

/// What the connections share.
struct Lanes {
    numbers: Mutex<Numbers>,
    /// One for each descriptor, with `{}` for the number.
    keys: Vec<String>,
    latency: Mutex<Histogram<u64>>,
    /// Decisions that are due, where a pace is kept.
    due: Semaphore,
    paced: bool,
}

impl Lanes {
    async fn drive(self: Arc<Self>, mut stream: tokio::net::TcpStream) -> std::io::Result<()> {
        let replies = 2 * self.keys.len();
        let mut buffer = [0; 256];
        loop {
            if self.paced {
                self.due.acquire().await.map_err(std::io::Error::other)?.forget();
            }
            let command = self.command();
            let began = Instant::now();
            stream.write_all(command.as_bytes()).await?;
            let mut lines = 0;
            while lines < replies {
                match stream.read(&mut buffer).await? {
                    0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    read => {
                        let ends = buffer.iter().take(read).filter(|byte| **byte == b'\n');
                        lines += ends.count();
                    }
                }
            }
            if let Ok(mut latency) = self.latency.lock() {
                latency.saturating_record(nanos(began.elapsed()));
            }
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

/// A script that does nothing, on one connection, one call at a time, with no runtime between.
pub(crate) fn script(port: u16, slice: Duration) -> Result<Sample> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let (mut writer, mut reader) = (stream.try_clone()?, BufReader::new(stream));
    let mut ask = |command: &str| -> Result<String> {
        writer.write_all(command.as_bytes())?;
        let mut line = String::new();
        reader.read_line(&mut line)?;
        Ok(line)
    };
    // The answer is `$40` and then the hash; nothing else asks in between.
    ask("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$8\r\nreturn 1\r\n")?;
    let hash = ask("")?;
    let command = format!("*3\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n0\r\n", hash.trim_end());
    let mut latency = histogram()?;
    let end = Instant::now() + slice;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(sample(&latency, slice));
        }
        match ask(&command)?.as_str() {
            ":1\r\n" => latency.saturating_record(nanos(began.elapsed())),
            other => return Err(format!("EVALSHA: {other}").into()),
        }
    }
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_max(1_000_000_000, 3)?)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn sample(latency: &Histogram<u64>, slice: Duration) -> Sample {
    let micros = |part| latency.value_at_quantile(part) as f64 / 1e3;
    Sample {
        per_second: latency.len() as f64 / slice.as_secs_f64(),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        ..Sample::default()
    }
}
