//! tollkeeper: an exact, fast rate-limit service for Envoy, gateways and microservices.
//!
//! The modules are in the order in which a call reaches them. ARCHITECTURE.md describes the whole.

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

pub mod rls;

pub mod limiter;

pub mod engine;
pub mod explain;

pub mod rules;

pub mod store;

pub mod clock;

pub mod http;

pub mod telemetry;

pub mod health;

pub mod settings;

pub mod shutdown;

pub mod workers;

mod accept;
mod calls;
mod grpc;
mod printable;

mod did_you_mean;

pub mod app;

pub mod bench;

pub mod cli;
