//! The integration tests that developers run all day. `tests/faults` has faults under load, `tests/deploy` the chart, the image
//! and the programs around the service, and `tests/support` what all of them use.
//!
//! A new test goes to the room of its claim, and its name is the claim:
//!
//! - `decide`: which calls pass, and what they charge, on every store
//! - `rules`: rule files, their tests and schemas, control planes
//! - `wire`: gRPC, HTTP, JSON, a stock Envoy, bad input
//! - `store`: memory and Redis
//! - `edge`: connections, TLS, clients that leave
//! - `telemetry`: metrics, traces, logs
//! - `commands`: the program at a terminal, and in the place of others
//! - `pages`: README.md and docs/
//! - `clients`: the packages for other languages
//!
//! `architecture` guards the invariants of ARCHITECTURE.md.

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

mod architecture;
mod clients;
mod commands;
mod decide;
mod edge;
mod pages;
mod rules;
mod store;
mod telemetry;
mod wire;

#[expect(dead_code, reason = "the other test binaries use the rest")]
#[path = "../support/mod.rs"]
mod support;
