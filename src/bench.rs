//! The load generator: asks a rate-limit service as fast, or as evenly, as it is told to, and
//! measures. It knows the API and nothing of how the service answers, so it may be anyone's.
//!
//! What it costs is taken from what it measures where both share a machine: so requests are encoded
//! before the run, and of an answer no more is read than its code.

mod answer;
mod calls;
mod connection;
mod driver;
mod keys;
mod report;
mod run;
mod timetable;

use std::{future::Future, io, time::Duration};

pub use self::{
    calls::Calls,
    keys::{Distribution, Numbers},
    report::Report,
    timetable::Timetable,
};

/// What to do.
#[derive(Debug, Clone)]
pub struct Load {
    /// The service, as `host:port`.
    pub addr: String,
    /// What is asked.
    pub calls: Calls,
    /// When the next call is due.
    pub pace: Pace,
    /// How many connections there are; each thread has one at least.
    pub connections: usize,
    /// How many threads drive them, each its own; at least one does.
    pub threads: usize,
    /// How long calls are made before they count.
    pub warmup: Duration,
    /// How long they count.
    pub duration: Duration,
    /// After how many calls that count the run ends, if it has not before.
    pub calls_max: Option<u64>,
}

/// When the next call is due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// When an earlier one is answered: so many are under way at any time.
    Closed(usize),
    /// By a timetable of so many a second (see [`Timetable`]), whatever becomes of earlier ones.
    Open(f64),
}

/// How far a run has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The part of its time that is over, 0 to 1.
    pub part: f64,
    /// The calls that were answered and count.
    pub answered: u64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Not every connection could be made.
    #[error("{0}")]
    Unreachable(String),
    /// The system gave no runtime.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Runs `load` to its end, or until `interrupted`; tells `watch` five times a second how far it is.
///
/// # Errors
/// If not every connection can be made, before any call is.
pub fn run(
    load: &Load,
    interrupted: impl Future<Output = ()>,
    watch: impl FnMut(Progress),
) -> Result<Report, Problem> {
    run::run(load, interrupted, watch)
}
