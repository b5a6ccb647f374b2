//! The process: its threads, its wall clock, the tasks of calls, and pauses between attempts.

pub mod calls;
pub mod clock;
pub mod pause;
pub mod turns;
pub mod workers;
