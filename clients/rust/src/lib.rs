//! Asks a tollkeeper service whether calls may pass.
//!
//! Every decision is made within the client's timeout, whatever the service does: without an answer,
//! [`Options::on_failure`] decides. An [`Error`] is a mistake of the caller, found before anything is sent.

#![warn(missing_docs)]

mod call;
mod channel;
mod client;
mod decision;
mod hold;
#[cfg(feature = "tower")]
mod middleware;
#[cfg(feature = "tls")]
mod tls;
/// The messages of the API, for other uses.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    include!("generated/tollkeeper.v1.rs");
}

#[cfg(feature = "tower")]
pub use middleware::{LimitLayer, Limited};
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use {
    call::{Error, HITS_MAX, on},
    client::{Client, OnCall, OnFailure, Options},
    decision::{Decision, Limit, ServiceError, Status},
    hold::Hold,
    v1::{Call, Commit, Descriptor},
};
