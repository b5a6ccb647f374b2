//! Threads and shutdown.

use std::{num::NonZero, thread, time::Duration};

use super::reader::{
    SettingReader,
    form::{Time, WholeNumber},
};

#[derive(Debug, Clone)]
pub struct ProcessSettings {
    pub workers: usize,
    /// How long calls are still served after the signal to stop.
    pub drain: Duration,
    /// What SIGHUP does.
    pub hang_up: HangUp,
}

/// What SIGHUP does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HangUp {
    Ignored,
    /// The same as SIGTERM.
    Stops,
}

const DRAIN: Time = Time(Duration::ZERO..=Duration::from_secs(600));

impl ProcessSettings {
    #[rustfmt::skip]
    pub(super) fn read(reader: &mut SettingReader<'_>, hang_up: HangUp) -> Self {
        let workers = reader.read_optional("workers", &WholeNumber(1..=1024), "one per usable core", "Threads that serve gRPC");
        let drain = reader.read("drain", DRAIN, "5s", "How long calls are served after SIGTERM");
        Self { workers: workers.unwrap_or_else(cores), drain, hang_up }
    }
}

/// The number of cores that this process may use. The standard library bounds it by the CPU quota of cgroups v1 and
/// v2, rounded down: more threads than the quota would be suspended for longer than a decision may take.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
