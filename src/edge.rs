//! What the gRPC and the HTTP listeners share: accepting connections, the memory that clients make the service hold,
//! the service's phase, and panics. What a connection carries is left to `rls` and `http`.

pub(crate) mod accept;
pub mod arriving;
pub mod health;
pub mod metrics;
pub(crate) mod panics;
