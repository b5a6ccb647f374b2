//! Threads and shutdown.

use std::{num::NonZero, thread, time::Duration};

use super::reader::{
    Setting, SettingReader,
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
    /// Nothing.
    Ignored,
    /// The same as SIGTERM.
    Stops,
}

impl ProcessSettings {
    pub(super) fn read(reader: &mut SettingReader<'_>, hang_up: HangUp) -> Self {
        let workers = reader.read_optional(&Setting {
            flag: "workers",
            form: WholeNumber { min: 1, max: 1024 },
            default: "one per usable core",
            help: "Threads that serve gRPC",
        });
        let drain = reader.read(&Setting {
            flag: "drain",
            form: Time { min: Duration::ZERO, max: Duration::from_secs(600) },
            default: "5s",
            help: "How long calls are served after SIGTERM",
        });
        Self { workers: workers.unwrap_or_else(cores), drain, hang_up }
    }
}

/// The number of cores that this process may use. The standard library bounds it by the CPU quota of cgroups v1 and
/// v2, rounded down: more threads than the quota would be suspended for longer than a decision may take.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
