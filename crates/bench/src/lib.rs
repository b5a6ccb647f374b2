//! The load generator: calls a rate-limit service as fast as it answers, or at a fixed rate, and measures
//! it. It knows only the API, so the service may be any implementation.
//!
//! On one machine the generator takes processor time from the service that it measures. So requests are
//! encoded before the run, and only the overall code of an answer is read.
//!
//! What it leaves to others: which calls are made, and how a report is shown.

mod answer;
mod calls;
mod connection;
mod driver;
mod keys;
mod load;
mod report;
mod run;
mod timetable;
mod workload;

pub use self::{
    calls::Calls,
    keys::{Distribution, Numbers},
    load::{Load, Pace},
    report::Report,
    run::{BenchError, Progress, run},
    timetable::Timetable,
};
