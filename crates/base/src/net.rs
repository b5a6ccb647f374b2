//! Connections to and from others: TLS, gRPC's framing and names, and what a peer speaks.
//! Who may do what is left to `authorization`.

pub mod grpc;
pub mod peer;
pub mod tls;
