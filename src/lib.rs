//! tollkeeper: an exact, fast rate-limit service for Envoy, gateways and microservices.
//!
//! ARCHITECTURE.md has the map, and the path of a call.

// The decision: what a call is, which rules it matches, where its hits are counted.
pub use tollkeeper_engine as engine;
pub use tollkeeper_rules as rules;
pub use tollkeeper_store as store;

pub mod candidate;
pub mod limiter;
pub mod notices;
pub mod overrides;
pub mod self_audit;

// The edge: how calls arrive, and who may make them.
pub mod audit;
pub mod authorization;
pub mod edge;
pub mod http;
pub mod rls;

// The program: its settings, its parts together, its commands.
pub use tollkeeper_bench as bench;
pub use tollkeeper_import as import;

pub mod app;
pub mod cli;
pub mod settings;

// What is shown of it.
pub mod explain;
pub mod recording;
pub mod top_keys;

// The ground floor, which all use.
mod fields;
mod members;

use tollkeeper_base::VERSION;
pub use tollkeeper_base::{net, process, telemetry};
use tollkeeper_engine::text;
pub use tollkeeper_yaml as yaml;
