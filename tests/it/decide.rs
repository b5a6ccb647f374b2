//! The decision: which calls pass, and what they charge, which is the same on every store.

mod algorithms;
mod clocks;
mod corrupt_counters;
mod decisions;
mod exactness;
mod give_back;
mod in_flight;
mod migrating;
mod modes;
mod parts;
mod steps;
