//! The edge: bounds on connections, TLS, who may ask what, and clients that leave.

mod audit;
mod connections;
mod held;
mod invented;
mod large_calls;
mod peer_gone;
mod tls;
