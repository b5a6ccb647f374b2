//! Servers and a network that tests simulate, in one process and in virtual time.
//!
//! `redis` is a server that runs real Lua on a clock of the test's, and `network` what is between it and the service. They
//! know nothing of the service; `tests/sim/sim.rs` puts it among them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    reason = "a test that panics has failed, which is its purpose"
)]

pub mod dice;
pub mod network;
pub mod redis;
