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

pub mod app;

pub mod bench;

pub mod cli;

pub mod clock;

pub mod engine;

pub mod explain;

pub mod health;

pub mod http;

pub mod limiter;

pub mod rls;

pub mod rules;

pub mod settings;

pub mod shutdown;

pub mod store;

pub mod telemetry;

pub mod tls;

pub mod top_keys;

pub mod workers;

mod accept;

pub mod access;

pub mod arriving;
mod calls;
mod did_you_mean;
mod grpc;
mod panics;
mod pause;
mod peer;
mod printable;
