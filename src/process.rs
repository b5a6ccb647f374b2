//! The process: its threads, its wall clock, the tasks of calls, and pauses between attempts.

pub(crate) mod calls;
pub mod clock;
pub(crate) mod pause;
pub mod workers;
