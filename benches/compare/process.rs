//! One process that is measured. It ends when it is dropped.

use std::{
    error::Error,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A gRPC service under test.
pub(crate) struct Service {
    pub(crate) addr: String,
    pub(crate) process: Process,
}

/// A process that is killed when this is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Tries to reach it, for at most 10 s. It is an error if the process ends meanwhile.
    pub(crate) fn wait_until<T, E: Into<Box<dyn Error>>>(
        &mut self,
        reach: impl Fn() -> std::result::Result<T, E>,
    ) -> Result<()> {
        let began = Instant::now();
        while let Err(error) = reach() {
            if let Some(ended) = self.0.try_wait()? {
                return Err(format!("the process ended with {ended}").into());
            }
            if began.elapsed() > Duration::from_secs(10) {
                return Err(error.into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Service {
    /// Starts it, and waits for the line with its address.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut process = Process(child.map_err(|error| format!("{command:?}: {error}"))?);
        let mut line = String::new();
        let stdout = process.0.stdout.take().ok_or("a process without stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let addr = line.split_once("ready: grpc ").and_then(|(_, rest)| rest.split_once(','));
        let (addr, _) = addr.ok_or_else(|| format!("{command:?} did not start: {line}"))?;
        Ok(Self { addr: addr.to_owned(), process })
    }
}
