//! tollkeeper: an exact, fast rate-limit service for Envoy, gateways and microservices.
//!
//! ARCHITECTURE.md has the map, and the path of a call.

#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::cast_possible_wrap,
        reason = "a test that panics has failed, which is its purpose"
    )
)]

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

mod accept;
pub mod app;
pub mod arriving;
pub mod authorization;
pub mod bench;
mod calls;
pub mod cli;
pub mod clock;
mod did_you_mean;
pub mod engine;
pub mod explain;
mod grpc;
pub mod health;
pub mod http;
pub mod import;
pub mod limiter;
mod panics;
mod pause;
mod peer;
mod printable;
pub mod rls;
pub mod rules;
pub mod settings;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod top_keys;
pub mod workers;
pub mod yaml;
