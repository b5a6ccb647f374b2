//! What all parts of the service stand on: connections to others ([`net`]), the process with its threads, its clock and
//! its pauses ([`process`]), and what is recorded and exported ([`telemetry`]).
//!
//! What it leaves to others: what all that is used for. It knows no rule, no store, no wire and no setting.

pub mod net;
pub mod process;
pub mod telemetry;

use tollkeeper_engine::text;

/// The version of the service, which all its crates share.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
