//! The decision: which calls pass, and what they charge, which is the same on every store.

mod algorithms;
mod calendars;
mod candidate;
mod clocks;
mod corrupt_counters;
mod decisions;
mod domain_keys;
mod exactness;
mod give_back;
mod holds;
mod in_flight;
mod leases;
mod longest;
mod migrating;
mod modes;
mod notices;
mod overrides;
mod parts;
mod penalty;
mod priority;
mod self_audit;
mod shadow;
mod steps;
mod timelines;
