//! Asks a tollkeeper service whether calls may pass.
//!
//! Every decision is made within the client's timeout, whatever the service does: without an answer,
//! [`Options::on_failure`] decides. An [`Error`] is a mistake of the caller, found before anything is sent, but for
//! [`Options::require_limit`].

#![warn(missing_docs)]

mod call;
mod channel;
mod client;
mod decision;
mod denials;
mod fake;
mod hold;
mod limiter;
mod log;
#[cfg(feature = "tower")]
mod middleware;
mod options;
#[cfg(feature = "tls")]
mod tls;
#[allow(missing_docs, dead_code, unreachable_pub, clippy::all, clippy::pedantic)]
mod v1 {
    include!("generated/tollkeeper.v1.rs");
}

#[cfg(feature = "tower")]
pub use middleware::{LimitLayer, Limited};
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use {
    call::{Call, Descriptor, Error, HITS_MAX, Unit, on},
    client::Client,
    decision::{Decision, Limit, ServiceError, Status, Statuses},
    fake::Fake,
    hold::{Commit, Hold},
    limiter::{Limiter, Prepared},
    options::{OnFailure, Options},
};
