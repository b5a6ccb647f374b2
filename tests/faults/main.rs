//! Faults under load: of Redis, of the network, of clients and of the service itself. A binary of its own, since each test
//! takes seconds and keeps the machine busy.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose"
)]

mod budgets;
mod catalogue;
mod cluster_failovers;
mod envoy_outages;
mod exits;
mod floods;
mod leases;
mod quotas;
mod sentinel_failovers;
mod slow_connects;
mod starved;
mod surge;

#[expect(dead_code, reason = "the other test binaries use the rest")]
#[path = "../support/mod.rs"]
mod support;
