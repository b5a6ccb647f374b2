//! The wire: Envoy's rate limit service and its rate limit quota service, version 3, and our own, `v1`. Apart from our clients, only this folder uses
//! the generated types of these services.

mod claims;
mod connection;
pub mod decode;
pub mod encode;
mod framing;
pub mod headers;
pub mod json;
mod large_calls;
mod metadata;
pub mod precheck;
mod quota;
pub mod refusal;
pub(crate) mod reset;
mod service;
mod unheard;
pub mod v1;

use tollkeeper_proto as pb;
pub use tollkeeper_proto::FILE_DESCRIPTORS;

pub use self::{
    claims::{Claims, INSTRUMENTS},
    connection::{
        serve::{GrpcServices, Listener, serve},
        slots::{ConnectionBounds, ConnectionSlots},
    },
    quota::{QuotaStream, Reports},
    service::{BatchContext, Service},
};
