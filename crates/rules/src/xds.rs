//! Rules from a control plane, by Envoy's discovery service (xDS): one aggregated stream, state of the world.
//!
//! A resource is read as the tree that a rule file would be, so both are compiled by the same code. Apart from `rls/`
//! and clients, only this folder uses generated types.

mod connection;
mod control_plane;
mod follow;
pub mod metrics;
mod received;
mod resource;
mod stream;
mod subscription;
mod target;

use tollkeeper_proto::xds as pb;

pub use control_plane::{ControlPlane, ControlPlaneReport, Responses, Streams};
pub use follow::follow;
pub use subscription::none_yet;
pub use target::XdsTarget;
